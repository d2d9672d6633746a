"""What is shared, and how it is packed: every sample can be read back, whatever they have in common."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.packed import PackedBatch
from engine.prefixes import ConstantPrefix, Ids, Prefixes, Rules, Saved, Split, common_length, split

ALWAYS = Rules(1, 1, 1)
IDS = st.lists(st.integers(0, 3), min_size=1, max_size=12).map(tuple)  # few ids: much in common
REQUEST = st.lists(IDS, min_size=1, max_size=5)
RULES = st.sampled_from([ALWAYS, Rules(), Rules(3, 2, 4), Rules(1, 100, 1)])


def constant_prefix(ids: Ids) -> ConstantPrefix:
    return ConstantPrefix(ids, torch.zeros(1, 2, max(2, len(ids)), 1, 1))


def read_back(packed: PackedBatch, constant: Ids) -> list[list[int]]:
    """Samples of a batch, by what their last token can see; positions are checked on the way."""
    borders = packed.cu_seqlens.tolist()
    none = torch.tensor([[-1, 0]] * (len(borders) - 1))
    before = (none if packed.prefixes is None else packed.prefixes).tolist()

    def segment(index: int) -> tuple[list[int], list[int]]:
        rows = slice(borders[index], borders[index + 1])
        return packed.input_ids[rows].tolist(), packed.positions[rows].tolist()

    samples = []
    for index in range(packed.num_samples):
        parent, count = before[index]
        ids, positions = list(constant[:count]), list(range(count))
        if parent >= 0:
            assert packed.num_samples <= parent < packed.num_segments
            assert before[parent] == [-1, count]
        for place in (parent, index) if parent >= 0 else (index,):
            more, at = segment(place)
            ids, positions = ids + more, positions + at
        assert positions == list(range(len(ids)))
        samples.append(ids)
    return samples


@given(st.lists(REQUEST, min_size=1, max_size=3), IDS, RULES)
def test_every_sample_is_whole(requests: list[list[Ids]], constant: Ids, rules: Rules) -> None:
    packed, saved = Prefixes(constant_prefix(constant), rules).pack(requests)
    samples = [sample for request in requests for sample in request]
    assert read_back(packed, constant) == [list(sample) for sample in samples]
    assert packed.num_samples == len(samples)
    assert packed.max_seqlen == max(map(len, samples))
    spared = sum(each.constant + each.request for each in saved)
    assert packed.num_tokens + spared == sum(map(len, samples))
    counted = [Prefixes(constant_prefix(constant), rules).count(request) for request in requests]
    assert packed.num_tokens == sum(tokens for tokens, _ in counted)
    assert packed.num_segments == sum(segments for _, segments in counted)
    assert int(packed.cu_seqlens[packed.num_segments]) == packed.num_tokens
    assert (packed.cu_seqlens.diff() > 0).all()


@given(st.lists(REQUEST, min_size=1, max_size=3))
def test_without_rules_nothing_is_shared(requests: list[list[Ids]]) -> None:
    packed, saved = Prefixes(constant_prefix((0, 1, 2)), None).pack(requests)
    assert packed.prefixes is None
    assert packed.constant is None
    assert set(saved) == {Saved()}
    assert packed.num_tokens == sum(len(sample) for request in requests for sample in request)
    for request in requests:
        assert Prefixes(constant_prefix((0, 1, 2)), None).count(request) == (
            sum(map(len, request)),
            len(request),
        )


@pytest.mark.parametrize(
    ("samples", "constant", "expected"),
    [
        ([(1, 2, 3)], (), Split((0,))),
        ([(1, 2, 3), (1, 2, 4)], (), Split((0, 0), 2)),
        ([(1, 2, 3), (4, 2, 3)], (), Split((0, 0))),
        ([(1, 2, 3), (1, 2, 3)], (), Split((0, 0), 2)),  # all alike: the last token stays with each
        ([(1, 2), (1, 2, 3, 4)], (), Split((0, 0), 1)),
        ([(1,), (1, 2)], (), Split((0, 0))),
        ([(1, 2, 3)], (1, 2, 3), Split((2,))),
        ([(1, 2, 3)], (1, 2, 9), Split((2,))),  # a tokenizer may merge across the border
        ([(9, 2, 3)], (1, 2), Split((0,))),
        ([(1, 2, 3), (1, 5, 6)], (1, 2), Split((2, 1))),
        ([(1, 2, 3, 4, 5), (1, 2, 3, 4, 6)], (1, 2), Split((2, 2), 4)),
        ([(1, 2, 3, 4, 5), (1, 2, 3, 4, 6)], (1, 2, 7), Split((2, 2), 4)),
        ([(1, 2, 3), (1, 2, 4)], (1, 2), Split((2, 2))),
        ([(1,), (1, 2, 3)], (1, 2), Split((0, 2))),
    ],
)
def test_split(samples: list[Ids], constant: Ids, expected: Split) -> None:
    assert split(samples, constant, ALWAYS) == expected


def test_what_does_not_pay_is_computed_with_each_sample() -> None:
    rules = Rules(min_constant=3, min_shared=4, min_saved=8)
    shared = (1, 2, 3, 4)
    assert split([(*shared, 5), (*shared, 6)], (), rules) == Split((0, 0))  # saves 4 tokens
    assert split([(*shared, i) for i in range(5, 8)], (), rules) == Split((0, 0, 0), 4)
    assert split([(1, 2, 3, 5)] * 9, (), rules) == Split((0,) * 9)  # shares 3
    assert split([(*shared, 5)], (1, 2), rules) == Split((0,))
    assert split([(*shared, i) for i in range(5, 8)], (1, 2), rules) == Split((0, 0, 0), 4)


def test_a_batch_without_room_for_more_segments_computes_the_rest_whole() -> None:
    request = [(1, 2, 3), (1, 2, 4)]
    for most, shared in ((4, 0), (5, 1), (6, 2), (None, 2)):
        packed, saved = Prefixes(None, ALWAYS, most).pack([request, request])
        assert packed.num_segments == 4 + shared
        assert saved == [Saved(request=2)] * shared + [Saved()] * (2 - shared)
        assert read_back(packed, ()) == [list(sample) for sample in request] * 2


def test_saved_tokens_by_kind() -> None:
    assert Split((2, 2, 2), 7).saved == Saved(constant=6, request=10)
    assert Split((2, 1)).saved == Saved(constant=3)
    assert Saved(1, 2) + Saved(3, 4) == Saved(4, 6)


def test_common_length() -> None:
    assert common_length((1, 2, 3), (1, 2, 4, 5)) == 2
    assert common_length((), (1,)) == 0
    assert common_length((1, 2), (1, 2)) == 2
