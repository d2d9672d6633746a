"""boundgen::product_add_norm: the residual stream takes in a matrix's product and is normed for the next one.

    total = x + bf16(scales * (inputs weightᵀ))     out = norm_weight * total / rms(total), quantised if asked

Few rows go by a product whose depth is split (split_product), and the norm's kernel adds up its parts; others
by the library's product and add_rms_norm. Which of them is a matter of how many rows there are, and a package
is compiled for any number: so the operation stays opaque to a compiler, its kernels launched from Python.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.ops.portable.language import capability, jit, next_power_of_2, starts_early, tl, wait_for_last
from engine.ops.portable.linear import linear_e4m3
from engine.ops.portable.norm import add_rms_norm
from engine.ops.portable.quantised import Activation, empty_quantised
from engine.ops.portable.split_product import ROWS, choose_split, pays_to_split, split_product_kernel

NAME = "boundgen::product_add_norm"

_library = torch.library.Library("boundgen", "FRAGMENT")
_library.define(
    "product_add_norm(Tensor inputs, Tensor? input_scale, Tensor weight, Tensor? weight_scale, Tensor x, "
    "Tensor norm_weight, Tensor? out_scale, float eps) -> (Tensor, Tensor)"
)


@jit
def add_parts_norm_kernel(
    parts, input_scale, weight_scale, x, norm_weight, out_scale, total, out, num_rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, EPS: tl.constexpr,
    SCALED: tl.constexpr, STATIC: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A row a program, as add_rms_norm's; the product is rounded as the library's is."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    at = row * WIDTH + column
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)  # older than the parts
    gain = tl.load(norm_weight + column, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        wait_for_last()
    product = tl.load(parts + at, mask=inside, other=0.0)
    for part in tl.static_range(1, SPLITS):
        product += tl.load(parts + part * num_rows * WIDTH + at, mask=inside, other=0.0)
    if SCALED:
        product *= tl.load(input_scale) * tl.load(weight_scale)
    value += product.to(x.dtype.element_ty).to(tl.float32)
    tl.store(total + at, value.to(total.dtype.element_ty), mask=inside)
    normed = value * tl.rsqrt(tl.sum(value * value, 0) / WIDTH + EPS) * gain
    if STATIC:
        normed = tl.clamp(normed * (1.0 / tl.load(out_scale)), -448.0, 448.0)
    tl.store(out + at, normed.to(out.dtype.element_ty), mask=inside)


product_kernel, norm_kernel = split_product_kernel, add_parts_norm_kernel  # as tests record their launches
KERNELS = ("product_kernel", "norm_kernel")


def launch(
    inputs: Tensor, input_scale: Tensor | None, weight: Tensor, weight_scale: Tensor | None, x: Tensor,
    norm_weight: Tensor, out_scale: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The way of few rows."""
    num_rows, (outputs, width) = inputs.shape[0], weight.shape
    split = choose_split(num_rows, width, outputs, weight_scale is not None, capability(x))
    early = starts_early(x)
    parts = torch.empty((split.splits, num_rows, outputs), dtype=torch.float32, device=x.device)
    product_kernel[split.grid(num_rows, outputs)](
        inputs, weight, parts, num_rows,
        WIDTH=width, OUTPUTS=outputs, TILE_ROWS=ROWS, COLS=split.columns, DEPTH=split.depth,
        STAGES=split.stages, EARLY=early, num_warps=4,
    )  # fmt: skip
    total, out = _fake(inputs, input_scale, weight, weight_scale, x, norm_weight, out_scale, eps)
    # What is not there is not read: any tensor stands for it.
    norm_kernel[(num_rows,)](
        parts, x if input_scale is None else input_scale, x if weight_scale is None else weight_scale,
        x, norm_weight, x if out_scale is None else out_scale, total, out, num_rows,
        WIDTH=outputs, BLOCK=next_power_of_2(outputs), SPLITS=split.splits, EPS=eps,
        SCALED=weight_scale is not None, STATIC=out_scale is not None, EARLY=early, num_warps=4,
        **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return total, out


def _apart(
    inputs: Tensor, input_scale: Tensor | None, weight: Tensor, weight_scale: Tensor | None, x: Tensor,
    norm_weight: Tensor, out_scale: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """By the two operations that do the same."""
    if weight_scale is None:
        delta = F.linear(inputs, weight)
    else:
        delta = linear_e4m3(Activation(inputs, input_scale), weight, weight_scale)
    mode = "none" if out_scale is None else "static"
    total, normed = add_rms_norm(x, delta, norm_weight, eps, quantise=mode, scale=out_scale)
    return total, normed.values


def _by_rows(
    inputs: Tensor, input_scale: Tensor | None, weight: Tensor, weight_scale: Tensor | None, x: Tensor,
    norm_weight: Tensor, out_scale: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    outputs, width = weight.shape
    splits = pays_to_split(inputs.shape[0], width, outputs, weight_scale is not None, capability(x))
    way = launch if splits else _apart
    return way(inputs, input_scale, weight, weight_scale, x, norm_weight, out_scale, eps)


def _fake(
    inputs: Tensor, input_scale: Tensor | None, weight: Tensor, weight_scale: Tensor | None, x: Tensor,
    norm_weight: Tensor, out_scale: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    shape = (inputs.shape[0], weight.shape[0])
    return x.new_empty(shape), empty_quantised(x, shape, "none" if out_scale is None else "static")[0]


_library.impl("product_add_norm", _apart, "CPU")
_library.impl("product_add_norm", _by_rows, "CUDA")
torch.library.register_fake(NAME, _fake, lib=_library)


def product_add_norm(
    inputs: Activation, weight: Tensor, weight_scale: Tensor | None, x: Tensor, norm_weight: Tensor,
    eps: float, *, scale: Tensor | None = None,
) -> tuple[Tensor, Activation]:  # fmt: skip
    """inputs[T, K], weight[N, K] bf16, or e4m3 with float32[1] each; x[T, N], norm_weight[N] -> the new x and
    its norm, e4m3 by `scale` float32[1] if given. All contiguous; ValueError for inputs without their scale.
    """
    if (inputs.scale is None) != (weight_scale is None):
        raise ValueError("weight_scale: given exactly with quantised inputs")
    if inputs.scale is not None and inputs.scale.shape != (1,):
        raise ValueError(f"inputs.scale.shape = {tuple(inputs.scale.shape)!r}: must be (1,)")
    total, out = torch.ops.boundgen.product_add_norm(
        inputs.values, inputs.scale, weight, weight_scale, x, norm_weight, scale, eps
    )
    return total, Activation(out, scale)
