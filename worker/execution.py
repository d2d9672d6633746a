"""Prepared requests into the engine: a batch whenever a slot is free, checked against Redis and the clock.

One Execution a pipeline, on the event loop; the engine runs on its own threads. No timer waits for company: a
free slot (worker.slots) takes what is there. Deadlines are checked while waiting, when a batch forms, right
before the model launches (`wanted`, on the lane's thread) and before publishing; Redis is asked for every
batch, and once more before a request is refused because its message says that it is over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from engine.answers import Answer, Failure, Result
from engine.demand import NOTHING, Demand, total
from engine.pipeline import Pipeline
from schemas.deadlines import CANCELLED
from schemas.messages import ErrorCode
from worker.deadlines import Deadline, effective
from worker.forecast import Forecast, Running
from worker.metrics import PipelineMetrics
from worker.packing import Look
from worker.records import Verdict, Work
from worker.redis_deadlines import DeadlineStore
from worker.second_look import SecondLook, cancellation
from worker.slots import Slots
from worker.verdicts import expiry, judge, refusal
from worker.waiting import WaitingRoom
from worker.window import Busy

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ExecutionRules:
    """overload_factor 0: never refuse for load. publish_late: send an answer even after its deadline."""

    overload_factor: float = 1.0
    publish_late: bool = False


@dataclass(frozen=True)
class Exits:
    """How works leave: settled (counted as busy before) or released. prepare: those that were over at receipt
    and are not any more need their last step. on_bug: a batch was lost, this process cannot mend it."""

    settle: Callable[[Work, Verdict], Coroutine[Any, Any, None]]
    release: Callable[[Work], None]
    prepare: Callable[[Work], None]
    on_bug: Callable[[str], None]


class Execution:
    """Queue and slots of one pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        store: DeadlineStore,
        busy: Busy,
        metrics: PipelineMetrics,
        rules: ExecutionRules,
        exits: Exits,
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._clock = store.clock
        self._busy = busy
        self._metrics = metrics
        self._rules = rules
        self._exits = exits
        self._budget = Demand(pipeline.capacity.tokens, pipeline.capacity.samples)
        self._slots = Slots(pipeline.capacity.batches, self._fill, pipeline.tell_turns_sooner)
        self._second_look = SecondLook(store, self._revive, self.finish)
        self._room = WaitingRoom(self._budget, self._clock, self._second_look.take, metrics.queue)
        self._forecast = Forecast(self._budget, pipeline.capacity.batches, pipeline.cost)
        self._running: set[asyncio.Task[None]] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._held = False
        self._abandoned = False

    @property
    def num_waiting(self) -> int:
        return len(self._room)

    def push(self, work: Work) -> None:
        """Take a prepared request: it runs, expires in the queue, or is refused as hopeless."""
        if (verdict := self._hopeless(work)) is not None:
            self.finish(work, verdict)
            return
        self._room.push(work)
        self._fill()

    def expire(self, work: Work, verdict: Verdict) -> None:
        """Settle a work that was over at receipt, unless Redis has extended it."""
        self._second_look.take(work, verdict)

    def finish(self, work: Work, verdict: Verdict) -> None:
        """Settle a work that is not in a batch."""
        self._busy.begin()
        self._end(work, verdict)

    def hold(self) -> list[Work]:
        """Form no batch until `resume`; gives back what waits."""
        self._held = True
        return self._room.drain() + self._second_look.drain()

    def resume(self) -> None:
        self._held = False
        self._fill()

    def abandon(self) -> None:
        """The process ends: nothing more reaches a model, and nothing is waited for."""
        self._abandoned = self._held = True
        for task in [*self._running, *self._settling]:
            task.cancel()

    def _revive(self, work: Work) -> None:
        if work.prepared is None:  # it was over at receipt
            self._exits.prepare(work)
        else:
            self.push(work)

    def _hopeless(self, work: Work) -> Verdict | None:
        """Refuse now what the queue ahead would let expire. Never when a slot is free: an estimate spoilt by
        one slow batch must be able to mend itself."""
        assert work.deadline is not None, "admitted"
        remaining_ms = work.deadline.remaining_ms(self._clock.now_ms())
        if remaining_ms is None or not self._rules.overload_factor or self._slots.free:
            return None
        wait_ms = self._forecast.wait_ms(self._room.ahead_of(work.priority) + work.demand, _now_ms())
        if wait_ms is None or wait_ms * self._rules.overload_factor <= remaining_ms:
            return None
        message = f"about {wait_ms:.0f} ms of work ahead, {remaining_ms} ms left to the deadline"
        return refusal(ErrorCode.OVERLOADED, message)

    def _fill(self, turn_s: float | None = None) -> None:
        """Start batches while slots are free. `turn_s`: since when a lane has been asking for one."""
        while not self._held and self._slots.free and (batch := self._room.form(self._choose)):
            self._busy.begin(len(batch))
            running = self._forecast.begin(total(work.demand for work in batch), _now_ms())
            self._slots.take(running)
            task = asyncio.create_task(self._run(batch, running, turn_s))
            self._running.add(task)
            task.add_done_callback(partial(self._batch_done, running))

    def _choose(self, fitting: Sequence[Work], look: Look) -> int:
        """How many of those that fit a batch."""
        count = self._forecast.choose(fitting, look, self._clock.now_ms(), _now_ms())
        self._metrics.batches_cut.inc(count < len(fitting))
        return count

    def _batch_done(self, running: Running, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slots.leave(running)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a batch was lost to a bug", exc_info=error)
            self._exits.on_bug(f"a batch was lost: {error!r}")
        self._fill()

    async def _run(self, batch: list[Work], running: Running, turn_s: float | None) -> None:
        ran = NOTHING
        try:
            ran = await self._check_and_run(batch, running, turn_s)
        finally:
            self._forecast.end(running, _now_ms(), ran)

    async def _check_and_run(self, batch: list[Work], running: Running, turn_s: float | None) -> Demand:
        """What of it was computed."""
        formed_s = time.perf_counter()
        wanted = await self._check(batch)
        launched_s = time.perf_counter()
        self._metrics.stage["lookup"].observe(launched_s - formed_s)
        if not wanted:
            return NOTHING
        for work in wanted:
            work.launched_s = launched_s
            self._metrics.stage["queue"].observe(launched_s - work.received_s - work.tokenize_s)
        self._slots.handed_over(turn_s)
        results = await self._submit(wanted, self._slots.turn_of(running))
        self._metrics.stage["execute"].observe(time.perf_counter() - launched_s)
        self._metrics.batches.inc()
        self._metrics.batch_tokens.observe(sum(work.num_tokens for work in wanted))
        now_ms = self._clock.now_ms()
        for work, result in zip(wanted, results, strict=True):
            work.model_runs = result.model_runs
            if isinstance(result, Answer):
                work.gpu_ms = result.gpu_ms
                self._metrics.prefix_tokens["constant"].inc(result.saved.constant)
                self._metrics.prefix_tokens["request"].inc(result.saved.request)
            verdict = judge(work, result, now_ms, publish_late=self._rules.publish_late)
            if verdict is None:
                self._busy.end()
                self._exits.release(work)
            else:
                self._end(work, verdict)
        answered = any(isinstance(result, Answer) for result in results)
        return total(work.demand for work in wanted) if answered else NOTHING

    async def _check(self, batch: list[Work]) -> list[Work]:
        """Ask Redis once for the whole batch; settle what is cancelled or over."""
        found = await self._store.lookup([work.request_id or "" for work in batch])
        wanted = []
        for work in batch:
            assert work.deadline is not None, "admitted"
            deadline = effective(work.deadline, found.get(work.request_id or ""))
            if deadline is CANCELLED:
                self._end(work, cancellation())
                continue
            assert isinstance(deadline, Deadline), "either cancelled or a deadline"
            work.deadline = deadline
            if (verdict := expiry(work, self._clock.now_ms(), "when its batch formed")) is not None:
                self._end(work, verdict)
            else:
                wanted.append(work)
        return wanted

    async def _submit(self, batch: list[Work], on_turn: Callable[[], None]) -> Sequence[Result]:
        prepared = []
        for work in batch:
            assert work.prepared is not None, "admitted"
            assert work.deadline is not None, "admitted"
            work.prepared.wanted = self._wanted(work.deadline)
            prepared.append(work.prepared)
        try:
            return await asyncio.wrap_future(self._pipeline.submit(prepared, on_turn))
        except Exception as error:  # the engine's future never fails: this is its bug, and only this batch's
            log.exception("a batch could not be run: its requests fail", requests=len(batch))
            return [Failure(f"{type(error).__name__}: {error}", "internal", None, 0)] * len(batch)

    def _wanted(self, deadline: Deadline) -> Callable[[], bool]:
        return lambda: not (self._abandoned or deadline.expired(self._clock.now_ms()))

    def _end(self, work: Work, verdict: Verdict) -> None:
        task = asyncio.create_task(self._exits.settle(work, verdict))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)


def _now_ms() -> float:
    """Of the forecast's clock."""
    return time.perf_counter() * 1e3
