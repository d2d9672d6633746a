"""Runs a captured request as a worker with this configuration would: admission, nodes, verdict, reply.

Each request is a batch of its own, so that its result depends on nothing else; pipelines are loaded when the
first request needs them. Nothing is published and Redis is not asked. One thread; the lanes have theirs.

Time: by default a request's clock starts again where its producer stamped it, so that it has the time it had
then; nothing is dropped for being slower here, only counted (`late`), and one whose recorded reply shows that
its time was not over (Redis may have extended it) is run. With `keep_deadlines` the present clock counts, as
for a worker that read the record now.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from aiokafka import ConsumerRecord, TopicPartition

from engine.answers import Answer, Observer, Result
from engine.pipeline import ArtifactStore, Pipeline, PipelineConfig, read_pipeline
from schemas.codec import DecodeError, decode_reply, decode_request
from schemas.deadletter import parse_origin
from schemas.messages import ErrorCode, Outcome, Reply
from schemas.plain import Limits
from tools.errors import UserError
from tools.replay.exchanges import Exchange
from worker.admission import Admission
from worker.config import WorkerConfig
from worker.deadlines import MIN_EPOCH_MS, Clock, DeadlinePolicy
from worker.offsets import Place
from worker.records import Route, Verdict, Work
from worker.replies import ReplyWriter
from worker.routing import Router
from worker.verdicts import judge, refusal

RESULT_SECONDS = 600.0  # a batch of one request; longer than this is a node that hangs


@dataclass(frozen=True)
class Rerun:
    """What a worker would answer now. `late`: it took longer than the request's time."""

    reply: Reply
    pipeline: str
    late: bool


class Rerunner:
    """A context manager; closing it frees the pipelines."""

    def __init__(
        self, config: WorkerConfig, reply_topics: set[str], *, keep_deadlines: bool, one_lane: bool
    ) -> None:
        """`reply_topics` were written to then, so they are allowed now, whatever the configuration says."""
        engine = config.engine
        lanes = 1 if one_lane else engine.lanes
        self._config = config
        self._keep = keep_deadlines
        self._router = Router(frozenset(config.replies.topics) | reply_topics, lambda _: None)
        self._store = ArtifactStore(
            engine.artifacts, device=engine.device, lanes=lanes, threads=engine.threads
        )
        self.configs: dict[str, PipelineConfig] = {}
        self._topics: dict[str, str] = {}  # request topic -> pipeline
        self._opened: dict[str, Pipeline] = {}
        for settings in config.pipelines:
            pipeline = read_pipeline(settings.config)
            self.configs[pipeline.name] = pipeline
            self._topics[settings.topic or f"boundgen.{pipeline.name}.requests"] = pipeline.name

    def __enter__(self) -> Rerunner:
        return self

    def __exit__(self, *error: object) -> None:
        for pipeline in self._opened.values():
            pipeline.close()
        self._store.close()

    @property
    def artifacts(self) -> ArtifactStore:
        return self._store

    @property
    def models(self) -> Mapping[str, str]:
        """Digest of the model of each pipeline that was needed."""
        return {name: each.model.digest for name, each in self._opened.items() if each.model is not None}

    def pipeline_of(self, exchange: Exchange) -> str | None:
        """Which pipeline answers: its topic's, else the one that the request names; None: not configured."""
        origin = parse_origin(exchange.request.headers)
        for topic in (origin.topic if origin else None, exchange.request.topic):
            if topic in self._topics:
                return self._topics[topic]
        try:
            name = decode_request(exchange.request.value or b"", self._limits).pipeline
        except DecodeError:
            return next(iter(self.configs))  # none can read it
        return name if name in self.configs else None

    def start(self, exchange: Exchange, name: str, observe: Observer | None = None) -> PendingRerun:
        """Begin to run it through pipeline `name`; ConfigError, ArtifactError if that cannot be loaded."""
        pipeline = self._opened.get(name)
        if pipeline is None:
            pipeline = self._opened[name] = Pipeline.open(self.configs[name], self._store)
        stamped_ms = exchange.request.timestamp_ms
        clock = Clock() if self._keep or stamped_ms < MIN_EPOCH_MS else clock_from(stamped_ms)
        policy = DeadlinePolicy(**self._config.deadlines.model_dump())
        admission = Admission(pipeline, self._router, self._limits, clock, policy)
        work = _work(exchange, clock)
        verdict = admission.admit(work)
        if verdict is not None and verdict.outcome is Outcome.EXPIRED and not self._keep:
            was = exchange.reply
            if was is not None and was.outcome is not Outcome.EXPIRED:
                verdict = admission.prepare(work)
        future: Future[list[Result]] | None = None
        if observe is not None and work.request is not None and work.prepared is not None:
            work.prepared = pipeline.prepare(work.request.samples, observe, work.request.options)
        if verdict is None:
            assert work.prepared is not None, "admitted"
            deadline = work.deadline
            if self._keep and deadline is not None:
                work.prepared.wanted = lambda: not deadline.expired(clock.now_ms())
            future = pipeline.submit([work.prepared])
        writer = ReplyWriter("replay", "", pipeline.model)
        return PendingRerun(work, verdict, future, writer, clock, name, self._publish_late, self._max_bytes)

    @property
    def _publish_late(self) -> bool:
        return self._config.replies.publish_late or not self._keep

    @property
    def _max_bytes(self) -> int:
        return self._config.replies.max_bytes

    @property
    def _limits(self) -> Limits:
        return Limits(**self._config.limits.model_dump())


