"""Prefixes through a compiled package: what whole samples give, and transformers one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.artifact import Artifact
from engine.packed import PackedBatch, pack
from engine.prefixes import ConstantPrefix, Ids, Prefixes, Rules
from engine.runtime.lanes import LanePool

ALWAYS = Rules(1, 1, 1)
WAIT_S = 60
TOLERANCE = 1e-4  # of hidden states around 1: two orders of summation in float32
CONSTANT = tuple(range(20, 60))
INSTRUCTION = tuple(range(100, 140))
# what each case's samples are made of: name -> requests
CASES: dict[str, list[list[Ids]]] = {
    "none share": [[(5, 6, 7), (8,), (9, 9)]],
    "all identical": [[INSTRUCTION] * 5],
    "one sample": [[(*CONSTANT, 5)]],
    "all but one token": [[(*INSTRUCTION, i) for i in range(4)]],
    "several requests": [
        [(*INSTRUCTION, 3), (*INSTRUCTION, *range(200, 230))],
        [(7, 8), (9,)],
        [(*CONSTANT, *INSTRUCTION, 3, 4), (*CONSTANT, *INSTRUCTION, 9)],
        [(*CONSTANT, 3), (*CONSTANT[:20], 9, 9, 9), CONSTANT],
    ],
    "lengths of one": [[(5,), (5,)], [(CONSTANT[0],), (CONSTANT[0], CONSTANT[1])]],
    "many": [[(*CONSTANT, *INSTRUCTION, i, i + 1) for i in range(15)]],
}
REQUESTS = st.lists(
    st.tuples(
        st.integers(0, len(CONSTANT)),
        st.lists(st.integers(0, 300), max_size=20),
        st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=12), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=3,
)


@pytest.fixture(scope="module")
def artifact(tiny_causal: Any) -> Artifact:
    return Artifact.open(tiny_causal.artifact)


@pytest.fixture(scope="module")
def pool(artifact: Artifact) -> Iterator[LanePool]:
    lanes = artifact.open_lanes(1)
    yield lanes
    lanes.close()


@pytest.fixture(scope="module")
def constant(artifact: Artifact) -> ConstantPrefix:
    return artifact.constant_prefix(CONSTANT)


def forward(pool: LanePool, packed: PackedBatch) -> Tensor:
    return pool.executor.submit(pool.forward, packed).result(WAIT_S)


def whole(requests: list[list[Ids]]) -> PackedBatch:
    return pack([sample for request in requests for sample in request])


@pytest.mark.parametrize("case", CASES)
def test_results_of_the_whole_samples(pool: LanePool, constant: ConstantPrefix, case: str) -> None:
    requests = CASES[case]
    packed, _ = Prefixes(constant, ALWAYS).pack(requests)
    hidden = forward(pool, packed)
    torch.testing.assert_close(hidden, forward(pool, whole(requests)), atol=TOLERANCE, rtol=0)


def test_transformers_one_at_a_time(pool: LanePool, constant: ConstantPrefix, tiny_causal: Any) -> None:
    from transformers import AutoModelForCausalLM

    requests = CASES["several requests"]
    packed, saved = Prefixes(constant, ALWAYS).pack(requests)
    assert [each.constant > 0 for each in saved] == [False, False, True, True]
    assert [each.request > 0 for each in saved] == [True, False, True, False]
    model = AutoModelForCausalLM.from_pretrained(tiny_causal.checkpoint, dtype=torch.float32).eval()
    with torch.inference_mode():
        rows = [
            model.model(torch.tensor([sample])).last_hidden_state[0, -1]
            for request in requests
            for sample in request
        ]
    torch.testing.assert_close(forward(pool, packed), torch.stack(rows), atol=TOLERANCE, rtol=0)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=REQUESTS)
def test_any_sharing(pool: LanePool, constant: ConstantPrefix, drawn: list[Any]) -> None:
    requests = [[(*CONSTANT[:n], *shared, *own) for own in owns] for n, shared, owns in drawn]
    packed, _ = Prefixes(constant, ALWAYS).pack(requests)
    hidden = forward(pool, packed)
    torch.testing.assert_close(hidden, forward(pool, whole(requests)), atol=TOLERANCE, rtol=0)


def test_prefixes_at_the_bounds(pool: LanePool, artifact: Artifact) -> None:
    """As many segments as there can be: two samples a prefix."""
    num_samples = artifact.bounds.samples
    requests = [[(i, 5, 6), (i, 5, 7)] for i in range(num_samples // 2)]
    packed, _ = Prefixes(None, ALWAYS).pack(requests)
    assert packed.num_segments == artifact.bounds.segments
    torch.testing.assert_close(forward(pool, packed), forward(pool, whole(requests)), atol=TOLERANCE, rtol=0)


def test_a_package_without_prefixes_refuses_them(pool: LanePool, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, _ = Prefixes(None, ALWAYS).pack([[(1, 2, 3), (1, 2, 4)]])
    monkeypatch.setattr(pool, "_no_constant", None)
    with pytest.raises(ValueError, match="takes none"):
        forward(pool, packed)
