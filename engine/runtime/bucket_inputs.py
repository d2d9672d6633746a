"""One bucket's inputs in one piece of memory, so that a single copy brings them to the device.

The owner of the memory fills it; views only. Filling is Python's part of a launch, so it is a handful of
plain copies of bytes: operations of torch cost microseconds each, and everyone lets another thread have the
interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.packed import NO_PREFIX, PackedBatch
from engine.runtime.buckets import Bucket
from engine.runtime.capture import wide


@dataclass(frozen=True)
class BucketInputs:
    """Views of one memory, host's or device's, as a bucket lays it out."""

    input_ids: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    prefixes: Tensor

    @classmethod
    def over(cls, memory: Tensor, bucket: Bucket) -> BucketInputs:
        width, borders = wide(8 * bucket.tokens), 4 * (bucket.samples + 1)
        ids, positions = (memory[i * width : i * width + 8 * bucket.tokens] for i in (0, 1))
        ends = memory[2 * width : 2 * width + borders]
        start = 2 * width + wide(borders)
        before = memory[start : start + 8 * bucket.samples].view(torch.int32).view(bucket.samples, 2)
        return cls(ids.view(torch.int64), positions.view(torch.int64), ends.view(torch.int32), before)

    @staticmethod
    def num_bytes(bucket: Bucket) -> int:
        return 2 * wide(8 * bucket.tokens) + wide(4 * (bucket.samples + 1)) + 8 * bucket.samples

    def fill(self, packed: PackedBatch) -> None:
        """The real segments; the rest of the bucket is token 0 of no segment. On the host only."""
        self._host.fill(packed)

    @cached_property
    def _host(self) -> _HostViews:
        return _HostViews(self)


class _HostViews:
    """The same memory as bytes, and what padding is made of."""

    def __init__(self, inputs: BucketInputs) -> None:
        tokens, samples = inputs.input_ids.shape[0], inputs.prefixes.shape[0]
        self._ids, self._positions = _bytes(inputs.input_ids.numpy()), _bytes(inputs.positions.numpy())
        self._prefixes, self._ends = _bytes(inputs.prefixes.numpy()), inputs.cu_seqlens.numpy()
        self._zeros, self._none = _padding(tokens, samples)

    def fill(self, packed: PackedBatch) -> None:
        filled, segments = 8 * packed.num_tokens, packed.num_segments
        for ours, theirs in ((self._ids, packed.token_ids), (self._positions, packed.token_positions)):
            ours[:filled] = _bytes(theirs)[:filled]
            ours[filled:] = self._zeros[filled:]
        self._ends[: segments + 1] = packed.borders[: segments + 1]
        self._ends[segments + 1 :] = packed.num_tokens
        with_prefix = 0
        if packed.prefixes is not None:
            with_prefix = 8 * segments
            self._prefixes[:with_prefix] = _bytes(packed.prefixes.numpy())[:with_prefix]
        self._prefixes[with_prefix:] = self._none[with_prefix:]


@cache  # the same for every lane
def _padding(tokens: int, samples: int) -> tuple[memoryview, memoryview]:
    """Tokens of zero, and segments without prefixes."""
    return memoryview(bytes(8 * tokens)), np.array([NO_PREFIX] * samples, dtype=np.int32).data.cast("B")


def _bytes(x: NDArray[Any]) -> memoryview:
    return x.data.cast("B")
