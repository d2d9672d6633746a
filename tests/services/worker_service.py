"""Fixture `sites` for tests through a real worker process.

site = await sites(partitions=2)             # topics of its own, a pipeline of fixed_cost's nodes
with site.worker() as worker: ...            # python -m worker, ready
async with Mouth(site) as mouth: ...         # records in, replies out
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition

from kafka_service import create_topic, unique_topic
from schemas.codec import decode_reply, encode_request
from schemas.deadletter import dead_letter_topic
from schemas.headers import request_headers
from schemas.messages import Reply, Request, Sample
from tools.broker_state import committed_lag
from tools.processes import free_ports
from tools.worker_process import WorkerProcess, run_worker

SERVICES = Path(__file__).parent
WAIT_SECONDS = 90.0


@dataclass(frozen=True)
class Site:
    """Topics, group and folder of one pipeline; every worker started here serves it."""

    bootstrap: str
    redis_url: str | None
    folder: Path
    topic: str
    replies: str
    partitions: int
    pipeline: str = "numbers"
    model: Mapping[str, Any] = field(default_factory=dict)  # settings of fixed_cost:FixedCost
    written: Mapping[str, Any] | None = None  # another pipeline than fixed_cost's: its bounds and nodes
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> str:
        return f"{self.topic}.group"

    @property
    def dead_letters(self) -> str:
        return dead_letter_topic(self.topic)

    @property
    def release(self) -> Path:
        """The file that lets held batches go on."""
        return self.folder / "release"

    async def model_holds(self, number: int) -> None:
        """Return when this number has reached the model."""
        async with asyncio.timeout(WAIT_SECONDS):
            while number not in self.ran():
                await asyncio.sleep(0.01)

    def ran(self) -> list[int]:
        """The numbers that reached the model, in order, of all workers."""
        path = self.folder / "ran"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def write_pipeline(self) -> Path:
        """The pipeline's file."""
        path = self.folder / f"{self.pipeline}.yaml"
        path.write_text(yaml.safe_dump({"name": self.pipeline, **(self.written or self._numbers())}))
        return path

    def _numbers(self) -> dict[str, Any]:
        files = {"ran": str(self.folder / "ran"), "release": str(self.release)}
        return {
            "bounds": {"samples": 4, "tokens_per_sample": 2, "tokens_per_request": 8},
            "nodes": {
                "numbers": {"kind": "fixed_cost:Numbers"},
                "model": {"kind": "fixed_cost:FixedCost", "inputs": ["numbers"], **files, **self.model},
            },
        }

    @contextmanager
    def worker(self, name: str = "worker") -> Iterator[WorkerProcess]:
        """A worker process, ready; ended on the way out."""
        folder = self.folder / f"{name}-{uuid.uuid4().hex[:6]}"
        folder.mkdir()
        settings: dict[str, dict[str, Any]] = {
            "kafka": {"bootstrap_servers": self.bootstrap},
            "replies": {"topics": [self.replies]},
            "redis": {"url": self.redis_url},
            "http": {"port": free_ports(1)[0]},
        }
        for section, values in self.settings.items():
            settings[section] = {**settings.get(section, {}), **values}
        own = {"config": str(self.write_pipeline()), "topic": self.topic, "group": self.group}
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("PYTHONPATH", str(SERVICES), prepend=os.pathsep)  # where the nodes are
            running = run_worker({"name": name, "pipelines": [own], **settings}, folder)
            with running as worker:
                yield worker

    async def lag(self) -> int:
        """Committed lag of the group over all partitions."""
        found = await committed_lag(
            {"bootstrap_servers": self.bootstrap}, self.group, self.topic, self.partitions
        )
        return found.behind

    async def committed(self) -> dict[int, int]:
        """Committed offset of each partition that has one."""
        options = {"bootstrap_servers": self.bootstrap, "group_id": self.group}
        async with AIOKafkaConsumer(**options, enable_auto_commit=False) as reader:
            places = [TopicPartition(self.topic, number) for number in range(self.partitions)]
            reader.assign(places)
            found = {each.partition: await reader.committed(each) for each in places}
        return {partition: offset for partition, offset in found.items() if offset is not None}

    async def caught_up(self) -> None:
        """Return when nothing is left to commit; TimeoutError otherwise."""
        async with asyncio.timeout(WAIT_SECONDS):
            while await self.lag():
                await asyncio.sleep(0.2)


