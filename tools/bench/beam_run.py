"""The report of `bench engine --pipeline beam` on captured searches: everything that is measured, in order.

Of each mix of prompts: milliseconds of one graph by requests in it, closed loops, random arrivals; then
kernels by class, and what a set of legal sequences costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from engine.beam.frontier import Frontier
from engine.beam.legal import LegalTensors
from engine.beam.search import SearchPlan
from engine.models.architecture import Architecture
from engine.packed import pack
from engine.runtime.beam_buckets import BeamBucket, BeamBuckets, SearchSizes, make_beam_buckets
from engine.runtime.beam_graphs import GraphBeamLanes
from engine.runtime.legal_slots import LegalSlots, PlacedLegal
from tools.bench.beam_loops import Finish, Lanes, Load, Prompt, best_rate, run_closed
from tools.bench.beam_work import MIXES, count_flops, draw_items, draw_prompts
from tools.bench.card import Card
from tools.bench.kernel_classes import shares

Say = Callable[[str], None]
MEAN_MS = 20.0  # the latency at which loads are compared
# Of a batch's mean prompt around the mix's, over the root of its requests: sizes beyond have no graph here
# and count as fallbacks.
SPREAD = 2.5
FIRST_RATE = 0.7  # of the best closed loop's, where arrivals begin


@dataclass(frozen=True)
class BeamLoads:
    """What is measured. `requests`: batches whose graph is timed; `items`: legal sequences, 0: none."""

    width: int = 100
    steps: int = 4
    prompts: int = 32
    mixes: Sequence[str] = tuple(MIXES)
    requests: Sequence[int] = (1, 5, 10, 15, 20)
    in_flight: Sequence[int] = (1, 5, 10, 15, 20, 30)
    seconds: float = 1.0
    sustained: float = 0.5
    poisson: bool = True
    classes: bool = True
    items: int = 0


@dataclass(frozen=True)
class Searched:
    """Captured searches of a model; `narrow` as shapes.narrow_matrices."""

    beams: GraphBeamLanes
    architecture: Architecture
    narrow_head: bool
    narrow: dict[str, float] = field(default_factory=dict)


def measure(what: Searched, loads: BeamLoads, card: Card, stage: Say, line: Say) -> dict[str, Any]:
    """The whole report. What a recorder of kernels leaves behind slows launches down, so that comes last."""
    result: dict[str, Any] = {**asdict(loads), "mixes": {}}
    timers = {}
    for mix in loads.mixes:
        stage(f"capturing graphs for {mix} prompts")
        timer = timers[mix] = MixTimer(what, loads, card, mix)
        line(f"{mix}: {what.beams.num_graphs} graphs on {what.beams.pool.num_lanes} lanes")
        found: dict[str, Any] = {"check": timer.check()}
        result["mixes"][mix] = found
        line(f"{mix}: {found['check']}")
        found["graphs"] = [timer.time(count, line) for count in loads.requests]
        found |= timer.load(line)
    if loads.items:
        stage(f"compiling {loads.items} legal sequences")
        result["items"] = time_items(what, loads, timers[loads.mixes[0]], line)
    result["fallbacks"] = what.beams.fallbacks
    line(f"fallbacks to launches without a graph: {result['fallbacks']}")
    if loads.classes:
        for mix, timer in timers.items():
            result["mixes"][mix]["kernels"] = [timer.kernels(count, line) for count in loads.requests]
    return result


class MixTimer:
    """Measures prompts of one mix; nothing else is at work on the card."""

    def __init__(self, what: Searched, loads: BeamLoads, card: Card, mix: str) -> None:
        self.what, self.loads, self.card, self.mix = what, loads, card, mix
        self.plan = SearchPlan(loads.steps)
        self.prompts = draw_prompts(mix, what.architecture.vocab_size)
        mean, most = MIXES[mix]
        self.sizes = SearchSizes(loads.width, loads.prompts, most, loads.prompts * most, loads.steps)
        every = make_beam_buckets(self.sizes).all
        self.buckets = BeamBuckets(
            [each for each in every if each.width == loads.width and _likely(each, mean)]
        )
        self.legal: LegalTensors | None = None
        what.beams.prepare(self.plan, self.sizes, None, self.buckets)

    def use(self, slots: LegalSlots, legal: PlacedLegal) -> None:
        """From here on only legal sequences; graphs of the batches that are timed alone."""
        wanted = []
        for count in self.loads.requests:
            tokens = sum(map(len, self.prompts[:count]))
            wanted.append(self.buckets.choose(count, tokens, self.loads.width))
        buckets = BeamBuckets([bucket for bucket in wanted if bucket is not None])
        self.what.beams.prepare(self.plan, self.sizes, slots, buckets)
        self.legal = legal

    def search(self, prompts: Sequence[list[int]]) -> Frontier:
        """On a lane; waits."""
        beams = self.what.beams
        given = pack(prompts), [self.loads.width] * len(prompts), self.plan, self.legal
        found: Frontier = beams.pool.executor.submit(beams.search, *given).result()
        return found

    def check(self) -> dict[str, Any]:
        """A batch twice, its bits equal; its first request alone, by its scores."""
        batch = self.prompts[: self.loads.requests[-1]]
        first, again, alone = self.search(batch), self.search(batch), self.search(batch[:1])
        return {
            "repeat_equal": torch.equal(first.tokens, again.tokens)
            and torch.equal(first.scores, again.scores),
            "finite": bool(first.scores.isfinite().all()),
            "alone_max_difference": float((first.scores[0] - alone.scores[0]).abs().max()),
        }

    def time(self, count: int, line: Say) -> dict[str, Any]:
        """One graph of `count` requests: bursts, and back to back."""
        batch = self.prompts[:count]
        timing = self.card.time(self._hold(batch), self.loads.sustained)
        flops, fp8 = self._flops(batch)
        seconds, peaks = timing.sustained_ms / 1e3, self.card.peaks
        row: dict[str, Any] = {
            "requests": count, "rows": count * self.loads.width, "prompt_tokens": sum(map(len, batch)),
            "burst_ms": timing.burst_ms, "sustained_ms": timing.sustained_ms,
            "requests_per_s": count / seconds, "tflops": flops / seconds / 1e12,
            "mfu_bf16": None if peaks is None else flops / peaks.bf16 / seconds,
            "mfu_weighted": None if peaks is None
            else ((flops - fp8) / peaks.bf16 + fp8 / peaks.fp8) / seconds,
            **asdict(timing.state),
        }  # fmt: skip
        line(f"{self.mix}: {count} requests, {row['prompt_tokens']} prompt tokens: {_timed(row)}")
        return row

    def load(self, line: Say) -> dict[str, Any]:
        """Closed loops, then random arrivals up to where the mean is too long."""
        loads, lanes, how = self.loads, self._lanes(), {"seconds": self.loads.seconds}
        closed = []
        for count in loads.in_flight:
            closed.append(run_closed(lanes, self.prompts, count, **how))
            line(f"{self.mix}: {count} in flight: {_told(closed[-1])}")
        found: dict[str, Any] = {"closed": [asdict(each) for each in closed], "best_closed": _best(closed)}
        line(f"{self.mix}: closed loop, best with mean < {MEAN_MS:g} ms: {found['best_closed']}")
        if loads.poisson and found["best_closed"]:
            first = FIRST_RATE * found["best_closed"]["requests_per_s"]
            arrivals = best_rate(lanes, self.prompts, first, mean_ms=MEAN_MS, **how)
            for each in arrivals:
                line(f"{self.mix}: {each.offered:.0f}/s at random: {_told(each)}")
            found |= {"poisson": [asdict(each) for each in arrivals], "best_poisson": _best(arrivals)}
            line(f"{self.mix}: random arrivals, best with mean < {MEAN_MS:g} ms: {found['best_poisson']}")
        flops, _ = self._flops(self.prompts)
        found["gflop_a_request"] = flops / len(self.prompts) / 1e9
        return found

    def kernels(self, count: int, line: Say) -> dict[str, Any]:
        """Share of the kernels' time by class, and the longest of them in microseconds."""
        times = self.card.kernel_times(self._hold(self.prompts[:count]))
        row: dict[str, Any] = {"requests": count, "shares": None, "longest": None}
        if times is not None:
            longest = sorted(times.items(), key=lambda item: -item[1])[:12]
            row |= {"shares": shares(times), "longest": {name[:100]: us for name, us in longest}}
            told = ", ".join(f"{kind} {share:.0%}" for kind, share in row["shares"].items() if share)
            line(f"{self.mix}: {count} requests: {sum(times.values()) / 1e3:.2f} ms in kernels: {told}")
        return row

    def _lanes(self) -> Lanes:
        pool, width = self.what.beams.pool, self.loads.width

        def begin(prompts: Sequence[Prompt]) -> Finish:
            return self.what.beams.begin(pack(prompts), [width] * len(prompts), self.plan, self.legal)

        return Lanes(pool.executor, pool.finisher, begin, pool.num_lanes, self.loads.prompts)

    def _hold(self, prompts: Sequence[list[int]]) -> Callable[[], None]:
        beams = self.what.beams
        given = pack(prompts), [self.loads.width] * len(prompts), self.plan, self.legal
        replay: Callable[[], None] = beams.pool.executor.submit(beams.hold, *given).result()
        return replay

    def _flops(self, prompts: Sequence[list[int]]) -> tuple[float, float]:
        what, loads = self.what, self.loads
        lengths = [len(prompt) for prompt in prompts]
        return count_flops(
            what.architecture, lengths, loads.width, loads.steps, what.narrow, what.narrow_head
        )


