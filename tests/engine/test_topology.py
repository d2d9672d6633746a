"""The shape of a DAG by names alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.topology import sort_edges


@settings(deadline=None)
@given(st.data())
def test_every_node_comes_after_its_inputs(data: st.DataObject) -> None:
    names = data.draw(st.permutations([f"n{number}" for number in range(6)]))
    edges = {
        name: tuple(
            data.draw(st.lists(st.sampled_from(["request", *names[:place]]), min_size=1, unique=True))
        )
        for place, name in enumerate(names)
    }
    shuffled = {name: edges[name] for name in data.draw(st.permutations(names))}
    order = sort_edges(shuffled, "request")
    assert sorted(order) == sorted(names)
    for name in order:
        assert all(source in order[: order.index(name)] for source in edges[name] if source != "request")


def test_a_cycle_is_shown() -> None:
    edges = {"a": ("request",), "b": ("a", "d"), "c": ("b",), "d": ("c",)}
    with pytest.raises(ConfigError, match="a cycle: ") as caught:
        sort_edges(edges, "request")
    path = caught.value.reason.removeprefix("a cycle: ").split(" reads ")
    assert path[0] == path[-1]
    assert set(path) == {"b", "c", "d"}
    assert all(source in edges[reader] for reader, source in pairwise(path))


def test_a_node_that_reads_itself_is_a_cycle() -> None:
    with pytest.raises(ConfigError, match="a cycle: a reads a"):
        sort_edges({"a": ("a",)}, "request")


@pytest.mark.parametrize(
    ("edges", "key", "words"),
    [
        ({}, "nodes", "at least one node"),
        ({"request": ("request",)}, "nodes.request", "reserved"),
        ({"a b": ("request",)}, "nodes.a b", "letters"),
        ({"": ("request",)}, "nodes.", "letters"),
        ({"prompt": ("request",), "model": ("promt",)}, "nodes.model.inputs", "did you mean 'prompt'"),
        ({"model": ("xyz",)}, "nodes.model.inputs", "known: 'request', 'model'"),
        ({"a": ("request",), "b": ("a", "a")}, "nodes.b.inputs", "given twice"),
    ],
)
def test_mistakes_are_named(edges: dict[str, tuple[str, ...]], key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        sort_edges(edges, "request")
    assert caught.value.key == key
