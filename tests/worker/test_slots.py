"""When a batch is formed: at its lane's turn, with who came until then; nothing is lost by a lane that fails.

The model acts a device out: a batch is on it from `begin` until the test ends it, and the lane's turn is when
the test says so.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from aiokafka import ConsumerRecord, TopicPartition

from engine.graph import Capacity, Node, NodeContext
from engine.pipeline import ArtifactStore, Pipeline
from engine.values import Rows, Tokens
from fixed_cost import numbers_pipeline
from schemas.messages import Outcome, Request, Sample
from worker.deadlines import Deadline
from worker.execution import Execution, ExecutionRules, Exits
from worker.forecast import Running
from worker.metrics import PipelineMetrics, WorkerMetrics
from worker.offsets import Place
from worker.records import Verdict, Work
from worker.redis_deadlines import DeadlineStore
from worker.slots import Lead, Slots
from worker.window import Busy

PATIENCE_S = 20.0
BAD = 13


class Device(Node):
    """One lane. A batch's turn and its end come as often as the test allows them."""

    consumes = (Tokens,)
    produces = Rows
    is_model = True

    def __init__(self, options: Any, context: NodeContext) -> None:
        self.capacity = Capacity(64, 16, 1)
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="lane")
        self.finisher = ThreadPoolExecutor(4, thread_name_prefix="finish")
        self.turns, self.ends = threading.Semaphore(0), threading.Semaphore(0)
        self.batches: list[list[int]] = []

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        return self.begin(requests)()

    def begin(self, requests: Sequence[tuple[Any, ...]]) -> Callable[[], Sequence[object]]:
        numbers = [tokens.ids[0][0] for (tokens,) in requests]
        self.batches.append(numbers)
        if BAD in numbers:
            raise RuntimeError("the lane failed")
        assert self.turns.acquire(timeout=PATIENCE_S)

        def rest() -> Sequence[object]:
            assert self.ends.acquire(timeout=PATIENCE_S)
            return [Rows(({"number": number},)) for number in numbers]

        return rest

    def close(self) -> None:
        for allowed in (self.turns, self.ends):
            allowed.release(100)
        for pool in (self.executor, self.finisher):
            assert pool is not None
            pool.shutdown()


