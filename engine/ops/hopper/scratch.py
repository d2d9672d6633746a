"""The counters of the chains of a forward pass: tickets, and how many tiles are finished (csrc/chain.cuh)."""

import torch
from torch import Tensor

from engine.ops.hopper import tiles
from engine.ops.hopper.library import ClearCall, call, current_stream, pointer

PHASES = 4  # o, gate_up, down, qkv


def num_counters(rows: int) -> int:
    """Of a chain over so many rows: the next ticket; finished tiles by phase but the last, and row block."""
    row_blocks = (rows + tiles.ROWS * tiles.CLUSTER - 1) // (tiles.ROWS * tiles.CLUSTER) * tiles.CLUSTER
    return 1 + (PHASES - 1) * row_blocks


def _scratch(positions: Tensor, launches: int) -> Tensor:
    return positions.new_empty((launches, num_counters(positions.shape[0])), dtype=torch.int32)


@torch.library.custom_op("boundgen::hopper_scratch", mutates_args=(), device_types="cuda")
def scratch(library: str, positions: Tensor, launches: int) -> Tensor:
    """positions [T] (for T alone) -> zeroed int32[launches, 1 + 3 row blocks], a row for each chain of a
    forward pass.
    """
    out = _scratch(positions, launches)
    call(library, "clear", ClearCall(pointer(out), out.numel() * 4, current_stream(positions)))
    return out


@scratch.register_fake
def _(library: str, positions: Tensor, launches: int) -> Tensor:
    return _scratch(positions, launches)


@scratch.register_kernel("cpu")
def _(library: str, positions: Tensor, launches: int) -> Tensor:
    return _scratch(positions, launches).zero_()