@dataclass(frozen=True)
class Answer:
    """One reply as it came."""

    reply: Reply
    record: ConsumerRecord


class Mouth:
    """A producer of requests and everything that came back, by request id and by correlation id."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.answers: list[Answer] = []
        self.by_id: dict[str | None, list[Answer]] = defaultdict(list)
        self.by_correlation: dict[bytes, list[Answer]] = defaultdict(list)
        self.places: dict[str, tuple[int, int]] = {}  # (partition, offset) of each request sent
        self._arrived = asyncio.Event()

    async def __aenter__(self) -> Mouth:
        servers = self.site.bootstrap
        self.producer = AIOKafkaProducer(bootstrap_servers=servers, linger_ms=0, acks="all")
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=servers, auto_offset_reset="earliest", fetch_max_wait_ms=20
        )
        await self.producer.start()
        await self._consumer.start()
        self._consumer.assign([TopicPartition(self.site.replies, 0)])
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._consumer.stop()
        await self.producer.stop()

    async def _read(self) -> None:
        async for record in self._consumer:
            answer = Answer(decode_reply(record.value), record)
            self.answers.append(answer)
            self.by_id[answer.reply.id].append(answer)
            for name, value in record.headers:
                if name == "kafka_correlationId":
                    self.by_correlation[value].append(answer)
            self._arrived.set()

    async def send(
        self,
        numbers: Sequence[int | str],
        *,
        request_id: str | None = None,
        partition: int | None = None,
        skew_ms: int = 0,
        **fields: Any,
    ) -> str:
        """Publish a request over these samples; its id. `skew_ms` is how far the producer's clock is off."""
        request_id = request_id or uuid.uuid4().hex
        samples = tuple(Sample(text=str(number)) for number in numbers)
        request = Request(id=request_id, pipeline=self.site.pipeline, samples=samples, **fields)
        self.places[request_id] = await self.send_raw(
            encode_request(request),
            correlation=request_id.encode(),
            partition=partition,
            timestamp_ms=int(time.time() * 1000) + skew_ms,
        )
        return request_id

    async def send_raw(
        self,
        value: bytes | None,
        *,
        correlation: bytes = b"raw",
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> tuple[int, int]:
        """Publish any bytes; (partition, offset)."""
        if headers is None:
            headers = request_headers(self.site.replies, correlation)
        sent = await self.producer.send_and_wait(
            self.site.topic,
            value,
            headers=list(headers),
            partition=partition,
            timestamp_ms=timestamp_ms,
            key=None if value is not None else b"null",
        )
        return sent.partition, sent.offset

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for replies until this holds; TimeoutError says how many came."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while not condition():
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise TimeoutError(f"{len(self.answers)} replies came, not what was waited for") from None

    async def reply(self, request_id: str) -> Reply:
        """The first reply to a request."""
        await self.until(lambda: request_id in self.by_id)
        return self.by_id[request_id][0].reply


async def make_site(
    bootstrap: str, folder: Path, partitions: int = 1, configs: dict[str, str] | None = None, **changes: Any
) -> Site:
    """New topics and a folder for one pipeline; `changes` are Site's other fields."""
    topic, replies = unique_topic("requests"), unique_topic("replies")
    await create_topic(bootstrap, topic, partitions, configs or {})
    await create_topic(bootstrap, dead_letter_topic(topic), partitions, {})
    await create_topic(bootstrap, replies, 1, {})
    facts: dict[str, Any] = {"bootstrap": bootstrap, "redis_url": None, **changes}
    return Site(folder=folder, topic=topic, replies=replies, partitions=partitions, **facts)


MakeSite = Callable[..., Awaitable[Site]]


@pytest.fixture
def sites(kafka: str, redis_url: str, tmp_path: Path) -> MakeSite:
    """`await sites(partitions=..., redis_url=..., bootstrap=..., model={...}, settings={...})`"""

    def make(**changes: Any) -> Awaitable[Site]:
        facts: dict[str, Any] = {"bootstrap": kafka, "redis_url": redis_url, **changes}
        return make_site(folder=tmp_path, **facts)

    return make
