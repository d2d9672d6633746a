"""`bench overhead` proper: a worker whose model sleeps, and a bare echo, through the same broker, one after
the other. Both get the demo's relevance queries at a fixed rate; the first seconds warm up and do not count.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from schemas.client import Client, ClientSettings
from tools.bench.open_loop import Timed, send_at_rate
from tools.bench.overhead_report import Latency
from tools.demo.queries import read_queries
from tools.processes import Child, free_ports

WARM_UP_SECONDS = 5.0
SLEEPER = "tools.bench.sleep_node:SleepNode"


@dataclass(frozen=True)
class Load:
    """What is sent; sleep_ms is what a batch takes in the place of a model."""

    rate: float
    seconds: float
    sleep_ms: float
    lanes: int


@dataclass(frozen=True)
class Servers:
    """Where the broker and Redis are. fetch_wait_ms: how long a fetch waits at the broker for data."""

    bootstrap: str
    redis_url: str | None
    fetch_wait_ms: int


def titles() -> list[tuple[dict[str, str], ...]]:
    """The samples of the demo's relevance queries that are answered: 4 to 10 each."""
    return [query.samples for query in read_queries() if query.pipeline == "relevance" and query.fate == "ok"]


def write_pipeline(folder: Path, load: Load) -> Path:
    """A relevance pipeline as in configs/, its model replaced by one that sleeps."""
    nodes = {
        "prompt": {
            "kind": "tokenizer",
            "artifact": "smollm2",
            "template": "Query: {query}\nProduct: {title}\nRelevant:",
            "cut": "title",
        },
        "model": {"kind": SLEEPER, "inputs": ["prompt"], "milliseconds": load.sleep_ms, "lanes": load.lanes},
        "answer": {"kind": "encoder", "inputs": ["model"], "output": "softmax"},
    }
    bounds = {"samples": 32, "tokens_per_sample": 512, "tokens_per_request": 4096}
    path = folder / "sleep.yaml"
    path.write_text(yaml.safe_dump({"name": "sleep", "bounds": bounds, "nodes": nodes}, sort_keys=False))
    return path


def worker_settings(
    servers: Servers, pipeline: Path, artifact: Path, topic: str, replies: str
) -> dict[str, Any]:
    """The worker's configuration for `run_worker`."""
    (port,) = free_ports(1)
    return {
        "pipelines": [{"config": str(pipeline), "topic": topic, "group": f"{topic}.worker"}],
        "engine": {"device": "cpu", "artifacts": {"smollm2": str(artifact)}},
        "kafka": {"bootstrap_servers": servers.bootstrap, "fetch_max_wait_ms": servers.fetch_wait_ms},
        "replies": {"topics": [replies]},
        "redis": {"url": servers.redis_url},
        "http": {"port": port},
        "logging": {"level": "warning"},
    }


def start_echo(servers: Servers, topic: str, folder: Path) -> Child:
    """The echo as a process of its own."""
    command = [sys.executable, "-P", "-m", "tools.bench.echo", servers.bootstrap, topic]
    return Child("the echo", command, folder / "echo.log")


@asynccontextmanager
async def client_of(servers: Servers, topic: str, replies: str) -> AsyncIterator[Client]:
    """A client that sends the pipeline `sleep` to `topic`."""
    settings = ClientSettings(fetch_max_wait_ms=servers.fetch_wait_ms)
    async with Client(
        servers.bootstrap,
        reply_topic=replies,
        topics={"sleep": topic},
        redis_url=servers.redis_url,
        settings=settings,
    ) as client:
        yield client


@dataclass(frozen=True)
class Measured:
    """One side: its replies, and the processor time that its process took for each (None: not known)."""

    timed: Sequence[Timed]
    cpu_ms: float | None

    @property
    def latency(self) -> Latency:
        return Latency.of([each.latency_ms for each in self.timed])


async def measure(servers: Servers, topic: str, replies: str, load: Load, side: Child) -> Measured:
    """Warm up, then the load's seconds, of the process `side`."""
    async with client_of(servers, topic, replies) as client:
        await send_at_rate(client, "sleep", titles(), load.rate, WARM_UP_SECONDS)
        before = side.cpu_seconds()
        timed = await send_at_rate(client, "sleep", titles(), load.rate, load.seconds)
        after = side.cpu_seconds()
    used = None if before is None or after is None else (after - before) * 1e3 / len(timed)
    return Measured(timed, used)
