"""Which way a search's gate goes: projection and gate in one kernel, or the library's product and another.

Neither is always faster: measured on the device, at the rows of a few batches' steps and at sizes of the
prompts' pass, where the library's choice for some is five times as slow a row as for its neighbours (Qwen2.5
shape, 8 bits, 1,440 to 2,880 rows on an H200). Nothing else may run meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from engine.beam.bounds import BeamBounds
from engine.models.architecture import Architecture
from engine.models.cuda_beam import CudaStepDecoder
from engine.models.cuda_layers import CudaLayer
from engine.models.plan import Plan
from engine.packed import BatchBounds
from engine.runtime.capture import Capture
from engine.runtime.quiet_collector import quiet_collector

REQUESTS = (1, 5, 10, 15, 20)  # of the batches that are compared
FEWEST_TOKENS, TOKEN_GROWTH = 512, 1.5  # of a prompts' pass: close enough to meet a slow stretch
RUNS, REPLAYS = 20, 5


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
    sizes = rows_to_compare(bounds, beam)
    spent = {}
    for fused in (True, False):
        tried = replace(plan, layers=tuple(replace(layer, fused_gate_up=fused) for layer in plan.layers))
        decoder = CudaStepDecoder.from_weights(architecture, prepared, tried, bounds, positions)
        layer = cast(CudaLayer, decoder.layers[0])
        spent[fused] = sum(_time_us(layer, architecture.hidden_size, rows, device) / rows for rows in sizes)
    fused = spent[True] <= spent[False]
    layers = tuple(replace(layer, fused_gate_up=fused) for layer in plan.layers)
    kinds = {True: "in one kernel", False: "apart"}
    gain = spent[not fused] / spent[fused]
    note = f"beams: projection and gate {kinds[fused]}, {gain:.2f} times as fast as {kinds[not fused]}"
    return replace(plan, layers=layers, notes=(*plan.notes, note))


def rows_to_compare(bounds: BatchBounds, beam: BeamBounds) -> tuple[int, ...]:
    """Of steps and of prompts' passes, ascending."""
    rows = {min(count, beam.prompts) * max(2, beam.width) for count in REQUESTS}
    tokens = float(min(FEWEST_TOKENS, bounds.tokens))
    while tokens <= bounds.tokens:
        rows.add(int(tokens))
        tokens *= TOKEN_GROWTH
    return tuple(sorted(rows))


def _time_us(layer: CudaLayer, width: int, rows: int, device: torch.device) -> float:
    """From the stream through the norm and the gate, microseconds a run, in a graph as it is served."""
    x = torch.randn(rows, width, device=device).bfloat16()

    def run() -> None:
        layer.gate(layer.mlp_input(x))

    with torch.cuda.device(device), torch.no_grad(), quiet_collector():
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            run()
            stream.synchronize()
            with Capture(torch.cuda.graph_pool_handle(), stream) as graph:
                for _ in range(RUNS):
                    run()
            return _replay_us(graph.replay, stream)


def _replay_us(replay: Callable[[], None], stream: torch.cuda.Stream) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    replay()
    start.record(stream)
    for _ in range(REPLAYS):
        replay()
    end.record(stream)
    end.synchronize()
    elapsed: float = start.elapsed_time(end)
    return 1e3 * elapsed / (RUNS * REPLAYS)
