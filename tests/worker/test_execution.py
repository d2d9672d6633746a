"""The queue and the slots around a real pipeline, without Kafka: order, batches, expiry, giving back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import ConsumerRecord, TopicPartition

from engine.graph import Counted
from engine.pipeline import ArtifactStore, Pipeline
from engine.prefixes import Saved
from fixed_cost import FixedCost, numbers_pipeline
from schemas.messages import ErrorCode, Outcome, Request, Sample
from worker.deadlines import Deadline
from worker.execution import Execution, ExecutionRules, Exits
from worker.metrics import PipelineMetrics, WorkerMetrics
from worker.offsets import Place
from worker.records import Verdict, Work
from worker.redis_deadlines import DeadlineStore
from worker.window import Busy

FOREVER = Deadline(None, 2**60)


class Spared(FixedCost):
    """A model that prefixes spared 3 and 4 tokens a request."""

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        return [Counted(value, Saved(constant=3, request=4)) for value in super().run(requests)]


class Bench:
    """An Execution whose ends are kept in lists."""

    def __init__(self, pipeline: Pipeline, folder: Path, **rules: Any) -> None:
        self.pipeline, self.folder = pipeline, folder
        self.settled: dict[str, Verdict] = {}
        self.released: list[str] = []
        self.bugs: list[str] = []
        self.busy = Busy()
        self.store = DeadlineStore(None)
        exits = Exits(self._settle, self._release, lambda work: None, self.bugs.append)
        self.metrics = WorkerMetrics()
        metrics = PipelineMetrics(self.metrics, "numbers")
        self.execution = Execution(pipeline, self.store, self.busy, metrics, ExecutionRules(**rules), exits)
        self._arrival = 0

    async def _settle(self, work: Work, verdict: Verdict) -> None:
        self.settled[work.request_id or ""] = verdict
        self.busy.end()

    def _release(self, work: Work) -> None:
        self.released.append(work.request_id or "")

    def push(self, *texts: str, priority: int = 0, left_ms: int | None = None) -> str:
        name = texts[0]
        request = Request(
            id=name, pipeline="numbers", samples=tuple(Sample(text=text) for text in texts), priority=priority
        )
        now_ms = self.store.clock.now_ms()
        deadline = FOREVER if left_ms is None else Deadline(now_ms + left_ms, now_ms + left_ms)
        record = ConsumerRecord("t", 0, self._arrival, 0, 0, None, b"", None, -1, -1, ())
        place = Place(TopicPartition("t", 0), self._arrival, 1)
        work = Work(place, record, self._arrival, now_ms, time.perf_counter())
        work.request_id, work.request, work.deadline = name, request, deadline
        work.prepared = self.pipeline.prepare(request.samples)
        self._arrival += 1
        self.execution.push(work)
        return name

    def ran(self) -> list[int]:
        path = self.folder / "ran"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def go(self) -> None:
        (self.folder / "release").touch()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.005)


MakeBench = Callable[..., Bench]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[MakeBench]:
    opened: list[Pipeline] = []

    def make(requests: int = 1, model: str = "fixed_cost:FixedCost", **rules: Any) -> Bench:
        files = {name: str(tmp_path / name) for name in ("ran", "release")}
        config = numbers_pipeline(model, requests=requests, **files)
        opened.append(Pipeline.open(config, ArtifactStore({})))
        return Bench(opened[-1], tmp_path, **rules)

    yield make
    (tmp_path / "release").touch()
    for pipeline in opened:
        pipeline.close()


async def test_sooner_priorities_overtake_and_batches_hold_whole_requests(
    bench: MakeBench,
) -> None:
    found = bench(requests=4)  # at most 4 samples a batch
    found.push("1 hold")
    late = [found.push(str(number), priority=9) for number in (2, 3)]
    soon = found.push("4", "5", "6", priority=1)
    await found.until(lambda: found.ran() == [1])
    assert found.execution.num_waiting == 3
    found.go()
    await found.until(lambda: len(found.settled) == 4)
    assert found.ran() == [1, 4, 5, 6, 2, 3]
    assert {found.settled[name].outcome for name in (*late, soon)} == {Outcome.OK}
    assert found.settled[soon].rows == ({"number": 4}, {"number": 5}, {"number": 6})
    assert await found.busy.none(5)


async def test_tokens_that_prefixes_spared_are_counted_by_kind(bench: MakeBench) -> None:
    found = bench(requests=4, model=f"{__name__}:Spared")
    found.push("1")
    found.push("2", "3")
    await found.until(lambda: len(found.settled) == 2)
    for kind, tokens in (("constant", 6), ("request", 8)):
        labels = {"pipeline": "numbers", "kind": kind}
        assert found.metrics.registry.get_sample_value("boundgen_prefix_tokens_total", labels) == tokens


async def test_what_expires_in_the_queue_is_answered_before_a_slot_is_free(
    bench: MakeBench,
) -> None:
    found = bench()
    found.push("1 hold")
    late = found.push("2", left_ms=50)
    await found.until(lambda: late in found.settled)
    assert found.settled[late].outcome is Outcome.EXPIRED
    found.go()
    await found.until(lambda: len(found.settled) == 2)
    assert found.ran() == [1]


async def test_an_answer_that_comes_too_late_is_expired_unless_told_otherwise(
    bench: MakeBench,
) -> None:
    for publish_late, outcome in ((False, Outcome.EXPIRED), (True, Outcome.OK)):
        found = bench(publish_late=publish_late)
        (found.folder / "release").unlink(missing_ok=True)
        late = found.push("1 hold", left_ms=100)
        await asyncio.sleep(0.2)
        found.go()
        await found.until(lambda late=late, found=found: late in found.settled)
        assert found.settled[late].outcome is outcome


async def test_holding_gives_back_what_waits_and_resuming_goes_on(bench: MakeBench) -> None:
    found = bench()
    running = found.push("1 hold")
    waiting = found.push("2")
    await found.until(lambda: found.ran() == [1])
    assert [work.request_id for work in found.execution.hold()] == [waiting]
    after = found.push("3")
    found.go()
    await found.until(lambda: running in found.settled)
    await asyncio.sleep(0.1)
    assert after not in found.settled
    found.execution.resume()
    await found.until(lambda: after in found.settled)


async def test_load_without_hope_is_refused_only_behind_a_full_house(bench: MakeBench) -> None:
    found = bench()
    found.go()
    for number in range(3):  # what it learns: a batch takes 200 ms
        found.execution._forecast._service.observe(1, 200.0)
        assert found.push(str(number), left_ms=60_000) is not None
        await found.until(lambda number=number: str(number) in found.settled)
    (found.folder / "release").unlink()
    found.execution._forecast._service.observe(1, 200.0)
    alone = found.push("10 hold", left_ms=5_000)
    await found.until(lambda: 10 in found.ran())
    crowd = [found.push(str(number), left_ms=60_000) for number in range(20, 30)]
    hopeless = found.push("11", left_ms=300)
    await found.until(lambda: hopeless in found.settled)
    error = found.settled[hopeless].error
    assert error is not None
    assert error.code is ErrorCode.OVERLOADED
    assert "ms of work ahead" in error.message
    found.go()
    await found.until(lambda: all(name in found.settled for name in (alone, *crowd)))
    assert 11 not in found.ran()


class HundredSecondsAToken:
    def predict_ms(self, num_tokens: int) -> float:
        return 100_000.0 * num_tokens


class Measured(FixedCost):
    """A model whose device was measured, on a very slow one."""

    cost = HundredSecondsAToken()


async def test_a_batch_is_cut_for_a_deadline_that_all_together_would_miss(bench: MakeBench) -> None:
    found = bench(requests=4, model=f"{__name__}:Measured", overload_factor=0)
    found.push("1 hold")
    await found.until(lambda: found.ran() == [1])
    found.push("2", left_ms=250_000)  # two fit its time, four would not
    for number in range(3, 6):
        found.push(str(number), left_ms=10_000_000)
    batches: list[int] = []
    submit = found.pipeline.submit
    found.pipeline.submit = lambda batch, turn: (batches.append(len(batch)), submit(batch, turn))[1]  # type: ignore[method-assign]
    found.go()
    await found.until(lambda: len(found.settled) == 5)
    assert found.ran() == [1, 2, 3, 4, 5]
    assert batches == [2, 2]
    labels = {"pipeline": "numbers"}
    assert found.metrics.registry.get_sample_value("boundgen_batches_cut_total", labels) == 1


async def test_a_pipeline_that_is_closed_fails_its_batch_alone(bench: MakeBench) -> None:
    found = bench()
    found.pipeline.close()
    name = found.push("1")
    await found.until(lambda: name in found.settled)
    assert found.settled[name].outcome is Outcome.FAILED
    assert found.bugs == []
