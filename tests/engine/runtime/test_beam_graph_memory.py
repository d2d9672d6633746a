"""What captured searches hold of a device, acted out on the CPU: graphs and bytes, as loading tells."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from eager_beams import (
    PLAN,
    SIZES,
    WIDTH,
    OpenBeams,
    items,
    make_model,
)
from eager_beams import EagerBeams as Beams
from engine.runtime.beam_buckets import BeamBucket, BeamBuckets
from engine.runtime.beam_graph import BeamGraphLane

FEW = BeamBuckets([BeamBucket(4, WIDTH, 68), BeamBucket(2, WIDTH, 30)])  # acting a capture out takes its time


def test_graphs_and_what_they_take_are_in_the_report(
    open_beams: OpenBeams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each measured piece of work takes 1000 bytes here: a lane's own graphs, its state, what it captured."""
    free = itertools.count(1_000_000, -1_000)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (next(free), 0))
    beams = open_beams(make_model())
    alone = beams.pool.load_report
    beams.prepare(PLAN, SIZES, None, FEW)
    report = alone.joined(beams.load_report)
    assert beams.pool.load_report == alone
    assert report.graphs == alone.graphs + 2 * len(FEW.all)
    assert (alone.lane_bytes, report.lane_bytes) == ((1_000, 1_000), (3_000, 3_000))
    assert report.seconds > alone.seconds
    assert report.weights_bytes == alone.weights_bytes


def test_memory_that_a_pipeline_gives_back_is_not_counted(
    beams: Beams, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [1_000_000]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[0], 0))
    for name, taken in (("reserve", 5_000), ("drop", -5_000)):
        real = getattr(BeamGraphLane, name)

        def change(*given: Any, real: Any = real, taken: int = taken) -> None:
            free[0] -= taken
            real(*given)

        monkeypatch.setattr(BeamGraphLane, name, change)
    slots, before = beams.make_slots(), beams.load_report.lane_bytes
    slots.place(items(0, 50), None)
    beams.prepare(PLAN, SIZES, slots, FEW)
    assert beams.load_report.lane_bytes == tuple(each + 2 * 5_000 for each in before)  # both places
    beams.release(slots)
    assert beams.load_report.lane_bytes == tuple(each + 5_000 for each in before)