def time_items(what: Searched, loads: BeamLoads, timer: MixTimer, line: Say) -> dict[str, Any]:
    """The same graphs with a set of legal sequences: milliseconds, its memory, and that no other is found."""
    legal = draw_items(loads.items, loads.steps + 1, what.architecture.vocab_size)
    slots = what.beams.make_slots()
    placed = slots.place(legal, None)
    timer.use(slots, placed)
    found = timer.search(timer.prompts[: loads.requests[-1]])
    assert found.nodes is not None
    leaves = legal.offsets[found.nodes + 1] == legal.offsets[found.nodes]
    illegal = int((~leaves & found.scores.isfinite()).sum())
    size = sum(x.nbytes for x in (placed.offsets, placed.tokens, placed.children))
    line(f"{loads.items} legal sequences: {size / 1e6:.0f} MB on the device, twice; {illegal} illegal found")
    rows = [timer.time(count, line) for count in loads.requests]
    timer.legal = None
    return {"count": loads.items, "bytes": size, "illegal": illegal, "graphs": rows}


def _likely(bucket: BeamBucket, mean: float) -> bool:
    """Of prompts of this mean."""
    spread = 1 + SPREAD / math.sqrt(bucket.prompts)
    return bucket.prompts < 4 or mean / spread <= bucket.tokens / bucket.prompts <= mean * spread


def _best(loads: Sequence[Load]) -> dict[str, Any] | None:
    quick = [load for load in loads if load.mean_ms < MEAN_MS]
    return asdict(max(quick, key=lambda load: load.requests_per_s)) if quick else None


def _timed(row: Mapping[str, Any]) -> str:
    burst = "" if row["burst_ms"] is None else f"burst {row['burst_ms']:.2f} ms, "
    known = row["mfu_bf16"] is not None
    mfu = f", mfu_bf16 {row['mfu_bf16']:.3f}, weighted {row['mfu_weighted']:.3f}" if known else ""
    return (
        f"{burst}sustained {row['sustained_ms']:.2f} ms, {row['requests_per_s']:.0f} requests/s, "
        f"{row['tflops']:.0f} useful TFLOP/s{mfu}"
    )


def _told(load: Load) -> str:
    return (
        f"{load.requests_per_s:.0f} requests/s, mean {load.mean_ms:.1f} ms, p99 {load.p99_ms:.1f} ms, "
        f"{load.batch:.1f} a batch"
    )
