"""Which way a search's gate goes: projection and gate in one kernel, or the library's product and another.

Neither is always faster: batches of a few sizes are measured on the device. Nothing else may run meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import geometric_mean
from typing import cast

import torch
from torch import Tensor

from engine.beam.bounds import BeamBounds
from engine.build.replay_timing import ReplayTimer
from engine.models.architecture import Architecture
from engine.models.cuda_beam import CudaStepDecoder
from engine.models.cuda_layers import CudaLayer
from engine.models.plan import Plan
from engine.packed import BatchBounds

REQUESTS = (1, 5, 10, 15, 20)  # of the batches that are compared


def choose_gate(
    plan: Plan, architecture: Architecture, prepared: Mapping[str, Tensor], bounds: BatchBounds,
    beam: BeamBounds,
) -> Plan:  # fmt: skip
    """`plan` with the way in every layer that is faster in the first; as it is on a CPU or where there is one
    way alone."""
    device = prepared["embed_tokens.weight"].device
    if device.type != "cuda" or not plan.layers[0].fused_gate_up:
        return plan
    positions = bounds.tokens_per_sample + beam.steps
    batches = batches_to_compare(bounds, beam)
    spent: dict[bool, list[float]] = {}
    for fused in (True, False):
        tried = replace(plan, layers=tuple(replace(layer, fused_gate_up=fused) for layer in plan.layers))
        decoder = CudaStepDecoder.from_weights(architecture, prepared, tried, bounds, positions)
        layer = cast(CudaLayer, decoder.layers[0])
        time_us = partial(_time_us, layer, architecture.hidden_size, device=device)
        spent[fused] = [beam.steps * time_us(rows) + time_us(tokens) for rows, tokens in batches]
    # A batch of one request counts as much as one of twenty: both are somebody's latency.
    speed = geometric_mean(apart / one for one, apart in zip(spent[True], spent[False], strict=True))
    fused, gain = speed >= 1, max(speed, 1 / speed)
    layers = tuple(replace(layer, fused_gate_up=fused) for layer in plan.layers)
    kinds = {True: "in one kernel", False: "apart"}
    note = f"beams: projection and gate {kinds[fused]}, {gain:.2f} times as fast as {kinds[not fused]}"
    return replace(plan, layers=layers, notes=(*plan.notes, note))


def batches_to_compare(bounds: BatchBounds, beam: BeamBounds) -> list[tuple[int, int]]:
    """Rows of a step, and tokens of prompts half as long as they may be."""
    counts = sorted({min(count, beam.prompts) for count in REQUESTS})
    each = max(1, min(bounds.tokens_per_sample, bounds.tokens // max(counts)) // 2)
    return [(count * max(2, beam.width), max(2, count * each)) for count in counts]


def _time_us(layer: CudaLayer, width: int, rows: int, device: torch.device) -> float:
    """From the stream through the norm and the gate, microseconds a run, in a graph as it is served."""
    x = torch.randn(rows, width, device=device).bfloat16()
    return ReplayTimer(lambda: layer.gate(layer.mlp_input(x)), device).us()
