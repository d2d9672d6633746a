"""Buckets: every batch within the bounds has one, and padding on the benchmark's mix stays under 6%."""

from __future__ import annotations

import math

import pytest
import torch

from engine.packed import BatchBounds, Segment, pack, pack_segments
from engine.runtime.bucket_inputs import BucketInputs
from engine.runtime.buckets import Bucket, make_buckets


@pytest.mark.parametrize("capacity", [4096, 8192])
def test_padding_of_the_benchmarks_mix(capacity: int) -> None:
    """Requests of 15 samples, log-normal with mean 150 and at most 500 tokens, as many as fit."""
    generator = torch.Generator().manual_seed(0)
    buckets = make_buckets(BatchBounds(256, capacity, 512))
    tokens = padded = 0
    for in_flight in range(1, 9):
        for _ in range(200):
            drawn = torch.empty(in_flight * 15).log_normal_(math.log(150) - 0.18, 0.6, generator=generator)
            total = int(drawn.clamp(16, 500).int().sum())
            if total > capacity:
                continue
            tokens += total
            padded += buckets.choose(total, in_flight * 15).tokens
    assert padded / tokens - 1 < 0.06


@pytest.mark.parametrize(
    "bounds", [BatchBounds(1, 1, 1), BatchBounds(3, 100, 50), BatchBounds(256, 8192, 512)]
)
def test_every_batch_within_the_bounds_has_a_bucket(bounds: BatchBounds) -> None:
    buckets = make_buckets(bounds)
    for tokens in range(1, bounds.tokens + 1, 7):
        bucket = buckets.choose(tokens, min(tokens, bounds.samples))
        assert bucket.tokens >= tokens
        assert bucket.samples >= min(tokens, bounds.samples)
    assert buckets.tokens[-1] >= bounds.tokens
    with pytest.raises(ValueError, match="tokens = 9000: over the largest bucket"):
        buckets.choose(9000, 1)


def test_no_graph_for_more_samples_than_tokens() -> None:
    assert all(
        bucket.samples <= 4 * bucket.tokens for bucket in make_buckets(BatchBounds(1024, 8192, 512)).all()
    )


def test_inputs_of_a_bucket_hold_the_batch_and_padding_of_no_sample() -> None:
    bucket = Bucket(96, 16)
    memory = torch.full((BucketInputs.num_bytes(bucket),), 7, dtype=torch.uint8)
    inputs = BucketInputs.over(memory, bucket)
    packed = pack([[1, 2, 3], [4, 5]])
    inputs.fill(packed)
    assert inputs.input_ids.tolist() == [1, 2, 3, 4, 5] + [0] * 91
    assert inputs.positions.tolist() == [0, 1, 2, 0, 1] + [0] * 91
    assert inputs.cu_seqlens.tolist() == [0, 3] + [5] * 15
    assert inputs.prefixes.tolist() == [[-1, 0]] * 16
    views = (inputs.positions, inputs.cu_seqlens, inputs.prefixes)
    assert all(x.data_ptr() % 16 == memory.data_ptr() % 16 for x in views)


def test_prefixes_are_segments_of_a_bucket() -> None:
    bucket = Bucket(96, 16)
    inputs = BucketInputs.over(torch.zeros(BucketInputs.num_bytes(bucket), dtype=torch.uint8), bucket)
    shared = [Segment([5], 2, 2, 1), Segment([6, 7], 2, 2, 1), Segment([4], 1, -1, 1)]
    inputs.fill(pack_segments(shared, 2))
    assert inputs.cu_seqlens.tolist() == [0, 1, 3] + [4] * 14
    assert inputs.positions.tolist() == [2, 2, 3, 1] + [0] * 92
    assert inputs.prefixes.tolist() == [[2, 1], [2, 1], [-1, 1]] + [[-1, 0]] * 13
    inputs.fill(pack([[1, 2]]))
    assert inputs.prefixes.tolist() == [[-1, 0]] * 16
