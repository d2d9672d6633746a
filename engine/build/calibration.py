"""Static scales of activations: what reaches each matrix of the eager decoder on calibration texts.

    scale = margin * max |input| / 448

Of every linear layer's input and of every norm's: kernels that fold a norm into the matrix behind it
quantise the raw residual stream. Only the mechanism: which matrices bear it is for an accuracy budget to
say. Runs on the decoder's device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat

import torch
from torch import Tensor, nn

from engine.models.decoder import PackedDecoder
from engine.models.layers import RMSNorm
from engine.ops.portable.quantised import E4M3_MAX, MIN_SCALE
from engine.packed import PackedBatch

MARGIN = 2.0  # the largest value seen fills half the range; e4m3 loses no precision by it


def calibrate(
    decoder: PackedDecoder, batches: Iterable[PackedBatch], exact: Iterable[Tensor | None] = repeat(None),
    margin: float = MARGIN,
) -> dict[str, float]:  # fmt: skip
    """Module name of each linear layer and norm -> scale of its input; ValueError where no batch is given.

    `exact`: of each batch bool[T], tokens that no 8-bit matrix will see, so that they say nothing; or None.
    """
    device = decoder.inv_freq.device
    largest: dict[str, Tensor] = {}
    kept: Tensor | None = None

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def look(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            rows = inputs[0].detach()
            if kept is not None and len(rows) == len(kept):  # not the last tokens' alone
                rows = rows[kept]
            seen = rows.abs().max().float()
            largest[name] = torch.maximum(largest[name], seen) if name in largest else seen

        return look

    watched = (nn.Linear, RMSNorm)
    modules = [(name, module) for name, module in decoder.named_modules() if isinstance(module, watched)]
    hooks = [module.register_forward_pre_hook(watch(name)) for name, module in modules]
    try:
        with torch.inference_mode():
            for batch, left_out in zip(batches, exact, strict=False):
                kept = None if left_out is None else ~left_out.to(device)
                decoder(batch.input_ids.to(device), batch.positions.to(device), batch.cu_seqlens.to(device))
    finally:
        for hook in hooks:
            hook.remove()
    if not largest:
        raise ValueError("batches: none given")
    return {name: max(margin * seen.item() / E4M3_MAX, MIN_SCALE) for name, seen in largest.items()}
