"""Rows of the residual stream as the first fused GEMM wants them.

    x          = table[ids]                          (embed), or given (rows)
    x8         = e4m3(x * scales[0])                 empty where the next product is in bf16
                 or int8(x / row_scales), row_scales = max |x| / 127: of the row, exact
    partials   = [sum x^2, 0, .. 0]                  float32 [T, 8]; RMSNorm's sum, as `residual` leaves it

Source of the split: RMSNorm's row factor commutes with a matrix product, so quantising x itself needs no look
at the whole row.
"""

import torch
from torch import Tensor

from engine.ops.hopper.library import ELEMENT_CODES, RowsCall, call, check, current_stream, pointer
from engine.ops.hopper.quantise import LARGEST, MIN_SCALE, quantise

PARTIALS = 8


def _partials(x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], PARTIALS, dtype=torch.float32, device=x.device)
    out[:, 0] = x.float().square().sum(-1)
    return out


def _launch(
    library: str,
    source: Tensor,
    ids: Tensor | None,
    outputs: tuple[Tensor | None, Tensor, Tensor, Tensor],
    scales: Tensor,
) -> None:
    x, x8, partials, row_scales = outputs
    rows, width = partials.shape[0], source.shape[1]
    check("scales", scales, (-1,), torch.float32)
    if width % 8:
        raise ValueError(f"width {width} is no multiple of 8")
    tensors = (source, ids, x, x8, partials, scales, row_scales)
    code = ELEMENT_CODES[x8.dtype]
    call(library, "rows", RowsCall(*map(pointer, tensors), rows, width, code, current_stream(source)))


def _new(source: Tensor, rows: int, operand: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x8 = source.new_empty((rows, source.shape[1]) if operand != torch.bfloat16 else (0,), dtype=operand)
    row_scales = source.new_empty(rows if operand == torch.int8 else 0, dtype=torch.float32)
    return x8, source.new_empty((rows, PARTIALS), dtype=torch.float32), row_scales


@torch.library.custom_op("boundgen::hopper_embed", mutates_args=(), device_types="cuda")
def embed(
    library: str, ids: Tensor, table: Tensor, scales: Tensor, operand: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ids int64[T], table bf16[V, H] -> x bf16[T, H], x8 [T, H] (or [0] for operand bf16), partials
    float32[T, 8], row_scales float32[T] (of int8, else [0]).
    """
    check("ids", ids, (-1,), torch.int64)
    check("table", table, (-1, -1), torch.bfloat16)
    x = table.new_empty(ids.shape[0], table.shape[1])
    x8, partials, row_scales = _new(table, ids.shape[0], operand)
    _launch(library, table, ids, (x, x8, partials, row_scales), scales)
    return x, x8, partials, row_scales


@embed.register_kernel("cpu")
def embed_reference(
    library: str, ids: Tensor, table: Tensor, scales: Tensor, operand: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The oracle: same arguments, plain torch."""
    x = table[ids]
    return x, *rows_reference(library, x, scales, operand)


@embed.register_fake
def _(
    library: str, ids: Tensor, table: Tensor, scales: Tensor, operand: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return table.new_empty(ids.shape[0], table.shape[1]), *_new(table, ids.shape[0], operand)


@torch.library.custom_op("boundgen::hopper_rows", mutates_args=(), device_types="cuda")
def rows(library: str, x: Tensor, scales: Tensor, operand: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x bf16[T, H] -> x8, partials, row_scales: where a portable layer hands over to a fused one, or int8
    wants the exact scale of a row.
    """
    check("x", x, (-1, -1), torch.bfloat16)
    x8, partials, row_scales = _new(x, x.shape[0], operand)
    _launch(library, x, None, (None, x8, partials, row_scales), scales)
    return x8, partials, row_scales


@rows.register_kernel("cpu")
def rows_reference(
    library: str, x: Tensor, scales: Tensor, operand: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The oracle: same arguments, plain torch."""
    if operand == torch.int8:
        steps = (x.float().abs().amax(-1) / LARGEST[operand]).clamp_min(MIN_SCALE)
        return quantise(x.float() * (1.0 / steps)[:, None], operand), _partials(x), steps
    x8 = x.new_empty(0) if operand == torch.bfloat16 else quantise(x.float() * scales[0], operand)
    return x8, _partials(x), x.new_empty(0, dtype=torch.float32)


@rows.register_fake
def _(library: str, x: Tensor, scales: Tensor, operand: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    return _new(x, x.shape[0], operand)
