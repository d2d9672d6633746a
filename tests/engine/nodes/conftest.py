"""A store with the two tiny artifacts, and a way to make one node as a graph would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.bounds import Bounds
from engine.graph import Node, NodeContext, Source
from engine.nodes.registry import find_kind
from engine.options import read_options
from engine.store import ArtifactStore
from engine.values import Samples

MakeNode = Callable[..., Any]
BOUNDS = Bounds(samples=8, tokens_per_sample=64, tokens_per_request=256)


@pytest.fixture(scope="session")
def artifacts(tiny_causal: Any, tiny_classifier: Any) -> Iterator[ArtifactStore]:
    store = ArtifactStore({"causal": tiny_causal.artifact, "classifier": tiny_classifier.artifact})
    yield store
    store.close()


@pytest.fixture
def make_node(artifacts: ArtifactStore) -> MakeNode:
    def make(
        kind: str,
        inputs: Mapping[str, Source] | None = None,
        bounds: Bounds = BOUNDS,
        directory: Path = Path(),
        **options: object,
    ) -> Node:
        node_class = find_kind(kind)
        context = NodeContext("node", bounds, inputs or {"request": Source(Samples)}, artifacts, directory)
        return node_class(read_options(node_class.Options, options), context)

    return make
