"""A card as the engine's benchmark needs it: what it is, its ceilings, and how long replays take on it.

`CudaCard` measures the current device; a test puts another in its place. Nothing else may run meanwhile.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.profiler import DeviceType, ProfilerActivity, profile

from tools.bench.card_state import UNKNOWN, CardMonitor, CardState
from tools.bench.ceilings import measure_ceilings
from tools.bench.peaks import Peaks, peaks_of

Replay = Callable[[], None]  # enqueues work on the current stream
BURSTS, BURST_GAP_S = 9, 0.01  # the card cools between two bursts
SETTLED = 0.5  # of a sustained part: power is told as a mean of the last second, the clock falls with it
CHUNK_S = 0.01  # of work is enqueued at once, so at most twice that is waiting
PROFILED = 5  # replays


@dataclass(frozen=True)
class Timing:
    """Median of single replays with pauses, None where there were none; mean of back-to-back ones, and the
    card meanwhile."""

    burst_ms: float | None
    sustained_ms: float
    state: CardState = UNKNOWN


class Card(Protocol):
    """What the report asks for."""

    @property
    def name(self) -> str: ...

    @property
    def peaks(self) -> Peaks | None: ...

    def ceilings(self) -> Mapping[str, float]:
        """copy_tbps, gemm_bf16_tflops, gemm_fp8_tflops; what the card cannot do is left out."""

    def time(self, replay: Replay, seconds: float) -> Timing:
        """In bursts, then back to back for `seconds`."""

    def time_together(self, replays: Sequence[Replay], seconds: float) -> Timing:
        """Rounds of one replay each at the same time, back to back."""

    def kernel_times(self, replay: Replay) -> Mapping[str, float] | None:
        """Microseconds of one replay by kernel name; None where nothing was recorded."""


class CudaCard:
    """The current device; `monitor` tells its clock and power."""

    def __init__(self, monitor: CardMonitor) -> None:
        self._monitor = monitor
        self.name = torch.cuda.get_device_name()
        self.peaks = peaks_of(self.name)

    def ceilings(self) -> Mapping[str, float]:
        return measure_ceilings()

    def time(self, replay: Replay, seconds: float) -> Timing:
        singles = []
        event_ms(replay)
        for _ in range(BURSTS):
            time.sleep(BURST_GAP_S)
            singles.append(event_ms(replay))
        sustained, state = self._sustain([replay], [torch.cuda.current_stream()], seconds)
        return Timing(statistics.median(singles), sustained, state)

    def time_together(self, replays: Sequence[Replay], seconds: float) -> Timing:
        streams = [torch.cuda.Stream() for _ in replays]  # type: ignore[no-untyped-call]
        return Timing(None, *self._sustain(replays, streams, seconds))

    def kernel_times(self, replay: Replay) -> Mapping[str, float] | None:
        replay()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            for _ in range(PROFILED):
                replay()
            torch.cuda.synchronize()
        return device_times(recorded.key_averages(), PROFILED) or None

    def _sustain(
        self, replays: Sequence[Replay], streams: Sequence[torch.cuda.Stream], seconds: float
    ) -> tuple[float, CardState]:
        """Mean of a round, milliseconds. A chunk is enqueued while another runs, so the card never waits."""
        for warm in (1, 3):
            once = time.monotonic()
            _enqueue(replays, streams, warm)
            torch.cuda.synchronize()
            once = (time.monotonic() - once) / warm
        chunk, rounds = max(1, round(CHUNK_S / once)), 0
        start, before = time.monotonic(), list[torch.cuda.Event]()
        while time.monotonic() - start < seconds:
            _enqueue(replays, streams, chunk)
            rounds += chunk
            ends = [stream.record_event() for stream in streams]
            for event in before:
                event.synchronize()
            before = ends
        torch.cuda.synchronize()
        stop = time.monotonic()
        state = self._monitor.during(start + SETTLED * (stop - start), stop)
        return 1e3 * (stop - start) / rounds, state


def _enqueue(replays: Sequence[Replay], streams: Sequence[torch.cuda.Stream], rounds: int) -> None:
    for _ in range(rounds):
        for replay, stream in zip(replays, streams, strict=True):
            with torch.cuda.stream(stream):
                replay()


def event_ms(replay: Replay) -> float:
    """Of one replay, between two events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    replay()
    end.record()
    end.synchronize()
    elapsed: float = start.elapsed_time(end)
    return elapsed


def device_times(events: Iterable[Any], replays: int) -> dict[str, float]:
    """A recording's averages by name -> microseconds of one of its `replays` on the device."""
    found: dict[str, float] = {}
    for event in events:
        if event.device_type == DeviceType.CUDA and event.self_device_time_total > 0:
            found[event.key] = found.get(event.key, 0.0) + event.self_device_time_total / replays
    return found


def card_uuid() -> str | None:
    """Of the current device, as nvidia-smi names it."""
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    return None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"
