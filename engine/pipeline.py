"""A pipeline at work: prepare one request, submit a batch of prepared ones, collect one result a request.

The engine's door for a worker. `prepare` and `submit` may be called from any thread: prepare runs on the
caller's (keep it off an event loop), submit only hands over and returns. Results keep the batch's order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import reduce
from pathlib import Path
from threading import Lock
from types import MappingProxyType, TracebackType
from typing import Self

from engine.answers import Answer, Dropped, Failure, Observer, Prepared, Result
from engine.bounds import Bounds
from engine.demand import Demand, total
from engine.errors import ConfigError, InputError, NodeError
from engine.execution import Execution
from engine.graph import (
    REQUEST,
    Capacity,
    Graph,
    Model,
    NodeContext,
    NodeSpec,
    Source,
    Stage,
    close_nodes,
    load_graph,
)
from engine.model_nodes import capacity_of, cost_of, model_of
from engine.nodes.registry import find_kind
from engine.pipeline_config import PipelineConfig, read_pipeline
from engine.runtime.cost import Cost
from engine.store import ArtifactStore
from engine.values import Sample, Samples, Tokens

__all__ = [
    "Answer",
    "ArtifactStore",
    "Dropped",
    "Failure",
    "Pipeline",
    "PipelineConfig",
    "Prepared",
    "Result",
    "read_pipeline",
]

logger = logging.getLogger(__name__)

NO_OPTIONS: Mapping[str, object] = MappingProxyType({})
HOST_THREADS = 4  # for nodes without an executor of their own (encoders): short work between lanes


class Pipeline:
    """A validated graph with its bounds. The artifacts' lanes belong to the store and may be shared."""

    def __init__(self, config: PipelineConfig, graph: Graph, host_threads: int) -> None:
        self.config = config
        self.name = config.name
        self.bounds: Bounds = config.bounds
        self.capacity: Capacity = capacity_of(graph, config.bounds, host_threads)
        self.cost: Cost | None = cost_of(graph)
        self.model: Model | None = model_of(graph)
        self._graph = graph
        self._prepare = graph.names(Stage.PREPARE)
        self._models = tuple(name for name, node in graph.nodes.items() if node.is_model)
        self._carried = _carried(graph)
        self._host = ThreadPoolExecutor(host_threads, thread_name_prefix=f"{config.name}-host")
        self._running: set[Execution] = set()
        self._lock = Lock()
        self._closed = False

    @classmethod
    def open(
        cls, config: PipelineConfig, artifacts: ArtifactStore, *, host_threads: int = HOST_THREADS
    ) -> Pipeline:
        """Resolve kinds, validate, load. ConfigError names file, key and value; ArtifactError the misfit."""
        directory = config.file.parent if config.file else Path()

        def context(name: str, inputs: Mapping[str, Source]) -> NodeContext:
            return NodeContext(name, config.bounds, inputs, artifacts, directory)

        try:
            graph = load_graph(_specs(config), context)
        except ConfigError as error:
            raise error.under("", config.file) from error
        try:
            return cls(config, graph, host_threads)
        except BaseException:
            close_nodes(graph.nodes)
            raise

    def prepare(
        self,
        samples: Sequence[Sample],
        observe: Observer | None = None,
        options: Mapping[str, object] = NO_OPTIONS,
    ) -> Prepared:
        """Run the PREPARE nodes on one request. InputError: the request's fault; NodeError: a node's.
        `observe` is told these nodes' values now, and the others' when they run. `options` are the request's
        own; those that no node reads are ignored."""
        self.bounds.check_samples(len(samples))
        for node in self._graph.nodes.values():
            node.check_options(options)
        values: dict[str, object] = {REQUEST: Samples(tuple(samples), options)}
        num_tokens = 0
        for name in self._prepare:
            value = self._prepare_value(name, tuple(values[source] for source in self._graph.inputs[name]))
            if isinstance(value, Tokens):
                self.bounds.check_tokens(value)
                num_tokens = max(num_tokens, value.num_tokens)
            values[name] = value
            if observe is not None:
                observe(name, value)
        carried = {name: values[name] for name in self._carried}
        demand = self._demand(values, Demand(num_tokens, len(samples)))
        return Prepared(carried, num_tokens, len(samples), observe=observe, demand=demand)

    def submit(
        self, batch: Sequence[Prepared], on_turn: Callable[[], None] | None = None
    ) -> Future[list[Result]]:
        """Run the EXECUTE nodes on a batch; the future never fails and has one result a request, in order.

        `on_turn` is called, once and on an engine's thread, when lanes may take the next batch though this
        one's results are not there yet; not at all where no node tells that (Node.begin). ValueError if the
        batch is empty or over `capacity`; RuntimeError after close.
        """
        demand = total(prepared.demand for prepared in batch)
        if len(batch) == 1:  # nothing is shared where there is no room for it
            demand = Demand(batch[0].num_tokens, batch[0].num_samples)
        if not batch or demand.tokens > self.capacity.tokens or demand.samples > self.capacity.samples:
            asked = f"{demand.tokens} tokens, {demand.samples} samples"
            raise ValueError(f"batch of {len(batch)} requests, {asked}: {self.capacity}")
        execution = Execution(self._graph, batch, self._host, on_turn)
        with self._lock:
            if self._closed:
                raise RuntimeError(f"pipeline {self.name!r} is closed")
            self._running.add(execution)
        execution.future.add_done_callback(lambda _: self._forget(execution))
        execution.start()
        return execution.future

    def tell_turns_sooner(self, seconds: float) -> None:
        """Of batches from now on: so long it takes from `on_turn` until the next one is submitted."""
        for node in self._graph.nodes.values():
            node.lead_s = seconds

    def counters(self) -> dict[str, Mapping[str, int]]:
        """What each node has counted itself, of those that count."""
        found = {name: node.counters() for name, node in self._graph.nodes.items()}
        return {name: counts for name, counts in found.items() if counts}

    def close(self, timeout_s: float = 10.0) -> None:
        """Take no more, wait up to `timeout_s` for what runs, fail the rest. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            running = list(self._running)
        _, late = wait([execution.future for execution in running], timeout_s)
        if late:
            logger.warning("pipeline %r closes over %d unfinished batches; they fail", self.name, len(late))
        for execution in running:
            execution.abandon("the pipeline closed")
        self._host.shutdown(wait=False, cancel_futures=True)
        close_nodes(self._graph.nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _demand(self, values: Mapping[str, object], plain: Demand) -> Demand:
        """Of the model nodes that read prepared values; of others nothing is known yet."""
        found = []
        for name in self._models:
            if all(source in values for source in self._graph.inputs[name]):
                inputs = tuple(values[source] for source in self._graph.inputs[name])
                try:
                    found.append(self._graph.nodes[name].demand(inputs) or plain)
                except Exception as error:
                    raise NodeError(f"node {name!r} failed: {type(error).__name__}: {error}") from error
        return reduce(Demand.most, found) if found else plain

    def _prepare_value(self, name: str, inputs: tuple[object, ...]) -> object:
        node = self._graph.nodes[name]
        try:
            (value,) = node.run([inputs])
        except InputError:
            raise
        except Exception as error:
            raise NodeError(f"node {name!r} failed: {type(error).__name__}: {error}") from error
        if isinstance(value, Exception):
            raise value
        if not isinstance(value, node.produces):
            raise NodeError(f"node {name!r} gave {type(value).__name__}, not {node.produces.__name__}")
        return value

    def _forget(self, execution: Execution) -> None:
        with self._lock:
            self._running.discard(execution)


def _specs(config: PipelineConfig) -> dict[str, NodeSpec]:
    specs = {}
    for name, node in config.nodes.items():
        try:
            specs[name] = NodeSpec(find_kind(node.kind), tuple(node.inputs), node.settings)
        except ConfigError as error:
            raise error.under(f"nodes.{name}") from error
    return specs


def _carried(graph: Graph) -> tuple[str, ...]:
    """What EXECUTE nodes read from before batching, and the rows if they are made there."""
    before = {REQUEST, *graph.names(Stage.PREPARE)}
    read = {source for name in graph.names(Stage.EXECUTE) for source in graph.inputs[name]} | {graph.sink}
    return tuple(sorted(before & read))
