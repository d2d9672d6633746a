"""boundgen::add_rms_norm: the residual stream takes in a layer's output and is normed for the next matrix.

    sum[t] = x[t] + delta[t]          out[t] = weight * sum[t] / sqrt(mean(sum[t]²) + eps), quantised if asked

x[t] may be a row of a table, the embedding of token t. One pass: x and delta are read once, sum and out
written once: 8 bytes an element in bf16, 7 with e4m3. Quantised by "rows", int8, out[t] is of sum[t] itself:
norm weights are folded into the matrix behind it, and its scale has the factor 1 / rms.
"""

from torch import Tensor
from torch.library import wrap_triton

from engine.ops.portable import reference
from engine.ops.portable.integers import row_scale_of, to_int8
from engine.ops.portable.language import jit, next_power_of_2, register, tl
from engine.ops.portable.quantised import MODES, Activation, check_mode, empty_quantised

NORM_MODES = ("none", "static", "token", "rows")


@jit
def _add_rms_norm(
    x, delta, weight, scale, take, total, out, row_scale,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, EPS: tl.constexpr, HAS_DELTA: tl.constexpr,
    TAKES: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """A row a program, which is faster than several at 100 rows (by a quarter) and at 2,000 (a tenth, H200);
    BLOCK >= WIDTH columns. The mean is over the unrounded sum."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    at = row * WIDTH + column
    source = at
    if TAKES:
        source = tl.load(take + row) * WIDTH + column
    value = tl.load(x + source, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        value += tl.load(delta + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA or TAKES:
        tl.store(total + at, value.to(total.dtype.element_ty), mask=inside)
    mean = tl.sum(value * value, 0) / WIDTH
    if MODE == 3:
        scale_of_row = row_scale_of(tl.max(tl.abs(value), 0))
        tl.store(row_scale + row, scale_of_row * tl.rsqrt(mean + EPS))
        tl.store(out + at, to_int8(value * tl.div_rn(1.0, scale_of_row)), mask=inside)
        return
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    normed = value * tl.rsqrt(mean + EPS) * gain
    if MODE == 0:
        tl.store(out + at, normed.to(out.dtype.element_ty), mask=inside)
    else:
        if MODE == 1:
            factor = 1.0 / tl.load(scale)
        else:
            token_scale = tl.maximum(tl.max(tl.abs(normed), 0) / 448.0, 1e-12)
            tl.store(row_scale + row, token_scale)
            factor = 1.0 / token_scale
        quantised = tl.clamp(normed * factor, -448.0, 448.0)
        tl.store(out + at, quantised.to(out.dtype.element_ty), mask=inside)


def _allocate(
    x: Tensor, delta: Tensor | None, weight: Tensor, scale: Tensor | None, eps: float, quantise: str,
    take: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    num_rows = x.shape[0] if take is None else take.shape[0]
    total = x.new_empty((0 if delta is None and take is None else num_rows, x.shape[1]))
    return (total, *empty_quantised(x, (num_rows, x.shape[1]), quantise))


@register("add_rms_norm", allocate=_allocate, cpu=reference.add_rms_norm)
def _launch(
    x: Tensor, delta: Tensor | None, weight: Tensor, scale: Tensor | None, eps: float, quantise: str,
    take: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    total, out, row_scale = _allocate(x, delta, weight, scale, eps, quantise, take)
    num_rows, width = out.shape
    block = next_power_of_2(width)
    wrap_triton(_add_rms_norm)[(num_rows,)](
        x, x if delta is None else delta, weight, weight if scale is None else scale,
        x if take is None else take, x if delta is None and take is None else total, out, row_scale,
        WIDTH=width, BLOCK=block, EPS=eps, HAS_DELTA=delta is not None, TAKES=take is not None,
        MODE=MODES[quantise], num_warps=4 if block <= 4096 else 8,
    )  # fmt: skip
    return total, out, row_scale


def add_rms_norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, *, quantise: str = "none",
    scale: Tensor | None = None, take: Tensor | None = None,
) -> tuple[Tensor, Activation]:  # fmt: skip
    """x, delta [T, H] contiguous, weight[H], scale float32[1] for "static" -> the new residual and its norm.

    take int64[T]: row t is x[take[t]]. Without it and delta the residual is x itself. ValueError for a mode
    without its scale.
    """
    check_mode(quantise, scale, NORM_MODES)
    if x.dim() != 2 or weight.shape != (x.shape[1],):
        raise ValueError(f"weight.shape = {tuple(weight.shape)!r}: must be ({x.shape[-1]},)")
    total, out, row_scale = _launch(x, delta, weight, scale, eps, quantise, take)
    return x if delta is None and take is None else total, Activation(
        out, row_scale if quantise in ("token", "rows") else scale
    )
