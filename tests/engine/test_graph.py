"""Loading a graph: every mistake in its shape is told by node, key and value, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pydantic import Field

from engine.bounds import Bounds
from engine.errors import ConfigError
from engine.graph import Graph, Node, NodeContext, NodeSpec, Source, Stage, load_graph
from engine.options import Options
from engine.store import ArtifactStore
from engine.values import Embeddings, Rows, Samples, Scores, Tokens

BOUNDS = Bounds(samples=2, tokens_per_sample=4, tokens_per_request=8)


class Step(Node):
    """A node that only has a shape."""

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        raise NotImplementedError


class Tokenize(Step):
    stage = Stage.PREPARE
    consumes = (Samples, Tokens)
    produces = Tokens


class Early(Step):
    stage = Stage.PREPARE
    consumes = (Scores,)
    produces = Tokens


class Score(Step):
    class Options(Options):
        labels: list[str] = Field(default=["a"])
        normalize: bool = False

    consumes = (Tokens,)
    produces = Scores

    def __init__(self, options: Options, context: NodeContext) -> None:
        if "bad" in options.labels:
            raise ConfigError("labels", options.labels, "is bad")
        if "huge" in options.labels:
            raise ConfigError("bounds.samples", context.bounds.samples, "is too much")
        self.labels = tuple(options.labels)


class Embed(Step):
    consumes = (Tokens,)
    produces = Embeddings


class Encode(Step):
    consumes = (Scores, Rows)
    produces = Rows
    max_inputs = 2

    def __init__(self, options: Options, context: NodeContext) -> None:
        self.sources = dict(context.inputs)


def spec(node_class: type[Node], *inputs: str, **options: object) -> NodeSpec:
    return NodeSpec(node_class, inputs or ("request",), options)


def load(specs: Mapping[str, NodeSpec]) -> Graph:
    return load_graph(specs, lambda name, inputs: NodeContext(name, BOUNDS, inputs, ArtifactStore({})))


GOOD = {
    "answer": spec(Encode, "intent", "relevance"),
    "intent": spec(Score, "prompt", labels=["buy", "browse"]),
    "relevance": spec(Score, "prompt"),
    "prompt": spec(Tokenize),
}


def test_nodes_are_made_in_order_and_know_their_inputs() -> None:
    graph = load(GOOD)
    assert graph.sink == "answer"
    assert next(iter(graph.nodes)) == "prompt"
    assert list(graph.nodes)[-1] == "answer"
    assert graph.names(Stage.PREPARE) == ("prompt",)
    answer = graph.nodes["answer"]
    assert isinstance(answer, Encode)
    assert answer.sources == {
        "intent": Source(Scores, ("buy", "browse")),
        "relevance": Source(Scores, ("a",)),
    }


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"answer": spec(Encode, "intent", "relevanse")}, "nodes.answer.inputs", "did you mean 'relevance'"),
        (
            {"answer": spec(Encode, "prompt")},
            "nodes.answer.inputs",
            "gives Tokens, but 'answer' takes Scores or Rows",
        ),
        ({"intent": spec(Score)}, "nodes.intent.inputs", "gives Samples, but 'intent' takes Tokens"),
        ({"intent": spec(Score, "prompt", "relevance")}, "nodes.intent.inputs", "takes 1 of them"),
        ({"answer": spec(Encode, "intent", "relevance", "prompt")}, "nodes.answer.inputs", "takes 1 to 2"),
        (
            {"early": spec(Early, "intent")},
            "nodes.early.inputs",
            "runs before batching and cannot read 'intent'",
        ),
        ({"extra": spec(Embed, "prompt")}, "nodes.extra", "unused"),
        ({"extra": spec(Tokenize)}, "nodes.extra", "unused"),
        ({"extra": spec(Encode, "intent")}, "nodes", "join them in one encoder"),
        ({"prompt": spec(Tokenize, "prompt")}, "nodes.prompt.inputs", "a cycle: prompt reads prompt"),
        ({"intent": spec(Score, "prompt", label=["x"])}, "nodes.intent.label", "did you mean 'labels'"),
        ({"intent": spec(Score, "prompt", labels="x")}, "nodes.intent.labels", "list"),
        ({"intent": spec(Score, "prompt", normalize="yes")}, "nodes.intent.normalize", "true or false"),
        ({"intent": spec(Score, "prompt", labels=["bad"])}, "nodes.intent.labels", "is bad"),
        ({"intent": spec(Score, "prompt", labels=["huge"])}, "bounds.samples", "too much"),
    ],
)
def test_mistakes_are_named(changes: dict[str, NodeSpec], key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load({**GOOD, **changes})
    assert caught.value.key == key


def test_a_node_must_say_what_it_produces() -> None:
    class Silent(Step):
        consumes = (Samples,)

    with pytest.raises(ConfigError, match="does not say what it produces"):
        load({"silent": spec(Silent)})


def test_a_graph_without_rows_ends_nowhere() -> None:
    with pytest.raises(ConfigError, match="gives Scores, which no node reads") as caught:
        load({"prompt": spec(Tokenize), "intent": spec(Score, "prompt")})
    assert caught.value.key == "nodes.intent"
