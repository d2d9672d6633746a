"""Orders in which the kernels want weight rows and columns stored, so that every thread's results are
neighbours in memory.

In a wgmma tile a thread holds of a row the columns 8 j + 2 q + e (q its lane in the quad, e 0 or 1, j any).
Each function returns int64[n] `order`: stored row (or column) i is logical row order[i]. All are
permutations; `inverse` undoes them. A thread stores 16 bytes at once, and the four lanes of a quad 64 side by
side: whole sectors of 32 bytes, where two half ones would be two writes.
"""

import torch
from torch import Tensor

STORE_BYTES = 16  # of a thread


def _split(num: int, block: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    p = torch.arange(num)
    r = p % block
    return p // block, r // 8, r % 8 // 2, r % 2


def residual_rows(width: int) -> Tensor:
    """o, down (width % 32 == 0): a thread holds columns 8 q .. 8 q + 7 of every 32."""
    block, j, q, e = _split(width, 32)
    return 32 * block + 8 * q + 2 * j + e


def gate_up_rows(intermediate: int, output: torch.dtype) -> Tensor:
    """gate over up, [2 intermediate] rows (intermediate % 64 == 0): gate (e = 0) and up (e = 1) of columns n
    q .. n q + n - 1 of every 4 n, where n results of type `output` are a store.
    """
    block, j, q, e = _split(2 * intermediate, 128)
    n = STORE_BYTES // output.itemsize
    return 64 * block + 4 * n * (j // n) + n * q + j % n + e * intermediate


def hadamard_rows(intermediate: int) -> Tensor:
    """gate over up where results go through a Hadamard transform (intermediate % 128 == 0): gate and up of
    columns 32 q .. 32 q + 31 of every 128.
    """
    block, r = torch.arange(2 * intermediate) // 256, torch.arange(2 * intermediate) % 256
    half, j, q, e = r // 128, r % 128 // 8, r % 8 // 2, r % 2
    return 128 * block + 32 * q + 16 * half + j + e * intermediate


def hadamard_columns(intermediate: int) -> Tensor:
    """Order in which those results are stored, and so of down's columns: 16 values of a thread at once."""
    block, r = torch.arange(intermediate) // 128, torch.arange(intermediate) % 128
    half, q, j = r // 64, r % 64 // 16, r % 16
    return 128 * block + 32 * q + 16 * half + j


def qkv_rows(num_heads: int, head_dim: int) -> Tensor:
    """q, k, v heads (head_dim 64 or 128): columns c (e = 0) and c + head_dim / 2 (e = 1) of a head, c = 8 q
    .. 8 q + 7 of every 32.
    """
    head, j, q, e = _split(num_heads * head_dim, head_dim)
    return head_dim * head + 32 * (j // 8) + 8 * q + j % 8 + head_dim // 2 * e


def attention_columns(num_heads: int, head_dim: int, output: torch.dtype) -> Tensor:
    """Order in which the attention stores its outputs, and so of o's columns: the first store of each lane of
    a quad, then the second.
    """
    p = torch.arange(num_heads * head_dim)
    n = STORE_BYTES // output.itemsize
    head, r = p // head_dim, p % head_dim
    store, q, value = r // (4 * n), r % (4 * n) // n, r % n
    j, e = (store * n + value) // 2, value % 2
    return head_dim * head + 8 * j + 2 * q + e


def inverse(order: Tensor) -> Tensor:
    """The permutation that undoes `order`."""
    return torch.argsort(order)
