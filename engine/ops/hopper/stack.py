"""A run of consecutive equal-shaped layers as one op: what an exported graph holds of the Hopper path.

    x = table[ids], or a portable layer's x;   x = layer(x) for each;   x of all rows, or of `last`

One op a run keeps the order of launches that the kernels rely on, with nothing of a compiler's between them:
work list, cleared counters, rows, then attention and chain a layer, or in int8 four products (why: plan.py,
csrc/chain.cuh). All is allocated inside, through torch, so that a capture takes it from its own pool; nothing
is waited for. Python runs when a graph is captured, never at a replay; how many multiprocessors to take it
asks sm_limit. On a CPU the same calls run the oracles.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from engine.ops.hopper import tiles
from engine.ops.hopper.layer import Batch, run_layers
from engine.ops.hopper.plan import plan
from engine.ops.hopper.rows import embed, rows
from engine.ops.hopper.scratch import scratch
from engine.ops.hopper.sm_limit import current_limit
from engine.ops.hopper.supports import LayerShape
from engine.ops.hopper.weights import LayerWeights

BLOCKS_PER_SM = 2  # of the attention


@torch.library.custom_op("boundgen::hopper_stack", mutates_args=())
def stack(  # noqa: PLR0913, PLR0917 - an exported graph passes tensors and numbers, not objects
    library: str,
    source: Tensor,
    ids: Tensor | None,
    scales: Tensor,
    positions: Tensor,
    cu_seqlens: Tensor,
    last: Tensor | None,
    cosines: Tensor,
    sines: Tensor,
    weights: Sequence[Tensor],
    has_bias: bool,
    num_q: int,
    num_kv: int,
    eps: float,
    head_norm: bool,
    prefixes: Tensor | None = None,
    constant: Tensor | None = None,
) -> Tensor:
    """source: embedding table bf16[V, H] of `ids` int64[T], or x bf16[T, H]; scales float32[2] of its rows;
    positions int64[T]; cu_seqlens int32[S + 1]; last int64[N]; rope tables bf16[P, D / 2]; weights: of each
    layer those of `flatten`, all on one device; prefixes int32[S, 2] and constant bf16[layers, 2, P, num_kv,
    D], both or neither, as ops.packed_attention takes them -> bf16[T or N, H].
    """
    if (prefixes is None) != (constant is None):
        raise ValueError("prefixes and constant: wanted both or neither")
    layers = unflatten(weights, has_bias)
    down, head_dim = layers[0].down, 2 * cosines.shape[1]
    shape = LayerShape(
        hidden=down.shape[0], intermediate=down.shape[1], num_q=num_q, num_kv=num_kv, head_dim=head_dim,
        bias=has_bias, head_norm=head_norm, eps=eps,
    )  # fmt: skip
    max_sms = current_limit()
    blocks = attention_blocks(source.device, max_sms)
    items, offsets = plan(library, cu_seqlens, positions, num_q, num_kv, blocks, prefixes)
    work = scratch(library, positions, len(layers) - 1) if len(layers) > 1 else None
    operand = layers[0].qkv.dtype
    if ids is None:
        stream = (source, *rows(library, source, scales, operand))
    else:
        stream = embed(library, ids, source, scales, operand)
    batch = Batch(positions, items, offsets, cosines, sines, work, max_sms, constant)
    return run_layers(library, shape, layers, stream, batch, last=last)[0]


@stack.register_fake
def _(  # noqa: PLR0913, PLR0917
    library: str,
    source: Tensor,
    ids: Tensor | None,
    scales: Tensor,
    positions: Tensor,
    cu_seqlens: Tensor,
    last: Tensor | None,
    cosines: Tensor,
    sines: Tensor,
    weights: Sequence[Tensor],
    has_bias: bool,
    num_q: int,
    num_kv: int,
    eps: float,
    head_norm: bool,
    prefixes: Tensor | None = None,
    constant: Tensor | None = None,
) -> Tensor:
    out = positions if last is None else last
    return source.new_empty((out.shape[0], source.shape[1]))


def names(has_bias: bool) -> tuple[str, ...]:
    """The tensors of a layer, in the order in which `stack` takes them."""
    return tuple(field.name for field in fields(LayerWeights) if has_bias or field.name != "bias")


def flatten(layers: Sequence[LayerWeights]) -> list[Tensor]:
    """`weights` of `stack`."""
    has_bias = layers[0].bias is not None
    return [getattr(layer, name) for layer in layers for name in names(has_bias)]


def unflatten(weights: Sequence[Tensor], has_bias: bool) -> list[LayerWeights]:
    """The inverse of `flatten`; ValueError where tensors are left over."""
    keys = names(has_bias)
    if not weights or len(weights) % len(keys):
        raise ValueError(f"{len(weights)} weights: wanted a multiple of {len(keys)}, at least one layer")
    absent: dict[str, Any] = {} if has_bias else {"bias": None}
    return [
        LayerWeights(**dict(zip(keys, weights[first : first + len(keys)], strict=True)), **absent)
        for first in range(0, len(weights), len(keys))
    ]


def attention_blocks(device: torch.device, max_sms: int = 0) -> int:
    """Of an attention launch within `max_sms` multiprocessors; 0: all of the device's."""
    return BLOCKS_PER_SM * (max_sms or num_sms(device))


def num_sms(device: torch.device) -> int:
    """Multiprocessors of a device; on a CPU those of the card that the kernels are for."""
    if device.type != "cuda":
        return tiles.NUM_SMS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
