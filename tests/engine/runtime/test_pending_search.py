"""Two batches of a lane at once: whose memory is whose, and when a lane takes the next one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from threading import Event
from typing import Any

import pytest
import torch

from eager_beams import PLAN, PROMPTS, WIDTH, EagerBeams, items, make_beams, make_model, plain, same
from engine.beam.frontier import Frontier
from engine.beam.legal import LegalTensors
from engine.packed import pack
from engine.runtime import beam_graph, pending_search
from engine.runtime.beam_buckets import BeamBucket, BeamBuckets, SearchSizes
from engine.runtime.beam_transfer import HostResults
from engine.runtime.legal_slots import StaleLegalError
from engine.runtime.pending_search import CapturedSearch, HostSide, PendingSearch

SIZES = SearchSizes(WIDTH, 4, 20, 64)
FEW = BeamBuckets([BeamBucket(1, WIDTH, 22), BeamBucket(2, WIDTH, 22), BeamBucket(2, WIDTH, 46)])
ONE, OTHER, THIRD = [PROMPTS[0]], PROMPTS[1:3], PROMPTS[3:]
Finish = Callable[[], Frontier]


@pytest.fixture
def beams(acted_cuda: None) -> Iterator[EagerBeams]:
    del acted_cuda
    made = make_beams(make_model(), 1)
    yield made
    made.pool.close()


def begin(
    beams: EagerBeams, prompts: list[list[int]], legal: LegalTensors | None = None
) -> Future[Callable[[], Frontier]]:
    return beams.pool.executor.submit(beams.begin, pack(prompts), [WIDTH] * len(prompts), PLAN, legal)


def test_results_wait_while_the_next_batch_is_launched(beams: EagerBeams) -> None:
    beams.prepare(PLAN, SIZES, None, FEW)
    wanted = [plain(beams, prompts, [WIDTH] * len(prompts)) for prompts in (ONE, OTHER, THIRD)]
    first, second = (begin(beams, prompts).result(60) for prompts in (ONE, OTHER))
    third = begin(beams, THIRD)
    assert not wait([third], 0.05).done  # there is no third set of memory
    same(first(), wanted[0])
    same(third.result(60)(), wanted[2])
    same(second(), wanted[1])
    assert beams.fallbacks == 0


def test_a_lane_with_two_batches_leaves_threads_for_the_others_results(acted_cuda: None) -> None:
    """With as many threads as lanes, results of one lane waited until both batches of another had ended."""
    del acted_cuda
    made, both_ended = make_beams(make_model(), 2), Event()
    try:
        for _ in range(2):
            made.finisher.submit(both_ended.wait)
        made.finisher.submit(lambda: None).result(10)
    finally:
        both_ended.set()
        made.pool.close()


def test_results_that_nobody_takes_do_not_stop_a_lane_for_ever(
    beams: EagerBeams, monkeypatch: pytest.MonkeyPatch
) -> None:
    beams.prepare(PLAN, SIZES, None, FEW)
    monkeypatch.setattr(pending_search, "PATIENCE_S", 0.01)
    pending = [begin(beams, ONE).result(60) for _ in range(2)]
    with pytest.raises(TimeoutError, match="results of a search were not taken"):
        begin(beams, ONE).result(60)
    for finish in pending:
        finish()
    same(begin(beams, ONE).result(60)(), plain(beams, ONE, [WIDTH]))


def test_memory_is_given_back_where_a_batch_fails(beams: EagerBeams, monkeypatch: pytest.MonkeyPatch) -> None:
    beams.prepare(PLAN, SIZES, None, FEW)

    def fail(*_: object) -> None:
        raise RuntimeError("acted")

    # At its launch, behind it, and when its results are taken.
    for part, name in ((CapturedSearch, "enqueue"), (HostResults, "room"), (CapturedSearch, "learn")):
        with monkeypatch.context() as patch:
            patch.setattr(part, name, fail)
            for _ in range(3):
                job = beams.pool.executor.submit(beams.search, pack(ONE), [WIDTH], PLAN)
                with pytest.raises(RuntimeError, match="acted"):
                    job.result(60)
    same(begin(beams, ONE).result(60)(), plain(beams, ONE, [WIDTH]))


def test_memory_is_not_given_back_before_what_was_enqueued_has_read_it(
    beams: EagerBeams, monkeypatch: pytest.MonkeyPatch
) -> None:
    beams.prepare(PLAN, SIZES, None, FEW)
    order: list[str] = []

    def fail(*_: object) -> None:
        raise MemoryError("acted")

    with monkeypatch.context() as patch:
        patch.setattr(HostResults, "room", fail)
        patch.setattr(torch.cuda.Stream, "synchronize", lambda _: order.append("synchronize"))
        patch.setattr(HostSide, "give_back", lambda _: order.append("give back"))
        with pytest.raises(MemoryError, match="acted"):
            begin(beams, ONE).result(60)
    assert order == ["synchronize", "give back"]


def test_room_for_results_is_made_while_the_device_works(
    beams: EagerBeams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the end of a search is followed by copies alone."""
    beams.prepare(PLAN, SIZES, None, FEW)
    finish = begin(beams, ONE).result(60)

    def fail(*_: object) -> None:
        raise AssertionError("made after the launch")

    with monkeypatch.context() as patch:
        patch.setattr(HostResults, "room", fail)
        found = finish()
    same(found, plain(beams, ONE, [WIDTH]))