class Site:
    """An Execution over one Device."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        (self.device,) = (node for node in pipeline._graph.nodes.values() if isinstance(node, Device))
        self.settled: dict[int, Verdict] = {}
        self.bugs: list[str] = []
        self.busy, self.store = Busy(), DeadlineStore(None)
        exits = Exits(self._settle, lambda work: None, lambda work: None, self.bugs.append)
        metrics = PipelineMetrics(WorkerMetrics(), "numbers")
        self.execution = Execution(pipeline, self.store, self.busy, metrics, ExecutionRules(), exits)

    async def _settle(self, work: Work, verdict: Verdict) -> None:
        self.settled[work.arrival] = verdict
        self.busy.end()

    def push(self, *numbers: int) -> None:
        now_ms = self.store.clock.now_ms()
        for number in numbers:
            request = Request(id=str(number), pipeline="numbers", samples=(Sample(text=str(number)),))
            record = ConsumerRecord("t", 0, number, 0, 0, None, b"", None, -1, -1, ())
            place = Place(TopicPartition("t", 0), number, 1)
            work = Work(place, record, number, now_ms, time.perf_counter())
            work.request_id, work.request, work.deadline = request.id, request, Deadline(None, 2**60)
            work.prepared = self.pipeline.prepare(request.samples)
            self.execution.push(work)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.002)

    async def begun(self, *batches: list[int]) -> None:
        await self.until(lambda: len(self.device.batches) >= len(batches))
        assert self.device.batches == list(batches)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    pipeline = Pipeline.open(numbers_pipeline(f"{__name__}:Device"), ArtifactStore({}))
    opened = Site(pipeline)
    yield opened
    await asyncio.to_thread(opened.device.close)
    pipeline.close()


async def test_who_comes_before_the_lane_s_turn_is_in_its_next_batch(site: Site) -> None:
    site.push(1)
    await site.begun([1])
    for number in (2, 3, 4):  # one after the other, each with time to be taken
        site.push(number)
        await asyncio.sleep(0.01)
    assert site.execution.num_waiting == 3
    site.device.turns.release()
    await site.begun([1], [2, 3, 4])
    assert not site.settled  # the device has not ended the first
    site.push(5)
    site.device.ends.release()  # results alone are no turn: the second batch is before its own
    await site.until(lambda: 1 in site.settled)
    assert site.execution.num_waiting == 1
    site.device.turns.release(2)
    await site.begun([1], [2, 3, 4], [5])
    site.device.ends.release(2)
    await site.until(lambda: len(site.settled) == 5)
    assert {verdict.outcome for verdict in site.settled.values()} == {Outcome.OK}
    assert await site.busy.none(5)


async def test_a_turn_that_nobody_waits_for_leaves_the_slot_free(site: Site) -> None:
    site.push(1)
    await site.begun([1])
    site.device.turns.release()
    await site.until(lambda: site.execution._slots.free)
    site.push(2)
    await site.begun([1], [2])
    assert not site.settled


async def test_a_lane_that_fails_before_its_turn_gives_its_slot_back(site: Site) -> None:
    site.push(BAD)
    await site.until(lambda: BAD in site.settled)
    assert site.settled[BAD].outcome is Outcome.FAILED
    site.push(1)
    await site.begun([BAD], [1])
    site.push(BAD - 1, BAD)
    site.device.turns.release(2)
    await site.until(lambda: len(site.device.batches) == 3)
    site.push(3)
    await site.begun([BAD], [1], [BAD - 1, BAD], [3])
    site.device.ends.release(2)
    await site.until(lambda: {1, 3} <= site.settled.keys())
    assert site.settled[BAD - 1].outcome is Outcome.FAILED
    assert site.bugs == []


async def test_turns_form_nothing_while_held_or_abandoned(site: Site) -> None:
    site.push(1)
    await site.begun([1])
    site.push(2)
    assert [work.arrival for work in site.execution.hold()] == [2]
    site.push(3)
    site.device.turns.release()
    await site.until(lambda: site.execution._slots.free)
    assert site.device.batches == [[1]]
    site.execution.resume()
    await site.begun([1], [3])
    site.push(4)
    site.execution.abandon()
    site.device.turns.release(2)
    site.device.ends.release(2)
    await asyncio.sleep(0.05)
    assert site.device.batches == [[1], [3]]
    assert site.execution.num_waiting == 1


async def test_results_that_nobody_writes_stop_the_forming(site: Site) -> None:
    site.device.turns.release(10)
    for number in (1, 2, 3):
        site.push(number)
        await site.until(lambda number=number: [number] in site.device.batches)
    await site.until(lambda: all(batch.turned for batch in site.execution._slots._under_way))
    site.push(4)
    await asyncio.sleep(0.02)
    assert site.execution.num_waiting == 1
    site.device.ends.release()
    await site.begun([1], [2], [3], [4])


async def test_turns_are_told_sooner_by_what_forming_takes(site: Site) -> None:
    site.push(1)
    await site.begun([1])
    site.push(2)
    assert site.device.lead_s == 0.0  # no lane has asked for a batch yet
    site.device.turns.release()
    await site.begun([1], [2])
    assert site.device.lead_s == pytest.approx(0.9 * 50e-6)  # it took longer than nothing


def test_the_lead_is_a_quantile() -> None:
    lead = Lead()
    for turn in range(2000):
        lead.observe(0.0005 if turn % 20 else 0.5)  # now and then something pauses
    assert 0.0004 < lead.seconds < 0.0008
    for _ in range(4000):
        lead.observe(0.0)
    assert lead.seconds < 1e-4


async def test_a_turn_after_the_results_changes_nothing() -> None:
    told: list[float] = []
    slots = Slots(1, told.append, lambda seconds: None)
    running = Running(demand=None, began_ms=0.0, cost_ms=0.0, end_ms=0.0)  # type: ignore[arg-type]
    slots.take(running)
    turn = slots.turn_of(running)
    assert not slots.free
    slots.leave(running)
    await asyncio.to_thread(turn)
    await asyncio.sleep(0)
    assert slots.free
    assert len(told) == 1
