"""The whole search against enumeration and against its own definition, on models that are tables."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from engine.beam.legal import LegalTensors
from table_models import Found, NextLogits, TokenIds, plain_search, random_logits, run_table

PROMPTS: list[TokenIds] = [(1, 2), (3,), (0, 0, 4)]


def check(found: Found, expected: list[tuple[TokenIds, float, bool]]) -> None:
    assert found.tokens == [sequence for sequence, _, _ in expected]
    assert found.scores == pytest.approx([score for _, score, _ in expected], abs=1e-4)


def make_trie(sequences: list[TokenIds]) -> tuple[LegalTensors, dict[TokenIds, int]]:
    """Level by level, tokens ascending; and the node of every prefix."""
    depth = max(map(len, sequences))
    nodes: dict[TokenIds, int] = {(): 0}
    for length in range(1, depth + 1):
        for prefix in sorted({each[:length] for each in sequences if len(each) >= length}):
            nodes[prefix] = len(nodes)
    edges = {prefix: [each for each in nodes if each[:-1] == prefix and each] for prefix in nodes}
    offsets = [0]
    for prefix in nodes:
        offsets.append(offsets[-1] + len(edges[prefix]))
    last = [each for prefix in nodes for each in edges[prefix]]
    degrees = [
        max(len(edges[prefix]) for prefix in nodes if len(prefix) == level) for level in range(depth + 1)
    ]
    tensors = LegalTensors(
        torch.tensor(offsets, dtype=torch.int32),
        torch.tensor([each[-1] for each in last], dtype=torch.int32),
        torch.tensor([nodes[each] for each in last], dtype=torch.int32),
        tuple(degrees),
    )
    return tensors, nodes


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_wide_enough_it_finds_the_best_of_all_sequences(steps: int) -> None:
    """Width V^steps keeps every prefix: nothing is lost, so the answer is that of enumeration."""
    vocabulary, logits = 5, random_logits(5)
    found, _ = run_table(PROMPTS, logits, vocabulary**steps, steps)
    for prompt, mine in zip(PROMPTS, found, strict=True):
        every = []
        for sequence in product(range(vocabulary), repeat=steps + 1):
            rows = [logits((*prompt, *sequence[:n])).log_softmax(-1)[sequence[n]] for n in range(steps + 1)]
            every.append((sequence, float(torch.stack(rows).sum()), False))
        every.sort(key=lambda each: -each[1])
        check(mine, every[: vocabulary**steps])


@pytest.mark.parametrize("levels", [None, 1, 2, 3])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_equals_its_definition(width: int, levels: int | None) -> None:
    """With few levels most candidates tie: order is by (score, parent, token)."""
    logits = random_logits(23, levels=levels)
    found, failed = run_table(PROMPTS, logits, width, 4)
    for prompt, mine in zip(PROMPTS, found, strict=True):
        check(mine, plain_search(prompt, logits, width, 4))
        assert len(set(mine.tokens)) == len(mine.tokens)
    assert not bool(failed.any())


def test_width_one_is_greedy() -> None:
    logits = random_logits(40)
    found, _ = run_table(PROMPTS, logits, 1, 5)
    for prompt, mine in zip(PROMPTS, found, strict=True):
        sequence: TokenIds = ()
        for _ in range(6):
            sequence = (*sequence, int(logits((*prompt, *sequence)).argmax()))
        assert mine.tokens == [sequence]


def test_a_smaller_width_in_a_wide_batch_is_a_search_of_that_width() -> None:
    logits = random_logits(30)
    found, _ = run_table(PROMPTS, logits, 16, 3, widths=[1, 5, 16])
    for prompt, width, mine in zip(PROMPTS, (1, 5, 16), found, strict=True):
        alone, _ = run_table([prompt], logits, width, 3)
        assert mine == alone[0]
        assert len(mine.tokens) == width


@pytest.mark.parametrize("levels", [None, 3])
@pytest.mark.parametrize("ends", [(2,), (0, 5, 6)])
def test_a_finished_beam_keeps_its_score_and_its_place(ends: tuple[int, ...], levels: int | None) -> None:
    logits = random_logits(9, levels=levels)
    found, _ = run_table(PROMPTS, logits, 7, 4, end_tokens=ends)
    for prompt, mine in zip(PROMPTS, found, strict=True):
        expected = plain_search(prompt, logits, 7, 4, ends=ends)
        check(mine, expected)
        assert mine.closed == [finished for *_, finished in expected]
        assert any(len(each) < 5 for each in mine.tokens)
        assert all(set(each[:-1]).isdisjoint(ends) for each in mine.tokens)


def test_vocabulary_slices_are_normalised_within() -> None:
    logits, slices = random_logits(50), ((0, 10), (10, 30), (30, 50))
    found, _ = run_table(PROMPTS, logits, 6, 2, slices=slices)
    for prompt, mine in zip(PROMPTS, found, strict=True):
        check(mine, plain_search(prompt, logits, 6, 2, slices=slices))
        for sequence in mine.tokens:
            assert all(begin <= token < end for token, (begin, end) in zip(sequence, slices, strict=True))


def allowed_by(sequences: list[TokenIds]):  # type: ignore[no-untyped-def]
    return lambda prefix: {
        each[len(prefix)] for each in sequences if len(each) > len(prefix) and each[: len(prefix)] == prefix
    }


def draw_items(seed: int, count: int, vocabulary: int, lengths: tuple[int, ...]) -> list[TokenIds]:
    """Distinct sequences, none the beginning of another."""
    generator = torch.Generator().manual_seed(seed)
    items: set[TokenIds] = set()
    for i in range(count):
        item = tuple(torch.randint(vocabulary, (lengths[i % len(lengths)],), generator=generator).tolist())
        if not any(item[: len(each)] == each or each[: len(item)] == item for each in items):
            items.add(item)
    return sorted(items)


@pytest.mark.parametrize("levels", [None, 2])
@pytest.mark.parametrize("width", [1, 4, 100])
def test_legal_sequences_against_a_walk_of_all(width: int, levels: int | None) -> None:
    """At width 100 every item fits: the answer is all items by score, and fewer than asked for."""
    logits = random_logits(12, levels=levels)
    items = draw_items(3, 60, 12, (3,))
    legal, nodes = make_trie(items)
    found, _ = run_table(PROMPTS, logits, width, 2, legal=legal)
    for prompt, mine in zip(PROMPTS, found, strict=True):
        check(mine, plain_search(prompt, logits, width, 2, allowed=allowed_by(items)))
        assert mine.nodes == [nodes[sequence] for sequence in mine.tokens]
        assert set(mine.tokens) <= set(items)
        if width == 100:
            assert len(mine.tokens) == len(items)


def test_items_of_different_lengths_finish_at_their_leaf() -> None:
    logits = random_logits(10)
    items = draw_items(5, 40, 10, (2, 3, 4))
    legal, nodes = make_trie(items)
    found, _ = run_table(PROMPTS, logits, 50, 3, legal=legal, end_tokens=[11])
    for prompt, mine in zip(PROMPTS, found, strict=True):
        check(mine, plain_search(prompt, logits, 50, 3, ends=[11], allowed=allowed_by(items)))
        assert sorted(mine.tokens) == items
        assert mine.nodes == [nodes[sequence] for sequence in mine.tokens]


def test_items_shorter_than_all_others_drop_out_where_nothing_finishes() -> None:
    legal, _ = make_trie([(1, 2), (3, 4, 5), (3, 4, 6)])
    (mine, *_), _ = run_table(PROMPTS, random_logits(8), 4, 2, legal=legal)
    assert sorted(mine.tokens) == [(3, 4, 5), (3, 4, 6)]


def test_legal_sequences_outside_a_slice_are_not_found() -> None:
    legal, _ = make_trie([(1, 12), (1, 25), (2, 13)])
    (mine, *_), _ = run_table(PROMPTS, random_logits(30), 4, 1, legal=legal, slices=((0, 10), (10, 20)))
    assert sorted(mine.tokens) == [(1, 12), (2, 13)]


def spoiled(logits: NextLogits, prompt: TokenIds, depth: int, value: float) -> NextLogits:
    """One prompt's logits hold `value` at one token, once its sequence is `depth` tokens long."""

    def spoil(sequence: TokenIds) -> Tensor:
        row = logits(sequence)
        if sequence[: len(prompt)] == prompt and len(sequence) == len(prompt) + depth:
            row = row.clone()
            row[3] = value
        return row

    return spoil


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_nan_and_infinity_fail_their_own_prompt(depth: int, value: float) -> None:
    logits = random_logits(11)
    clean, _ = run_table(PROMPTS, logits, 4, 2)
    found, failed = run_table(PROMPTS, spoiled(logits, PROMPTS[1], depth, value), 4, 2)
    assert failed.tolist() == [False, True, False]
    assert (found[0], found[2]) == (clean[0], clean[2])


def test_many_prompts_are_expanded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, prompts = random_logits(20), [(i,) for i in range(7)]
    whole, _ = run_table(prompts, logits, 4, 2)
    monkeypatch.setattr("engine.beam.search._LOGITS_AT_ONCE", 200)
    assert run_table(prompts, logits, 4, 2)[0] == whole
