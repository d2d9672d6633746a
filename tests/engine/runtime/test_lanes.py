"""Lanes of a compiled package: alike, side by side, over one copy of the weights; misuse is told apart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.artifact import Artifact
from engine.packed import BatchBounds, PackedBatch, pack
from engine.runtime.lanes import LanePool

SAMPLES = [[5, 6, 7], [8], list(range(40, 140)), [300, 2]]
WAIT_S = 60


@pytest.fixture(scope="module")
def artifact(tiny_causal: Any) -> Artifact:
    return Artifact.open(tiny_causal.artifact)


@pytest.fixture(scope="module")
def pool(artifact: Artifact) -> Iterator[LanePool]:
    lanes = artifact.open_lanes(2)
    yield lanes
    lanes.close()


def forward(pool: LanePool, samples: list[list[int]]) -> Tensor:
    return pool.executor.submit(pool.forward, pack(samples)).result(WAIT_S)


def on_every_lane(pool: LanePool, packed: PackedBatch) -> list[Tensor]:
    """The batch once on each lane: no lane begins its second before all have begun their first."""
    barrier = threading.Barrier(pool.num_lanes)

    def run() -> Tensor:
        barrier.wait(WAIT_S)
        return pool.forward(packed)

    return [job.result(WAIT_S) for job in [pool.executor.submit(run) for _ in range(pool.num_lanes)]]


def test_hidden_states(pool: LanePool, artifact: Artifact) -> None:
    hidden = forward(pool, SAMPLES)
    assert hidden.shape == (4, artifact.manifest.architecture["hidden_size"])
    assert hidden.dtype == torch.float32
    assert hidden.device.type == "cpu"


def test_a_sample_does_not_depend_on_its_neighbours(pool: LanePool) -> None:
    together = forward(pool, SAMPLES)
    alone = torch.cat([forward(pool, [sample]) for sample in SAMPLES])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("samples", [[[7]], [[7, 8]], [[7], [7]], [[1]] * 32, [[9] * 512]])
def test_smallest_and_largest_batches(pool: LanePool, samples: list[list[int]]) -> None:
    assert forward(pool, samples).shape[0] == len(samples)


def test_batch_at_its_bounds(pool: LanePool, artifact: Artifact) -> None:
    length = artifact.bounds.tokens // artifact.bounds.samples
    hidden = forward(pool, [[i + 1] * length for i in range(artifact.bounds.samples)])
    assert hidden.isfinite().all()


def test_lanes_give_the_same(pool: LanePool) -> None:
    first, second = on_every_lane(pool, pack(SAMPLES))
    assert torch.equal(first, second)


def test_lanes_share_one_copy_of_the_weights(tiny_causal: Any) -> None:
    """Changed in place, a tensor that was handed in changes every lane's result: none has a copy."""
    weights = load_file(tiny_causal.artifact / "weights.safetensors")
    opened = Artifact.open(tiny_causal.artifact)
    pool = LanePool(
        tiny_causal.artifact / "model.pt2",
        weights,
        opened.bounds,
        vocab_size=len(weights["embed_tokens.weight"]),
        device=torch.device("cpu"),
        lanes=3,
        threads=1,
        no_constant=opened.no_constant,
    )
    try:
        before = forward(pool, SAMPLES)
        weights["norm.weight"].mul_(2)
        for after in on_every_lane(pool, pack(SAMPLES)):
            torch.testing.assert_close(after, before * 2)
    finally:
        pool.close()


def test_threads_of_a_lane(artifact: Artifact) -> None:
    before = torch.get_num_threads()
    pool = artifact.open_lanes(1, threads=3)
    try:
        assert pool.executor.submit(torch.get_num_threads).result(WAIT_S) == 3
        assert torch.get_num_threads() == before
    finally:
        pool.close()


def test_head_runs_on_the_lane(pool: LanePool, artifact: Artifact) -> None:
    weight = artifact.head_weight
    assert weight is not None
    seen = []

    def head(hidden: Tensor) -> tuple[Tensor, ...]:
        seen.append(threading.current_thread().name)
        best = (hidden @ weight.T).topk(3)
        return best.values, best.indices

    values, indices = pool.executor.submit(pool.run, pack(SAMPLES), head).result(WAIT_S)
    assert values.shape == indices.shape == (4, 3)
    assert indices.dtype == torch.int64
    assert seen[0].startswith("lane-")


def test_results_belong_to_the_caller(pool: LanePool) -> None:
    first = forward(pool, SAMPLES)
    kept = first.clone()
    forward(pool, [[3, 4, 5], [6], [7] * 100, [8, 9]])
    assert torch.equal(first, kept)


def test_not_a_lanes_thread(pool: LanePool) -> None:
    with pytest.raises(RuntimeError, match="not a lane's thread"):
        pool.forward(pack(SAMPLES))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([[1] * 513], "tokens_per_sample = 513: over the artifact's 512"),
        ([[1]] * 33, "samples = 33: over the artifact's 32"),
        ([[1] * 500] * 5, "tokens = 2500: over the artifact's 2048"),
        ([[1, 10**6]], "token id 1000000: not in the vocabulary"),
        ([[1, -1]], "token id -1: not in the vocabulary"),
    ],
)
def test_batch_that_does_not_fit(pool: LanePool, samples: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        forward(pool, samples)
    assert forward(pool, SAMPLES).isfinite().all()  # the lane goes on


@pytest.mark.parametrize(("lanes", "threads", "message"), [(0, 1, "lanes = 0"), (1, 0, "threads = 0")])
def test_counts(artifact: Artifact, lanes: int, threads: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        artifact.open_lanes(lanes, threads)


def test_package_that_cannot_be_opened(tmp_path: Path) -> None:
    before = threading.active_count()
    (tmp_path / "model.pt2").write_bytes(b"PK\x05\x06" + bytes(18))
    with pytest.raises(RuntimeError):
        LanePool(
            tmp_path / "model.pt2",
            {},
            BatchBounds(2, 8, 8),
            vocab_size=8,
            device=torch.device("cpu"),
            lanes=2,
            threads=1,
        )
    assert threading.active_count() == before


def test_weights_that_lack_a_constant_fail_at_the_start(tiny_causal: Any) -> None:
    weights = load_file(tiny_causal.artifact / "weights.safetensors")
    del weights["norm.weight"]
    with pytest.raises(KeyError, match=r"norm\.weight"):
        LanePool(
            tiny_causal.artifact / "model.pt2",
            weights,
            BatchBounds(2, 8, 8),
            vocab_size=8,
            device=torch.device("cpu"),
            lanes=3,
            threads=1,
        )


def test_close_finishes_what_was_submitted(artifact: Artifact) -> None:
    pool = artifact.open_lanes(1)
    jobs = [pool.executor.submit(pool.forward, pack(SAMPLES)) for _ in range(5)]
    pool.close()
    pool.close()
    assert all(job.done() and job.result().shape[0] == 4 for job in jobs)
