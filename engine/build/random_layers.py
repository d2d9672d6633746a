"""One decoder layer of random values as a device would serve it: what its time is measured with.

The layer's own modules and operations, on either path; values whose products keep their size. On a CPU the
operations' oracles run. Hopper products are launched one by one, as where a layer's types differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from engine.models.architecture import Architecture
from engine.models.cuda_layers import Batch, CudaLayer
from engine.models.hopper_layers import HopperLayer
from engine.models.plan import LayerPlan, Scaling, layer_shape
from engine.ops.hopper.layer import Batch as HopperBatch
from engine.ops.hopper.layer import run_layers
from engine.ops.hopper.plan import plan as plan_attention
from engine.ops.hopper.products import num_groups
from engine.ops.hopper.quantise import quantise
from engine.ops.hopper.rows import rows
from engine.ops.hopper.stack import attention_blocks
from engine.ops.portable.attention import tile_tokens
from engine.ops.portable.attention_tiles import attention_tiles

SPREAD = {torch.float8_e4m3fn: 100.0, torch.int8: 40.0}  # of stored 8-bit weights
FACTOR = 30.0  # activations of about 1 before they are 8 bits

Lengths = tuple[int, ...]  # of the samples of a packed batch


def random_layer(
    a: Architecture, layer: LayerPlan, scaling: Scaling, library: str | None, lengths: Lengths,
    device: torch.device,
) -> Callable[[], Tensor]:  # fmt: skip
    """What runs the layer once over samples of these lengths, and gives the stream after it. `scaling`: of a
    portable layer's 8-bit inputs; `library`: the kernels of a hopper one."""
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(sum(lengths), a.hidden_size, generator=generator, device=device).bfloat16()
    if layer.path == "hopper":
        return _hopper(a, layer, library or "", x, lengths, generator)
    return _portable(a, layer, scaling, x, lengths, generator)


def _portable(
    a: Architecture, layer: LayerPlan, scaling: Scaling, x: Tensor, lengths: Lengths,
    generator: torch.Generator,
) -> Callable[[], Tensor]:  # fmt: skip
    with x.device:
        rotated = torch.int8 in layer.elements().values()
        module = CudaLayer(a, layer, layer.inputs(scaling, rotated=rotated)).requires_grad_(False)
    for name, buffer in module.named_buffers():
        if name.endswith("weight_scales"):
            matrix = module.get_buffer(name.removesuffix("_scales"))
            buffer.fill_(1 / (SPREAD[matrix.dtype] * math.sqrt(matrix.shape[1])))
        elif name.endswith("input_scales"):
            # in int8 they are factors, which the product is still to be divided by
            matrix = module.get_buffer(name.replace("input_scales", "weight"))
            buffer.fill_(FACTOR if matrix.dtype == torch.int8 else 1 / FACTOR)
        else:
            _fill(buffer, generator)
    positions, borders = _inputs(lengths, x.device)
    tiles = attention_tiles(
        borders, positions,
        tokens=tile_tokens(a.num_heads, a.num_kv_heads), max_samples=len(lengths),
        max_seqlen=max(lengths),
    )  # fmt: skip
    batch = Batch(positions, borders, tiles, _tables(a, lengths, x.device, torch.float32))

    def run() -> Tensor:
        found: tuple[Tensor, Tensor | None] = module(x, x, batch)
        return found[0] if found[1] is None else found[1]

    return run


def _hopper(
    a: Architecture, layer: LayerPlan, library: str, x: Tensor, lengths: Lengths, generator: torch.Generator
) -> Callable[[], Tensor]:
    with x.device:
        module = HopperLayer(a, layer, layer).requires_grad_(False)
    _fill_hopper(module, generator)
    weights, shape = module.weights(), layer_shape(a)
    positions, borders = _inputs(lengths, x.device)
    items, offsets = plan_attention(
        library, borders, positions, a.num_heads, a.num_kv_heads, attention_blocks(x.device)
    )
    batch = HopperBatch(positions, items, offsets, *_tables(a, lengths, x.device, torch.bfloat16))
    operand = weights.qkv.dtype
    stream = (x, *rows(library, x, module.input_scales.view(-1), operand))
    return lambda: run_layers(library, shape, [weights], stream, batch, next_operand=operand)[0]


def _fill_hopper(module: HopperLayer, generator: torch.Generator) -> None:
    """Scales of products: what brings them back to about 1, and a factor where there is room for one."""
    module.input_scales.fill_(FACTOR)
    module.get_buffer("attention_scales").fill_(
        1.0 if module.get_buffer("o").dtype == torch.bfloat16 else FACTOR
    )
    for name in ("qkv", "o", "gate_up", "down"):
        matrix, scales = module.get_buffer(name), module.get_buffer(f"{name}_scales").view(-1)
        _fill(matrix, generator)
        scales.fill_(FACTOR)
        of_rows = scales[: num_groups(matrix.shape[0], matrix.dtype)]
        if matrix.dtype == torch.bfloat16:
            of_rows.fill_(1.0)
        else:
            itself = matrix.dtype == torch.int8 and name != "o"  # such activations bring scales of their own
            spread = SPREAD[matrix.dtype] * math.sqrt(matrix.shape[1])
            of_rows.fill_(1 / (spread if itself else spread * FACTOR))
    module.get_buffer("head_weight").fill_(0.3)
    if module.bias is not None:
        _fill(module.get_buffer("bias"), generator)


def _fill(tensor: Tensor, generator: torch.Generator) -> None:
    """A matrix' values, or ones."""
    if tensor.dim() < 2:
        tensor.fill_(1.0)
        return
    wide = torch.randn(tensor.shape, generator=generator, device=tensor.device)
    if tensor.dtype in SPREAD:
        tensor.copy_(quantise(wide * SPREAD[tensor.dtype], tensor.dtype))
    else:
        tensor.copy_(wide / math.sqrt(tensor.shape[1]))


def _inputs(lengths: Lengths, device: torch.device) -> tuple[Tensor, Tensor]:
    """positions int64[T], cu_seqlens int32[S + 1]."""
    positions = torch.cat([torch.arange(count) for count in lengths])
    borders = torch.tensor([0, *lengths]).cumsum(0).int()
    return positions.to(device), borders.to(device)


def _tables(
    a: Architecture, lengths: Lengths, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Rotary cos and sin of every position."""
    angle = torch.arange(max(lengths)).float()[:, None] * torch.tensor(a.rope.inv_freq)
    return angle.cos().to(device, dtype), angle.sin().to(device, dtype)
