"""Lanes: the threads that run an artifact's compiled package, one runner each, one copy of the weights.

A runner belongs to its lane's thread, so `forward` and `run` may only be called inside work submitted to
`executor`. On CUDA each lane has a stream of its own and waits for it before it returns: what comes back is
on the CPU and owned by the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from torch import Tensor

from engine.packed import PackedBatch

Head = Callable[[Tensor], tuple[Tensor, ...]]


class LanePool:
    """`num_lanes` lanes behind one executor."""

    executor: Executor
    num_lanes: int

    def forward(self, packed: PackedBatch) -> Tensor:
        """Hidden states after the final norm of each real sample's last token: float32[num_samples, H], CPU."""
        raise NotImplementedError

    def run(self, packed: PackedBatch, head: Head) -> tuple[Tensor, ...]:
        """`head` applied to those hidden states on the lane's device and stream, in the artifact's dtype.

        Its tensors come back on the CPU, floating ones as float32. On CUDA this spares copying [S, H] and
        multiplies a large head where it is fast.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Finish what was submitted, then free the runners; idempotent."""
        raise NotImplementedError
