"""Token counts one by one: captured graphs on one lane and on two at once, against the physics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from threading import Lock
from typing import Any

import torch

from engine.models.architecture import Architecture
from engine.packed import PackedBatch, pack
from engine.runtime.graph_lanes import GraphLanePool
from tools.bench.card import Card, Replay, Timing
from tools.bench.kernel_classes import shares
from tools.bench.mixes import DRAWN, equal_lengths, fill_lengths
from tools.bench.shapes import count_work, ideal_s

MIXED, EQUAL = "mixed", "128"  # the lengths of mean150's samples, or 128 tokens each
LENGTHS = (MIXED, EQUAL)
MOST_OF_TWO = 2048  # tokens: a larger batch fills the card alone


def draw_batch(a: Architecture, tokens: int, lengths: str) -> tuple[PackedBatch, list[int]]:
    """Random ids, and the samples' lengths; `lengths` is one of LENGTHS."""
    generator = torch.Generator().manual_seed(tokens)
    drawn = equal_lengths(tokens, int(EQUAL))
    if lengths == MIXED:
        drawn = fill_lengths(tokens, *DRAWN["mean150"], generator)
    samples = [torch.randint(0, a.vocab_size, (n,), generator=generator).tolist() for n in drawn]
    return pack(samples), drawn


class BucketTimer:
    """Times token counts on `pool`, with nothing else at work there; `narrow` as shapes.narrow_matrices."""

    def __init__(
        self, pool: GraphLanePool, card: Card, a: Architecture, narrow: Mapping[str, float], seconds: float
    ) -> None:
        self._pool, self._card, self._a, self._narrow, self._seconds = pool, card, a, narrow, seconds

    def time(self, tokens: int, lengths: str) -> dict[str, Any]:
        """One lane."""
        packed, drawn = draw_batch(self._a, tokens, lengths)
        (replay,) = self._hold(packed, 1)
        return self._row(tokens, lengths, drawn, 1, self._card.time(replay, self._seconds))

    def time_two(self, tokens: int, lengths: str) -> dict[str, Any]:
        """Two lanes at once, `tokens` each, as they serve: on half the chip where that has a graph.
        Milliseconds are those of both, rates their sum."""
        packed, drawn = draw_batch(self._a, tokens, lengths)
        timing = self._card.time_together(self._hold(packed, 2), self._seconds)
        return self._row(tokens, lengths, drawn, 2, timing)

    def kernel_shares(self, tokens: int, lengths: str) -> dict[str, Any]:
        """Share of the kernels' time by class, and the five longest kernels in microseconds."""
        packed, _ = draw_batch(self._a, tokens, lengths)
        (replay,) = self._hold(packed, 1)
        times = self._card.kernel_times(replay)
        row: dict[str, Any] = {"tokens": tokens, "lengths": lengths, "shares": None, "longest": None}
        if times is not None:
            longest = sorted(times.items(), key=lambda item: -item[1])[:5]
            row |= {"shares": shares(times), "longest": {name[:100]: us for name, us in longest}}
        return row

    def _hold(self, packed: PackedBatch, lanes: int) -> Sequence[Replay]:
        return hold_on_lanes(self._pool, packed, shared=lanes > 1)[:lanes]

    def _row(
        self, tokens: int, lengths: str, drawn: Sequence[int], lanes: int, timing: Timing
    ) -> dict[str, Any]:
        work, peaks, seconds = count_work(self._a, drawn), self._card.peaks, timing.sustained_ms / 1e3 / lanes
        ideal = None if peaks is None else ideal_s(work, self._narrow, peaks)
        return {
            "tokens": tokens, "lengths": lengths, "lanes": lanes, "samples": len(drawn),
            "halved": lanes > 1 and tokens in self._pool.load_report.shared_tokens,
            "burst_ms": timing.burst_ms, "sustained_ms": timing.sustained_ms,
            "tokens_per_s": tokens / seconds, "samples_per_s": len(drawn) / seconds,
            "tflops_burst": None if timing.burst_ms is None else work.flops / timing.burst_ms / 1e9,
            "tflops": work.flops / seconds / 1e12,
            "floor_ms": None if ideal is None else 1e3 * ideal,
            "mfu_bf16": None if peaks is None else work.flops / peaks.bf16 / seconds,
            "mfu_weighted": None if ideal is None else ideal / seconds,
            **asdict(timing.state),
        }  # fmt: skip


def hold_on_lanes(pool: GraphLanePool, packed: PackedBatch, shared: bool = False) -> list[Replay]:
    """The batch in every lane's buffers, and what replays each; `shared`: on the part of the chip that lanes
    at work together take."""
    replays: list[Replay] = []
    one_at_a_time = Lock()

    def hold() -> None:
        with one_at_a_time:
            replays.append(pool.hold(packed, shared))

    pool.on_every_lane(hold)
    return replays


def bucket_line(row: Mapping[str, Any]) -> str:
    """Of one row of BucketTimer."""
    lanes = "two lanes, " if row["lanes"] == 2 else ""
    lanes += "half the chip each, " if row["halved"] else ""
    burst = "" if row["burst_ms"] is None else f"burst {row['burst_ms']:.3f} ms {row['tflops_burst']:.0f}, "
    mfu = "" if row["mfu_bf16"] is None else f", mfu_bf16 {row['mfu_bf16']:.3f}"
    mfu += "" if row["mfu_weighted"] is None else f", mfu_weighted {row['mfu_weighted']:.3f}"
    state = "" if row["sm_mhz"] is None else f", {row['sm_mhz']:.0f} MHz"
    state += "" if row["watts"] is None else f", {row['watts']:.0f} W"
    return (
        f"T={row['tokens']} {row['lengths']}: {lanes}{burst}sustained {row['sustained_ms']:.3f} ms "
        f"{row['tflops']:.0f} useful TFLOP/s, {row['tokens_per_s'] / 1e3:,.0f}k tokens/s, "
        f"{row['samples_per_s']:,.0f} samples/s{mfu}{state}"
    )


def shares_line(row: Mapping[str, Any]) -> str:
    """Of a row of kernel_shares."""
    known = row["shares"]
    told = "not recorded" if known is None else ", ".join(f"{k} {v:.0%}" for k, v in known.items() if v)
    return f"T={row['tokens']} {row['lengths']}: kernels {told}"
