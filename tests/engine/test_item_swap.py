"""A pipeline that searches while its item file is replaced: every answer is of one version, and all come."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.pipeline import Answer, ArtifactStore, Pipeline, read_pipeline

GENERATIONS = 4
IN_FLIGHT = 3
DEADLINE_SECONDS = 90.0
PIPELINE = """
name: recall
bounds: {samples: 2, tokens_per_sample: 32, tokens_per_request: 64}
nodes:
  prompt: {kind: tokenizer, artifact: beam}
  search: {kind: beam, artifact: beam, inputs: [prompt], width: 20, steps: 2, items: items.jsonl}
  answer: {kind: encoder, inputs: [search]}
"""


def write_items(folder: Path, generation: int) -> None:
    """Items of a generation share all tokens but the last with those of the others."""
    rows = [{"item_id": f"{generation}-{i}", "token_ids": [7, i, 100 + generation]} for i in range(30)]
    new = folder / "new"
    new.write_text("".join(json.dumps(row) + "\n" for row in rows))
    new.replace(folder / "items.jsonl")


@pytest.fixture
def pipeline(tiny_beam: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    monkeypatch.setattr("engine.beam.catalogue.POLL_SECONDS", 0.02)
    write_items(tmp_path, 0)
    (tmp_path / "recall.yaml").write_text(PIPELINE)
    store = ArtifactStore({"beam": tiny_beam.artifact}, lanes=2)
    with Pipeline.open(read_pipeline(tmp_path / "recall.yaml"), store) as opened:
        yield opened
    store.close()


def test_no_answer_mixes_two_versions(pipeline: Pipeline, tmp_path: Path, sample: Any) -> None:
    request = [sample(token_ids=[1, 2, 3]), sample(token_ids=[4])]
    versions: dict[str, str] = {}
    written, stop = 0, time.monotonic() + DEADLINE_SECONDS
    while len(versions) < GENERATIONS:
        assert time.monotonic() < stop
        batches = [[pipeline.prepare(request), pipeline.prepare(request)] for _ in range(IN_FLIGHT)]
        for future in [pipeline.submit(batch) for batch in batches]:
            for result in future.result(30):
                assert isinstance(result, Answer)
                check(result, versions)
        if len(versions) == written + 1 < GENERATIONS:  # the latest one has been served: on to the next
            written += 1
            write_items(tmp_path, written)
    assert sorted(versions.values()) == [str(generation) for generation in range(GENERATIONS)]
    assert pipeline.counters() == {"search": {"items_swapped": GENERATIONS - 1, "items_refused": 0}}


def check(answer: Answer, versions: dict[str, str]) -> None:
    """All beams of a request are items of the generation that its version stands for."""
    (version,) = {row["item_version"] for row in answer.rows}
    beams: list[Any] = [beam for row in answer.rows for beam in row["beams"]]  # type: ignore[attr-defined]
    assert len(beams) == 40
    generations = {item.split("-")[0] for beam in beams for item in beam["item_ids"]}
    assert generations == {versions.setdefault(str(version), *generations)}
    assert {beam["token_ids"][2] - 100 for beam in beams} == {int(*generations)}
