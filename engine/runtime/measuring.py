"""What batches take on the device, measured at load by replaying graphs back to back.

Called while no lane has work, on one thread: it fills the lanes' buffers and enqueues their graphs on their
streams. Waits for what it measures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from engine.packed import PackedBatch
from engine.runtime.buckets import Buckets
from engine.runtime.cost import CostModel, sizes_to_measure
from engine.runtime.graph_lane import GraphLane
from engine.runtime.sharing import SharedCost, sizes_to_share

MakeBatch: TypeAlias = Callable[[int], PackedBatch]  # of about so many tokens
Pair: TypeAlias = tuple[GraphLane, GraphLane]
COST_MS = 80.0  # of replays a size: with a dozen sizes a second in all, which reaches the card's power cap
SHARING_MS = 30.0  # likewise, three ways a size


def measure_cost(lane: GraphLane, buckets: Buckets, batch: MakeBatch) -> CostModel:
    """Sustained milliseconds by bucket, a dozen of them."""
    points = {}
    for tokens in sizes_to_measure(buckets):
        packed = batch(tokens)  # fewer tokens where the bounds' samples cannot have so many
        points[buckets.choose(packed.num_tokens, 1).tokens] = _replay_ms((lane,), packed, COST_MS)
    return CostModel(buckets, tuple(points.items()))


def measure_sharing(lanes: Pair, buckets: Buckets, batch: MakeBatch) -> tuple[SharedCost, ...]:
    """A few small sizes three ways; both lanes have shared graphs of those sizes."""
    measured = []
    for tokens in sizes_to_share(buckets):
        packed = batch(tokens)
        if buckets.choose(packed.num_tokens, 1).tokens != tokens:
            continue  # no batch is so large: the bounds' samples cannot have so many tokens
        alone = _replay_ms(lanes[:1], packed, SHARING_MS)
        together = _replay_ms(lanes, packed, SHARING_MS)
        halved = _replay_ms(lanes, packed, SHARING_MS, shared=True)
        measured.append(SharedCost(tokens, alone, together, halved))
    return tuple(measured)


def _replay_ms(
    lanes: tuple[GraphLane, ...], packed: PackedBatch, budget_ms: float, shared: bool = False
) -> float:
    """Milliseconds a batch, without a head, when each of the lanes runs that one again and again."""
    replays = [(lane.hold(packed, shared), lane.stream) for lane in lanes]
    once = _time_ms(replays, 1)
    rounds = max(3, round(budget_ms / once))
    return _time_ms(replays, rounds) / (rounds * len(lanes))


def _time_ms(replays: list[tuple[Callable[[], None], torch.cuda.Stream]], rounds: int) -> float:
    """From the first launch to the end of the last, every stream after one replay of its own."""
    start, *ends = (torch.cuda.Event(enable_timing=True) for _ in range(1 + len(replays)))  # type: ignore[no-untyped-call]
    first = replays[0][1]
    for replay, stream in replays:
        with torch.cuda.stream(stream):
            replay()
        first.wait_stream(stream)
    start.record(first)
    for _, stream in replays:
        stream.wait_event(start)
    for _ in range(rounds):
        for replay, stream in replays:
            with torch.cuda.stream(stream):
                replay()
    for end, (_, stream) in zip(ends, replays, strict=True):
        end.record(stream)
    elapsed = 0.0
    for end in ends:
        end.synchronize()
        elapsed = max(elapsed, start.elapsed_time(end))
    return elapsed
