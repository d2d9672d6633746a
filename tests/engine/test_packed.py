"""Packing: positions and borders, the padding sample, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.packed import BatchBounds, pack

SAMPLES = st.lists(st.lists(st.integers(0, 2**31), min_size=1, max_size=9), min_size=1, max_size=9)


def test_two_samples() -> None:
    packed = pack([[7, 8, 9], [5]])
    assert packed.input_ids.tolist() == [7, 8, 9, 5]
    assert packed.positions.tolist() == [0, 1, 2, 0]
    assert packed.cu_seqlens.tolist() == [0, 3, 4]
    assert (packed.num_samples, packed.num_tokens, packed.max_seqlen) == (2, 4, 3)
    assert [x.dtype for x in (packed.input_ids, packed.positions, packed.cu_seqlens)] == [
        torch.int64,
        torch.int64,
        torch.int32,
    ]


@pytest.mark.parametrize("sample", [[7], [7, 8, 9]])
def test_one_sample_gets_a_padding_sample_that_is_not_counted(sample: list[int]) -> None:
    packed = pack([sample])
    assert packed.input_ids[: len(sample)].tolist() == sample
    assert packed.cu_seqlens.tolist() == [0, len(sample), len(sample) + 1]
    assert packed.positions[-1] == 0
    assert (packed.num_samples, packed.num_tokens) == (1, len(sample))


@given(SAMPLES)
def test_unpacking_gives_the_samples_back(samples: list[list[int]]) -> None:
    packed = pack(samples)
    borders = packed.cu_seqlens.tolist()
    assert len(borders) >= 3
    assert borders[-1] == len(packed.input_ids)
    for i, sample in enumerate(samples):
        assert packed.input_ids[borders[i] : borders[i + 1]].tolist() == sample
        assert packed.positions[borders[i] : borders[i + 1]].tolist() == list(range(len(sample)))


def test_tuples_are_samples_too() -> None:
    assert pack(((1, 2), (3,))).input_ids.tolist() == [1, 2, 3]


def test_empty_input_is_refused() -> None:
    with pytest.raises(ValueError, match="samples: none"):
        pack([])
    with pytest.raises(ValueError, match=r"samples\[1\]: no tokens"):
        pack([[1], [], [2]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0, 8, 8), "samples = 0"),
        ((1, 0, 1), "tokens = 0"),
        ((1, 8, 0), "tokens_per_sample = 0"),
        ((1, 8, 9), "9.*8"),
    ],
)
def test_bounds_that_make_no_sense(values: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BatchBounds(*values)


def test_packing_makes_no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation of torch takes longer than packing does, and lets others have the interpreter."""

    def fail(_: object) -> None:
        raise AssertionError("a tensor was made")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "from_numpy", fail)
        packed = pack([[7, 8, 9], [5]])
    assert packed.input_ids.tolist() == packed.token_ids.tolist() == [7, 8, 9, 5]
