"""The static DAG of a pipeline: what a node is, what is checked at load, and the order of running.

Knows nodes only by this protocol; kinds are resolved elsewhere. Everything is decided at load: a graph that
validated cannot fail for its shape while serving. engine/nodes/README.md shows a node of one's own.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from engine.bounds import Bounds
from engine.demand import Demand
from engine.errors import ConfigError
from engine.options import Options, read_options
from engine.prefixes import Saved
from engine.runtime.cost import Cost
from engine.store import ArtifactStore
from engine.topology import find_sink, sort_edges
from engine.values import Rows, Samples

logger = logging.getLogger(__name__)

REQUEST = "request"  # the reserved input: the request's own samples


class Stage(Enum):
    """PREPARE runs once a request, before batching; EXECUTE runs on a batch of whole requests."""

    PREPARE = "prepare"
    EXECUTE = "execute"


@dataclass(frozen=True)
class Capacity:
    """The most one batch may hold, and how many batches are worth having under way at once: until their
    results, or until the lane's turn where a node tells it (Node.begin)."""

    tokens: int
    samples: int
    batches: int


@dataclass(frozen=True)
class Model:
    """Which model answered: a reply carries it."""

    name: str
    digest: str


@dataclass(frozen=True)
class Source:
    """What a node reads from one input, as far as it is known at load."""

    produces: type
    labels: tuple[str, ...] | None = None  # of Scores
    vocabulary: str | None = None  # of Tokens: the digest of their tokenizer
    constant_prefix: tuple[int, ...] = ()  # of Tokens: what nearly all of them start with


@dataclass(frozen=True)
class NodeContext:
    """What a node may know at load besides its own settings. `inputs` keeps the order of the file."""

    name: str
    bounds: Bounds
    inputs: Mapping[str, Source]
    artifacts: ArtifactStore
    directory: Path = field(default_factory=Path)  # where relative paths in the settings start


@dataclass(frozen=True)
class Counted:
    """A value of a node, with the tokens that prefixes spared it."""

    value: object
    saved: Saved


class Node(ABC):
    """One step of a pipeline; loaded once, then run many times.

    `run` gets one tuple of input values a request and returns one value a request in the same order; a value
    may instead be an exception (InputError, NodeError): that request alone fails. Raising fails the batch.
    A model's value may come as Counted.
    PREPARE nodes run on the caller's thread, one request at a time; EXECUTE nodes on a thread of `executor`
    (None: the pipeline's own host threads). Several threads may run a node at once: keep no state in it.
    """

    Options: ClassVar[type[Options]] = Options  # the node's settings beside kind and inputs
    stage: ClassVar[Stage] = Stage.EXECUTE
    consumes: ClassVar[tuple[type, ...]]  # what each input may be
    produces: type  # a class attribute, or set by __init__ where the settings decide it
    min_inputs: ClassVar[int] = 1
    max_inputs: ClassVar[int] = 1
    is_model: ClassVar[bool] = False  # launches a model: dropped requests must not reach it, runs are counted

    executor: Executor | None = None
    finisher: Executor | None = None  # of a node that runs in two parts: where the second does, see `begin`
    lead_s: float = 0.0  # of such a node: how long the next batch takes to be there; set by the pipeline
    capacity: Capacity | None = None  # of a model node: how large its batches may be
    cost: Cost | None = None  # of a model node: what its batches take, where that was measured
    model: Model | None = None
    labels: tuple[str, ...] | None = None  # of the Scores it produces
    vocabulary: str | None = None  # of the Tokens it produces
    constant_prefix: tuple[int, ...] = ()  # likewise

    def __init__(self, options: Any, context: NodeContext) -> None:  # noqa: B027 - a node may need neither
        """`options` is of the class's Options. Raise ConfigError with a key relative to the node."""

    @abstractmethod
    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        """One tuple of input values a request -> one value of type `produces` (or an exception) a request."""

    def begin(self, requests: Sequence[tuple[Any, ...]]) -> Callable[[], Sequence[object]]:
        """`run` in two parts, of a node with a `finisher`: what must be done on the executor's thread; and
        the rest, for a thread of the finisher. That is called once, and may raise as `run` may.

        Its return is the lane's turn: what waits is formed into the next batch then, which comes `lead_s`
        later. Sooner, requests would miss that batch; later, the device would wait."""
        values = self.run(requests)
        return lambda: values

    def demand(self, inputs: tuple[Any, ...]) -> Demand | None:
        """Of a model: what a request with these values takes of its batch; None: its own tokens and samples.
        On the caller's thread, before batching."""
        return None

    def counters(self) -> Mapping[str, int]:
        """What the node has counted since it was made, by name; any thread, at any time."""
        return {}

    def check_options(self, options: Mapping[str, object]) -> None:  # noqa: B027 - most read none
        """InputError for a request's own option that this node reads and cannot serve; before batching."""

    def close(self) -> None:  # noqa: B027 - most nodes hold nothing
        """Free what __init__ took (an executor, a file); called once, when the pipeline closes."""