@dataclass
class PendingRerun:
    """A request that runs, or has its verdict already."""

    work: Work
    verdict: Verdict | None
    future: Future[list[Result]] | None
    writer: ReplyWriter
    clock: Clock
    pipeline: str
    publish_late: bool
    max_bytes: int

    def finish(self) -> Rerun:
        """Wait for it. UserError if a node hangs."""
        work, verdict, now_ms = self.work, self.verdict, self.clock.now_ms()
        if self.future is not None:
            try:
                (result,) = self.future.result(RESULT_SECONDS)
            except TimeoutError as error:
                raise UserError(
                    f"request {work.request_id!r}: no result in {RESULT_SECONDS:.0f} s"
                ) from error
            now_ms = self.clock.now_ms()
            verdict = judge(work, result, now_ms, publish_late=self.publish_late)
            work.gpu_ms = result.gpu_ms if isinstance(result, Answer) else 0.0
        if verdict is None:
            verdict = refusal(ErrorCode.DEADLINE_EXCEEDED, "dropped before the model")
        ran = self.future is not None
        late = ran and work.deadline is not None and work.deadline.expired(now_ms)
        work.route = work.route or Route("", None, ())  # a reply is written even where nobody asked for one
        sent, verdict = self.writer.reply(work, verdict)
        if len(sent.value or b"") > self.max_bytes and verdict.rows:
            size = len(sent.value or b"")
            message = f"the reply has {size} bytes, replies.max_bytes is {self.max_bytes}"
            sent, verdict = self.writer.reply(work, refusal(ErrorCode.INTERNAL, message))
        return Rerun(decode_reply(sent.value or b""), self.pipeline, late)


def clock_from(stamped_ms: int) -> Clock:
    """A clock that shows `stamped_ms` now and goes on from there."""
    began_s = time.monotonic()
    return Clock(wall=lambda: stamped_ms / 1000 + time.monotonic() - began_s)


def _work(exchange: Exchange, clock: Clock) -> Work:
    request = exchange.request
    record = ConsumerRecord(
        topic=request.topic,
        partition=request.partition,
        offset=request.offset,
        timestamp=request.timestamp_ms,
        timestamp_type=request.timestamp_type,
        key=request.key,
        value=request.value,
        checksum=None,
        serialized_key_size=-1,
        serialized_value_size=-1,
        headers=request.headers,
    )
    place = Place(TopicPartition(request.topic, request.partition), request.offset, epoch=0)
    return Work(place, record, request.offset, clock.now_ms(), time.perf_counter())
