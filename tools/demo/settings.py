"""What the demo's worker is told: the shipped pipelines, topics of the demo's own, one lane.

One lane and at most four threads: the burst has to keep the model busy for a moment on any machine, or the
requests cancelled behind it would have been answered before their user could leave.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tools
from tools.processes import free_ports

PIPELINES = ("relevance", "intent", "recall")
PARTITIONS = 2
REPLY_TOPIC = "boundgen.demo.replies"
MAX_THREADS = 4
EMBEDDED_FETCH_WAIT_MS = 5  # its long poll does not wake on data
REDIS_TIMEOUT_MS = 1_000
WATCHDOG_MS = 600_000
FETCH_WAIT_MS = 500  # Apache Kafka's does


@dataclass(frozen=True)
class Servers:
    """Where broker and Redis are, the demo's own or the user's."""

    bootstrap: str
    redis_url: str
    fetch_wait_ms: int


def request_topics() -> dict[str, str]:
    """Pipeline -> topic; names of the demo's own, so that it disturbs nobody on a shared broker."""
    return {pipeline: f"boundgen.demo.{pipeline}.requests" for pipeline in PIPELINES}


def group_of(pipeline: str) -> str:
    return f"boundgen.demo.{pipeline}"


def config_file(name: str) -> Path:
    """A file of configs/, which lies beside tools/ in a checkout and in an installed wheel alike."""
    return Path(tools.__file__).resolve().parent.parent / "configs" / name


def worker_settings(servers: Servers, artifact: Path) -> dict[str, Any]:
    """The worker's configuration; http.port is free at the moment."""
    (port,) = free_ports(1)
    topics = request_topics()
    return {
        "name": "demo-worker",
        "pipelines": [
            {
                "config": str(config_file(f"{pipeline}.yaml")),
                "topic": topics[pipeline],
                "group": group_of(pipeline),
            }
            for pipeline in PIPELINES
        ],
        "engine": {
            "device": "cpu",
            "lanes": 1,
            "threads": min(os.cpu_count() or 1, MAX_THREADS),
            "artifacts": {"smollm2": str(artifact)},
        },
        "kafka": {"bootstrap_servers": servers.bootstrap, "fetch_max_wait_ms": servers.fetch_wait_ms},
        "replies": {"topics": [REPLY_TOPIC]},
        # A busy machine may take longer than a worker should wait; here nothing hurries.
        "redis": {"url": servers.redis_url, "timeout_ms": REDIS_TIMEOUT_MS},
        "watchdog": {"progress_ms": WATCHDOG_MS},
        "http": {"port": port},
        "logging": {"format": "console"},
    }
