"""Which way a search's gate goes: projection and gate in one kernel, or the library's product and another.

Neither is always faster: batches of a few sizes are measured on the device. Nothing else may run meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from engine.models.plan import LayerPlan, Plan, Precision
from engine.packed import BatchBounds

REQUESTS = (1, 5, 10, 15, 20)  # of the batches that are compared
Kind = tuple[Precision, Precision]  # of what the gate reads and of what it makes
Measure = Callable[[int], list[float]]  # the place of a layer -> its time in each batch


def choose_gate(
    plan: Plan, architecture: Architecture, prepared: Mapping[str, Tensor], bounds: BatchBounds,
    beam: BeamBounds,
) -> Plan:  # fmt: skip
    """`plan` with the way that is faster in every layer, measured in the first of each kind; as it is on a
    CPU or where there is one way alone."""
    device = prepared["embed_tokens.weight"].device
    if device.type != "cuda":
        return plan
    positions = bounds.tokens_per_sample + beam.steps
    batches = batches_to_compare(bounds, beam)

    def measure(tried: Plan) -> Measure:
        decoder = CudaStepDecoder.from_weights(architecture, prepared, tried, bounds, positions)

        def time(place: int) -> list[float]:
            layer = cast(CudaLayer, decoder.layers[place])
            time_us = partial(_time_us, layer, architecture.hidden_size, device=device)
            return [beam.steps * time_us(rows) + time_us(tokens) for rows, tokens in batches]

        return time

    return choose_ways(plan, measure)


def choose_ways(plan: Plan, measure: Callable[[Plan], Measure]) -> Plan:
    """Layers that allow both ways get the faster one of their kind: precisions may differ between layers."""
    first: dict[Kind, int] = {}
    for place, layer in enumerate(plan.layers):
        if layer.fused_gate_up:
            first.setdefault(_kind(layer), place)
    if not first:
        return plan
    spent: dict[bool, dict[Kind, list[float]]] = {}
    for fused in (True, False):
        time = measure(_with_ways(plan, dict.fromkeys(first, fused)))
        spent[fused] = {kind: time(place) for kind, place in first.items()}
    ways, notes = {}, []
    for kind in first:
        # A batch of one request counts as much as one of twenty: both are somebody's latency.
        pairs = zip(spent[True][kind], spent[False][kind], strict=True)
        speed = geometric_mean(apart / one for one, apart in pairs)
        ways[kind], gain = speed >= 1, max(speed, 1 / speed)
        told = ("in one kernel", "apart") if ways[kind] else ("apart", "in one kernel")
        where = "" if len(first) == 1 else f" ({kind[0]}, then {kind[1]})"
        notes.append(f"beams: projection and gate{where} {told[0]}, {gain:.2f} times as fast as {told[1]}")
    return replace(_with_ways(plan, ways), notes=(*plan.notes, *notes))


def _kind(layer: LayerPlan) -> Kind:
    return layer.gate_up, layer.down


def _with_ways(plan: Plan, ways: Mapping[Kind, bool]) -> Plan:
    layers = (
        replace(layer, fused_gate_up=ways[_kind(layer)]) if layer.fused_gate_up else layer
        for layer in plan.layers
    )
    return replace(plan, layers=tuple(layers))


def batches_to_compare(bounds: BatchBounds, beam: BeamBounds) -> list[tuple[int, int]]:
    """Rows of a step, and tokens of prompts half as long as they may be."""
    counts = sorted({min(count, beam.prompts) for count in REQUESTS})
    each = max(1, min(bounds.tokens_per_sample, bounds.tokens // max(counts)) // 2)
    return [(count * max(2, beam.width), max(2, count * each)) for count in counts]


def _time_us(layer: CudaLayer, width: int, rows: int, device: torch.device) -> float:
    """From the stream through the norm and the gate, microseconds a run, in a graph as it is served."""
    x = torch.randn(rows, width, device=device).bfloat16()
    return ReplayTimer(lambda: layer.gate(layer.mlp_input(x)), device).us()