def test_making_room_counts_as_pythons_part_of_a_launch(
    beams: EagerBeams, monkeypatch: pytest.MonkeyPatch
) -> None:
    beams.prepare(PLAN, SIZES, None, FEW)
    make, busy_s = HostResults.room, 0.2

    def slowly(*given: Any) -> Any:
        until = time.thread_time() + busy_s
        while time.thread_time() < until:
            pass
        return make(*given)

    monkeypatch.setattr(HostResults, "room", slowly)
    begin(beams, ONE).result(60)()
    assert beams.pool.launch_report.python_max_ms >= 1e3 * busy_s


def test_a_device_that_fails_meanwhile_is_told_by_the_results(
    beams: EagerBeams, monkeypatch: pytest.MonkeyPatch
) -> None:
    beams.prepare(PLAN, SIZES, None, FEW)

    def fail(_: object) -> None:
        raise RuntimeError("acted")

    with monkeypatch.context() as patch:
        patch.setattr(PendingSearch, "wait", fail)
        for _ in range(3):
            finish = begin(beams, ONE).result(60)
            with pytest.raises(RuntimeError, match="acted"):
                finish()
    same(begin(beams, ONE).result(60)(), plain(beams, ONE, [WIDTH]))


def test_items_are_in_use_until_results_are_there(beams: EagerBeams) -> None:
    slots = beams.make_slots()
    old = slots.place(items(0, 50), None)
    beams.prepare(PLAN, SIZES, slots, FEW)
    finish = begin(beams, ONE, old).result(60)
    assert slots._users == [1, 0]
    new = slots.place(items(10, 50), old)
    found = finish()
    assert slots._users == [0, 0]
    same(found, plain(beams, ONE, [WIDTH], PLAN, items(0, 50)))
    slots.place(items(20, 50), new)
    with pytest.raises(StaleLegalError):
        begin(beams, ONE, old).result(60)


def test_a_pipeline_that_closes_while_its_items_outgrow_their_place_leaves_no_graphs(
    beams: EagerBeams, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = beams.make_slots()
    old = slots.place(items(0, 50), None)
    beams.prepare(PLAN, SIZES, slots, FEW)
    gather, gathered = beams.pool.on_every_lane, 0

    def close_after_one(task: Callable[[], None]) -> None:
        nonlocal gathered
        gather(task)
        gathered += 1
        if gathered == 1:  # the first graph over the larger place is there, the others are not
            beams.release(slots)

    monkeypatch.setattr(beams.pool, "on_every_lane", close_after_one)
    slots.place(items(0, 5000), old)
    assert gathered > 2
    assert beams.num_graphs == 0


def test_a_pipeline_that_closes_before_its_items_are_captured_anew_is_no_error(
    beams: EagerBeams, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = beams.make_slots()
    old = slots.place(items(0, 50), None)
    beams.prepare(PLAN, SIZES, slots, FEW)
    whole = slots.whole

    def close_first(slot: int) -> LegalTensors:
        beams.release(slots)
        return whole(slot)

    monkeypatch.setattr(slots, "whole", close_first)
    slots.place(items(0, 5000), old)
    assert beams.num_graphs == 0


def test_a_lane_takes_the_next_batch_shortly_before_the_last_one_ends(
    beams: EagerBeams, monkeypatch: pytest.MonkeyPatch
) -> None:
    beams.prepare(PLAN, SIZES, None, FEW)
    slept: list[float] = []
    monkeypatch.setattr(beam_graph.time, "sleep", slept.append)
    elapsed = iter((20.0, 10.0, 15.0, 15.0, 30.0, 40.0))
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda *_: next(elapsed))
    begin(beams, ONE).result(60)()  # nothing is known yet: waits for the end
    assert slept == []
    for _ in range(3):
        begin(beams, ONE).result(60)()
    ahead = beam_graph.HEAD_START_S
    assert slept == pytest.approx([0.020 - ahead, 0.010 - ahead, 0.0102 - ahead])
    begin(beams, OTHER).result(60)()  # another number of prompts
    assert len(slept) == 3
    begin(beams, [PROMPTS[2]] * 2).result(60)()  # as many, longer
    assert slept[3:] == pytest.approx([0.030 - ahead])


def test_a_batch_that_takes_long_to_come_is_asked_for_sooner(
    beams: EagerBeams, monkeypatch: pytest.MonkeyPatch
) -> None:
    beams.prepare(PLAN, SIZES, None, FEW)
    slept: list[float] = []
    monkeypatch.setattr(beam_graph.time, "sleep", slept.append)
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda *_: 10.0)
    begin(beams, ONE).result(60)()
    for lead_s in (0.002, 0.020):  # longer than a search: at once
        job = beams.pool.executor.submit(beams.begin, pack(ONE), [WIDTH], PLAN, None, lead_s)
        job.result(60)()
    assert slept == pytest.approx([0.010 - beam_graph.HEAD_START_S - 0.002])