@dataclass(frozen=True)
class NodeSpec:
    """A node as written: its class still to be made with `options`."""

    node_class: type[Node]
    inputs: tuple[str, ...]
    options: Mapping[str, object]


@dataclass(frozen=True)
class Graph:
    """Nodes by name, every one after its inputs; one of them, `sink`, gives the rows."""

    nodes: Mapping[str, Node]
    inputs: Mapping[str, tuple[str, ...]]
    sink: str

    def names(self, stage: Stage) -> tuple[str, ...]:
        """The nodes of one stage, in order."""
        return tuple(name for name, node in self.nodes.items() if node.stage is stage)


def load_graph(
    specs: Mapping[str, NodeSpec], context: Callable[[str, Mapping[str, Source]], NodeContext]
) -> Graph:
    """Check the shape, then make every node after its inputs; ConfigError names nodes.<name>.<key>.

    Where that fails, whatever was made is closed again.
    """
    nodes: dict[str, Node] = {}
    try:
        make_nodes(specs, context, nodes)
        edges = {name: spec.inputs for name, spec in specs.items()}
        return Graph(nodes, edges, find_sink(nodes, edges, Rows))
    except BaseException:
        close_nodes(nodes)
        raise


def close_nodes(nodes: Mapping[str, Node]) -> None:
    """Close each, whatever another one's close raises."""
    for name, node in nodes.items():
        try:
            node.close()
        except Exception:
            logger.exception("node %r did not close", name)


def make_nodes(
    specs: Mapping[str, NodeSpec],
    context: Callable[[str, Mapping[str, Source]], NodeContext],
    nodes: dict[str, Node],
) -> None:
    """Adds to `nodes` as they are made, each after its inputs; ConfigError as load_graph."""
    order = sort_edges({name: spec.inputs for name, spec in specs.items()}, REQUEST)
    for name in order:
        _check_node(name, specs)
    sources: dict[str, Source] = {REQUEST: Source(Samples)}
    for name in order:
        spec = specs[name]
        inputs = {source: sources[source] for source in spec.inputs}
        _check_types(name, spec, inputs)
        try:
            nodes[name] = spec.node_class(
                read_options(spec.node_class.Options, spec.options), context(name, inputs)
            )
        except ConfigError as error:
            # Bounds are the pipeline's, not the node's: a node may complain about them by their own name.
            raise error if error.key.startswith("bounds.") else error.under(f"nodes.{name}") from None
        if not hasattr(nodes[name], "produces"):
            raise ConfigError(f"nodes.{name}", spec.node_class.__name__, "does not say what it produces")
        made = nodes[name]
        sources[name] = Source(made.produces, made.labels, made.vocabulary, made.constant_prefix)


def _check_node(name: str, specs: Mapping[str, NodeSpec]) -> None:
    """The number of inputs, and that nothing which runs before batching waits for what runs after it."""
    spec = specs[name]
    least, most = spec.node_class.min_inputs, spec.node_class.max_inputs
    if not least <= len(spec.inputs) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise ConfigError(f"nodes.{name}.inputs", list(spec.inputs), f"takes {wanted} of them")
    if spec.node_class.stage is Stage.PREPARE:
        for source in spec.inputs:
            if source != REQUEST and specs[source].node_class.stage is Stage.EXECUTE:
                reason = f"{name!r} runs before batching and cannot read {source!r}, which runs after it"
                raise ConfigError(f"nodes.{name}.inputs", source, reason)


def _check_types(name: str, spec: NodeSpec, inputs: Mapping[str, Source]) -> None:
    for source, given in inputs.items():
        if not issubclass(given.produces, spec.node_class.consumes):
            takes = " or ".join(each.__name__ for each in spec.node_class.consumes)
            reason = f"gives {given.produces.__name__}, but {name!r} takes {takes}"
            raise ConfigError(f"nodes.{name}.inputs", source, reason)
