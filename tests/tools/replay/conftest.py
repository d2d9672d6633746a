"""Fixture `scene`: what a real worker answered to requests of every kind, captured, ready to be replayed.

The worker runs once for all tests; each test writes its own configuration of now.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from schemas.codec import encode_request
from schemas.messages import Request, Sample
from tiny_models import TinyModel
from tools.cli import app
from worker_service import Mouth, Site, make_site

WORDS = ["wireless mouse", "silent click", "long battery", "new laptop", "buy a mouse", "compare the click"]
PIPELINE: dict[str, Any] = {
    "name": "relevance",
    "bounds": {"samples": 3, "tokens_per_sample": 40, "tokens_per_request": 90},
    "nodes": {
        "prompt": {
            "kind": "tokenizer",
            "artifact": "tiny",
            "template": "Query: {query}\nTitle: {title}\nBuy:",
        },
        "model": {
            "kind": "prefill",
            "artifact": "tiny",
            "inputs": ["prompt"],
            "head": "label_scores",
            "labels": {"yes": " yes", "no": " no"},
        },
        "answer": {"kind": "encoder", "inputs": ["model"]},
    },
}


def samples(number: int) -> tuple[Sample, ...]:
    """One to three of them."""
    return tuple(
        Sample(id=f"s{place}", fields={"query": WORDS[number % 6], "title": WORDS[(number + place) % 6]})
        for place in range(1 + number % 3)
    )


@dataclass(frozen=True)
class Found:
    """How a replay ended; findings is its JSON line."""

    status: int
    findings: dict[str, Any]
    told: str
    output: str


@dataclass(frozen=True)
class Scene:
    """`capture` knows the pipelines; `bare` is of the same records and does not."""

    site: Site
    model: TinyModel
    capture: Path
    bare: Path
    folder: Path

    def config(
        self, changes: Mapping[str, Any] | None = None, artifact: Path | None = None, **worker: Any
    ) -> Path:
        """A worker's YAML of now; `changes` are dotted settings of the pipeline, None takes one away."""
        pipeline = copy.deepcopy(PIPELINE)
        for path, value in (changes or {}).items():
            *parents, key = path.split(".")
            node = pipeline
            for each in parents:
                node = node[each]
            if value is None:
                del node[key]
            else:
                node[key] = value
        (self.folder / "relevance.yaml").write_text(yaml.safe_dump(pipeline))
        settings = {
            "pipelines": [{"config": "relevance.yaml", "topic": self.site.topic}],
            "engine": {"artifacts": {"tiny": str(artifact or self.model.artifact)}},
            "kafka": {"bootstrap_servers": self.site.bootstrap},
            "replies": {"topics": [self.site.replies]},
            "redis": {"url": None},
            **worker,
        }
        path = self.folder / "now.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    def replay(self, config: Path, *more: str, files: Sequence[Path] | None = None) -> Found:
        """The command, in this process."""
        given = [self.capture] if files is None else files
        result = CliRunner().invoke(app, ["replay", *map(str, given), str(config), "--json", *more])
        lines = result.stdout.splitlines()
        findings = json.loads(lines[-1]) if result.exit_code in {0, 1, 3} and lines else {}
        return Found(result.exit_code, findings, result.stderr, result.stdout)


def wire_requests() -> dict[str, bytes]:
    """By id, in order: twelve good ones and one of each kind of bad."""
    found = {
        f"good-{number}": encode_request(
            Request(id=f"good-{number}", pipeline="relevance", samples=samples(number), timeout_ms=60_000)
        )
        for number in range(12)
    }
    lacking = Request(id="lacking", pipeline="relevance", samples=(Sample(fields={"query": "mouse"}),))
    other = Request(id="other", pipeline="intent", samples=(Sample(text="mouse"),))
    large = Request(id="large", pipeline="relevance", samples=samples(2) * 2)
    over = Request(id="over", pipeline="relevance", samples=samples(0), timeout_ms=-1)
    for each in (lacking, other, large, over):
        found[each.id] = encode_request(each)
    found["garbled"] = b"\xc1 not msgpack"
    found["cut"] = found["good-0"][:-3]
    return found


async def record(site: Site) -> None:
    """Have a worker answer all of them."""
    with site.worker():
        async with Mouth(site) as mouth:
            wire = wire_requests()
            for name, value in wire.items():
                await mouth.send_raw(value, correlation=b"c-" + name.encode())
            await mouth.until(lambda: len(mouth.by_correlation) == len(wire))
            await site.caught_up()


def write_capture(site: Site, path: Path, *more: str) -> None:
    servers = [] if "--config" in more else ["--bootstrap-servers", site.bootstrap]
    topics = [site.topic, "--replies", site.replies, "--output", str(path)]
    result = CliRunner().invoke(app, ["capture", *topics, *servers, *more])
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="session")
def recorded(
    kafka: str, tiny_causal: TinyModel, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Site, Path, Path]:
    folder = tmp_path_factory.mktemp("recorded")
    engine = {"artifacts": {"tiny": str(tiny_causal.artifact)}, "threads": 1}
    written = {key: value for key, value in PIPELINE.items() if key != "name"}
    site = asyncio.run(
        make_site(kafka, folder, pipeline="relevance", written=written, settings={"engine": engine})
    )
    asyncio.run(record(site))
    full, bare = folder / "full.capture", folder / "bare.capture"
    then = Scene(site, tiny_causal, full, bare, folder).config()
    write_capture(site, full, "--config", str(then))
    write_capture(site, bare)
    return site, full, bare


@pytest.fixture
def scene(recorded: tuple[Site, Path, Path], tiny_causal: TinyModel, tmp_path: Path) -> Scene:
    site, full, bare = recorded
    return Scene(site, tiny_causal, full, bare, tmp_path)
