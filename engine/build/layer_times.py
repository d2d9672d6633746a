"""What eight bits save on the device that is here: layers timed with one kind of matrix in eight bits each.

Through the operations that will serve, on random values, at a few sizes of a packed batch, in replays of
captured graphs. A second or two; nothing else may run on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from engine.build.random_layers import Lengths, random_layer
from engine.build.replay_timing import Run, compare_us
from engine.models.architecture import Architecture
from engine.models.plan import MATRICES, LayerPlan, Plan
from engine.packed import BatchBounds
from engine.quant.rows import STREAM
from engine.quant.schemes import ROTATED, Scheme
from engine.quant.times import TOKENS, Times

BATCHES = (1024, 2048, 4096)
SAMPLE = 128  # tokens, where the bounds allow it

Compare = Callable[[Run, Run], tuple[float, float]]


def batches_within(bounds: BatchBounds, batches: Sequence[int] = BATCHES) -> tuple[Lengths, ...]:
    """Of `batches` (tokens) those that the bounds allow, or the largest that they do, cut into samples."""
    most = min(bounds.tokens, bounds.samples * bounds.tokens_per_sample)
    counts = [count for count in batches if count <= most] or [most]
    return tuple(_samples(count, bounds) for count in counts)


def measure_times(
    a: Architecture, plans: Mapping[Scheme, Plan], batches: Sequence[Lengths], device: torch.device,
    compare: Compare | None = None,
) -> Times:  # fmt: skip
    """`plans`: of every matrix in a scheme, as this device runs it, at least one. A kind that a plan leaves
    in bf16 saves nothing."""
    compare = compare or (lambda one, other: compare_us(one, other, device))
    base: list[float] = []
    saved: dict[str, dict[str, float]] = {}
    exact: dict[str, float] = {}
    for scheme, plan in plans.items():
        for kind in MATRICES:
            alone = keep_one(plan.layers[0], kind)
            if getattr(alone, kind) == "bf16":
                continue
            plain = keep_one(alone, None)
            before, gain = _mean_us(a, plan, (plain, alone), batches, device, compare)
            base.append(before)
            saved.setdefault(kind, {})[scheme] = gain
            if scheme in ROTATED and kind in STREAM and alone.path == "hopper":
                pair = (alone, replace(alone, exact=(kind,)))
                exact[kind] = -_mean_us(a, plan, pair, batches, device, compare)[1]
    if not base:
        plan = next(iter(plans.values()))
        plain = keep_one(plan.layers[0], None)
        base.append(_mean_us(a, plan, (plain, plain), batches, device, compare)[0])
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return Times(f"measured on {name}", sum(base) / len(base), saved, exact, tuple(map(sum, batches)))


def keep_one(layer: LayerPlan, kind: str | None) -> LayerPlan:
    """The layer with that kind as it is and the rest in bf16."""
    rest: dict[str, Any] = {name: "bf16" for name in MATRICES if name != kind}
    return replace(layer, **rest)


def _mean_us(
    a: Architecture, plan: Plan, layers: tuple[LayerPlan, LayerPlan], batches: Sequence[Lengths],
    device: torch.device, compare: Compare,
) -> tuple[float, float]:  # fmt: skip
    """Time of the first layer, and what the second saves: microseconds for TOKENS tokens, means over the
    batches."""
    first, gain = 0.0, 0.0
    for lengths in batches:
        one, other = (random_layer(a, layer, plan.scaling, plan.library, lengths, device) for layer in layers)
        us, less = compare(one, other)
        share = TOKENS / sum(lengths) / len(batches)
        first, gain = first + us * share, gain + (us - less) * share
    return first, gain


def _samples(tokens: int, bounds: BatchBounds) -> Lengths:
    """As many of SAMPLE tokens as it takes, longer ones where those are too many, shorter where too long."""
    length = min(bounds.tokens_per_sample, max(SAMPLE, -(-tokens // bounds.samples)))
    full, rest = divmod(tokens, length)
    return (length,) * full + ((rest,) if rest else ())
