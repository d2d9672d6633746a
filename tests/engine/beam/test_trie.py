"""The compiled prefix set against a plain dict of dicts: every node, every edge, every leaf."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.beam.trie import END, NOWHERE, Trie, TrieError, compile_trie

VOCABULARY = 6
END_TOKEN = 0

fixed = st.integers(1, 5).flatmap(
    lambda length: st.lists(
        st.lists(st.integers(0, VOCABULARY - 1), min_size=length, max_size=length), min_size=1, max_size=60
    )
)


@st.composite
def finishing(draw: Any) -> list[list[int]]:
    """Sequences of up to 4 tokens; shorter ones end in the end token, which is nowhere else but last."""
    body = st.lists(st.integers(1, VOCABULARY - 1), max_size=3)
    whole = st.tuples(st.lists(st.integers(1, VOCABULARY - 1), min_size=3, max_size=3), st.integers(0, 5))
    one = st.one_of(
        body.map(lambda tokens: [*tokens, END_TOKEN]), whole.map(lambda each: [*each[0], each[1]])
    )
    return draw(st.lists(one, min_size=1, max_size=60))


def filled(rows: list[list[int]]) -> np.ndarray[Any, np.dtype[np.int32]]:
    length = max(map(len, rows))
    return np.array([row + [END] * (length - len(row)) for row in rows], np.int32)


def check_against_dicts(rows: list[list[int]]) -> None:
    trie, order = compile_trie(filled(rows), VOCABULARY)
    plain: dict[int, Any] = {}
    for row in rows:
        place = plain
        for token in row:
            place = place.setdefault(token, {})
    legal = trie.tensors()
    assert {each.dtype for each in (legal.offsets, legal.tokens, legal.children)} == {torch.int32}
    seen: dict[tuple[int, ...], int] = {}
    degrees: dict[int, int] = {}

    def walk(node: int, prefix: tuple[int, ...], place: dict[int, Any]) -> None:
        seen[prefix] = node
        low, high = legal.offsets[node].item(), legal.offsets[node + 1].item()
        assert legal.tokens[low:high].tolist() == sorted(place)
        degrees[len(prefix)] = max(degrees.get(len(prefix), 0), len(place))
        for token, child in zip(
            legal.tokens[low:high].tolist(), legal.children[low:high].tolist(), strict=True
        ):
            walk(child, (*prefix, token), place[token])

    walk(0, (), plain)
    assert sorted(seen.values()) == list(range(trie.num_nodes))
    assert legal.max_degree == tuple(degrees[level] for level in range(len(legal.max_degree)))
    check_leaves(trie, order.tolist(), rows, seen)
    check_find(trie, rows, seen)


def check_leaves(
    trie: Trie, order: list[int], rows: list[list[int]], seen: dict[tuple[int, ...], int]
) -> None:
    """Each sequence's leaf has just its rows, in their order."""
    leaves = {seen[tuple(row)]: [i for i, other in enumerate(rows) if other == row] for row in rows}
    assert trie.leaf_nodes.tolist() == sorted(leaves)
    for node, places in enumerate(trie.rows(range(trie.num_nodes))):
        assert [order[place] for place in places] == leaves.get(node, [])


def check_find(trie: Trie, rows: list[list[int]], seen: dict[tuple[int, ...], int]) -> None:
    rng = np.random.default_rng(0)
    others = rng.integers(0, VOCABULARY, (50, max(map(len, rows)))).tolist()
    asked = [*rows, *others]
    expected = [seen.get(tuple(row), NOWHERE) for row in asked]
    assert trie.find(filled(asked)).tolist() == expected


@settings(max_examples=80, deadline=None)
@given(fixed)
def test_is_the_dict_trie_of_sequences_of_one_length(rows: list[list[int]]) -> None:
    check_against_dicts(rows)


@settings(max_examples=80, deadline=None)
@given(finishing())
def test_is_the_dict_trie_of_sequences_that_may_end_early(rows: list[list[int]]) -> None:
    check_against_dicts(rows)


def test_many_random_items_share_prefixes_and_sequences() -> None:
    rng = np.random.default_rng(7)
    check_against_dicts(rng.integers(0, VOCABULARY, (3000, 4)).tolist())


def test_tokens_of_a_large_vocabulary_that_fill_several_sorted_words() -> None:
    rng = np.random.default_rng(1)
    vocab_size = 151_936
    rows = rng.integers(vocab_size - 3, vocab_size, (500, 9), dtype=np.int32)
    trie, order = compile_trie(rows, vocab_size)
    assert (np.diff(order[trie.row_offsets[:-1]]) != 0).all()
    listed = [tuple(row) for row in rows[order].tolist()]
    assert listed == sorted(listed)
    assert [tuple(rows[order[start]].tolist()) for start in trie.row_offsets[:-1]] == sorted(set(listed))
    assert [
        rows[order[places[0]]].tolist() for places in trie.rows(trie.find(rows).tolist())
    ] == rows.tolist()


def test_more_nodes_than_int32_numbers_is_an_error_before_anything_is_wrong() -> None:
    rows = np.arange(100, dtype=np.int32).reshape(50, 2)
    assert compile_trie(rows, 100, max_nodes=101)[0].num_nodes == 101
    with pytest.raises(TrieError, match=r"50 sequences of up to 2 tokens have more than 100 nodes: int32"):
        compile_trie(rows, 100, max_nodes=100)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([[1, 2], [1, END]], "sequence 1 ends where another sequence goes on"),
        ([[1, 2], [END, END]], "sequence 1 is empty"),
    ],
)
def test_what_is_no_prefix_set_names_its_row(rows: list[list[int]], reason: str) -> None:
    with pytest.raises(TrieError, match=reason):
        compile_trie(np.array(rows, np.int32), VOCABULARY)


def test_no_sequences() -> None:
    with pytest.raises(TrieError, match="no sequences"):
        compile_trie(np.zeros((0, 3), np.int32), VOCABULARY)


def test_memory_is_twelve_bytes_a_node_and_eight_a_leaf() -> None:
    rows = np.random.default_rng(0).integers(0, 1000, (20_000, 5), dtype=np.int32)
    trie, _ = compile_trie(rows, 1000)
    assert trie.num_bytes == 12 * trie.num_nodes + 8 * len(trie.leaf_nodes)
