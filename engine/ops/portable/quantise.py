"""boundgen::quantise_rows: e4m3 with one scale a token, for producers that do not see a whole row
(attention).

scale[t] = max_k |x[t, k]| / 448          q[t, k] = x[t, k] / scale[t]

Where the product comes raw, what comes back is the scale of both operands: scale[t] times the weight's.
"""

from torch import Tensor
from torch.library import wrap_triton

from engine.ops.portable.language import jit, next_power_of_2, register, tl
from engine.ops.portable.quantised import Activation, empty_quantised, quantise_per_token


@jit
def _quantise_rows(
    x, factor, out, row_scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    value = tl.load(x + row * WIDTH + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), 0) / 448.0, 1e-12)
    told = scale
    if SCALED:
        told = scale * tl.load(factor)
    tl.store(row_scale + row, told)
    quantised = tl.clamp(value * (1.0 / scale), -448.0, 448.0)
    tl.store(out + row * WIDTH + column, quantised.to(out.dtype.element_ty), mask=column < WIDTH)


def _allocate(x: Tensor, factor: Tensor | None) -> tuple[Tensor, Tensor]:
    return empty_quantised(x, (x.shape[0], x.shape[1]), "token")


def _oracle(x: Tensor, factor: Tensor | None) -> tuple[Tensor, Tensor]:
    out, row_scale = quantise_per_token(x)
    return out, row_scale if factor is None else row_scale * factor


@register("quantise_rows", allocate=_allocate, cpu=_oracle)
def _launch(x: Tensor, factor: Tensor | None) -> tuple[Tensor, Tensor]:
    out, row_scale = _allocate(x, factor)
    block = next_power_of_2(x.shape[1])
    wrap_triton(_quantise_rows)[(x.shape[0],)](
        x, x if factor is None else factor, out, row_scale,
        WIDTH=x.shape[1], BLOCK=block, SCALED=factor is not None, num_warps=4 if block <= 4096 else 8,
    )  # fmt: skip
    return out, row_scale


def quantise_rows(x: Tensor, factor: Tensor | None = None) -> Activation:
    """x[T, K] contiguous bf16 -> e4m3 with float32[T, 1], times factor float32[1] where given; ValueError for
    another rank."""
    if x.dim() != 2:
        raise ValueError(f"x.shape = {tuple(x.shape)!r}: must be [T, K]")
    return Activation(*_launch(x, factor))
