"""Whether a pipeline's nodes fit each other, before there is an artifact to open it with.

Each of our own nodes is stood in for by one that only says what it reads and gives. What needs a tokenizer or
a model is left to Pipeline.open: artifacts' names, a label's token, bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import ConfigError
from engine.graph import REQUEST, Node, NodeContext, NodeSpec, make_nodes
from engine.nodes.beam import Beam
from engine.nodes.encoder import Encoder
from engine.nodes.prefill import Prefill, PrefillOptions, read_head
from engine.nodes.registry import find_kind
from engine.nodes.tokenizer import Tokenizer
from engine.pipeline_config import NodeConfig, PipelineConfig
from engine.store import ArtifactStore
from engine.topology import sort_edges


class _Outline(Node):
    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        raise AssertionError("stands in for a node, at load alone")


class _Tokenizer(_Outline):
    Options, stage = Tokenizer.Options, Tokenizer.stage
    consumes, produces = Tokenizer.consumes, Tokenizer.produces


class _Beam(_Outline):
    Options, consumes, produces = Beam.Options, Beam.consumes, Beam.produces


class _Prefill(_Outline):
    Options, consumes = Prefill.Options, Prefill.consumes

    def __init__(self, options: PrefillOptions, context: NodeContext) -> None:
        head, settings = read_head(options)
        self.produces = head.produces
        labels = getattr(settings, "labels", None)
        self.labels = None if labels is None else tuple(labels)


OUTLINES: Mapping[type[Node], type[Node]] = {
    Tokenizer: _Tokenizer, Prefill: _Prefill, Beam: _Beam, Encoder: Encoder,
}  # fmt: skip


def check_outline(config: PipelineConfig) -> None:
    """ConfigError, as of Pipeline.open, for a kind, an input, a setting or an output that there is not.

    It may lack an encoder. Of a pipeline with a node of the user's own, which may be installed only where it
    serves, the edges alone are looked at.
    """
    try:
        if any(":" in node.kind for node in config.nodes.values()):
            sort_edges({name: tuple(node.inputs) for name, node in config.nodes.items()}, REQUEST)
            return
        specs = {name: _spec(name, node) for name, node in config.nodes.items()}
        nothing = ArtifactStore({})
        make_nodes(specs, lambda name, inputs: NodeContext(name, config.bounds, inputs, nothing), {})
    except ConfigError as error:
        raise error.under("", config.file) from None


def _spec(name: str, node: NodeConfig) -> NodeSpec:
    try:
        return NodeSpec(OUTLINES[find_kind(node.kind)], tuple(node.inputs), node.settings)
    except ConfigError as error:
        raise error.under(f"nodes.{name}") from None
