"""How replays are timed, over a device acted out that works off what is enqueued in its own time."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tools.bench.card import CudaCard, card_uuid
from tools.bench.card_state import CardMonitor, CardState

REPLAY_S = 0.002


class ActedDevice:
    """Every replay takes REPLAY_S after those before it; at most `deepest` seconds ever waited."""

    def __init__(self) -> None:
        self.busy_until, self.replays, self.deepest = time.monotonic(), 0, 0.0

    def replay(self) -> None:
        now = time.monotonic()
        self.replays += 1
        self.busy_until = max(self.busy_until, now) + REPLAY_S
        self.deepest = max(self.deepest, self.busy_until - now)

    def synchronize(self, until: float | None = None) -> None:
        time.sleep(max(0.0, (until or self.busy_until) - time.monotonic()))

    def event(self, **_: Any) -> Any:
        made = SimpleNamespace(at=0.0)
        made.record = lambda: setattr(made, "at", max(self.busy_until, time.monotonic()))
        made.synchronize = lambda: self.synchronize(made.at)
        made.elapsed_time = lambda end: 1e3 * (end.at - made.at)
        return made

    def stream(self) -> Any:
        def record_event() -> Any:
            event = self.event()
            event.record()
            return event

        return SimpleNamespace(record_event=record_event)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> ActedDevice:
    acted = ActedDevice()
    for name, value in {
        "synchronize": acted.synchronize,
        "Event": acted.event,
        "Stream": acted.stream,
        "current_stream": acted.stream,
        "stream": lambda _: nullcontext(),
        "get_device_name": lambda: "NVIDIA H200",
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return acted


def test_a_burst_and_a_sustained_part(device: ActedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = CardMonitor()
    asked: list[tuple[float, float]] = []

    def during(start: float, stop: float) -> CardState:
        asked.append((start, stop))
        return CardState(1700, 690)

    monkeypatch.setattr(monitor, "during", during)
    card = CudaCard(monitor)
    began = time.monotonic()
    timing = card.time(device.replay, 0.2)
    assert timing.burst_ms is not None
    assert timing.burst_ms >= 1e3 * REPLAY_S * 0.99
    assert timing.sustained_ms >= 1e3 * REPLAY_S * 0.99  # not less than the device takes
    assert timing.state == CardState(1700, 690)
    ((start, stop),) = asked
    assert began < start < stop <= time.monotonic()
    assert device.deepest < 0.1  # the host waits before the driver's queue would be full
    assert card.peaks is not None


def test_a_round_of_two_counts_once(device: ActedDevice) -> None:
    timing = CudaCard(CardMonitor()).time_together([device.replay, device.replay], 0.1)
    assert timing.burst_ms is None
    assert timing.sustained_ms >= 2e3 * REPLAY_S * 0.99


@pytest.mark.parametrize(("uuid", "known"), [("ab-c", "GPU-ab-c"), ("GPU-ab-c", "GPU-ab-c"), (None, None)])
def test_the_card_as_nvidia_smi_names_it(
    uuid: str | None, known: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=uuid))
    assert card_uuid() == known
