"""Rows of a request that fails are told apart, whoever failed it; a real model's rows come out the same."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tools.bulk.engine_scorer import group_rows, row_error, sample_index
from tools.bulk.progress import BulkProgress, duration
from tools.bulk.rows import BulkSample, GoodRow

FRAGILE = """
from concurrent.futures import ThreadPoolExecutor
from engine.errors import InputError, NodeError
from engine.graph import Capacity, Node
from engine.values import Rows, Tokens

class Fragile(Node):
    consumes = (Tokens,)
    produces = Rows
    is_model = True

    def __init__(self, options, context):
        self.capacity = Capacity(64, 32, 2)
        self.executor = ThreadPoolExecutor(1)

    def run(self, requests):
        return [self.one([number for number, *_ in tokens.ids]) for (tokens,) in requests]

    def one(self, numbers):
        if 13 in numbers:
            raise ValueError("the whole batch")
        if 26 in numbers:
            return NodeError("NaN", "model_output")
        if 39 in numbers:
            place = numbers.index(39)
            return InputError("invalid", f"samples[{place}].text is odd", f"samples[{place}].text")
        return Rows(tuple({"number": number} for number in numbers))

    def close(self):
        self.executor.shutdown(wait=False)
"""


def test_one_row_at_fault_harms_no_other(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.path("fragile.py").write_text(FRAGILE)
    monkeypatch.syspath_prepend(desk.folder)
    text = desk.path("numbers.yaml").read_text()
    pipeline = yaml.safe_load(text)
    pipeline["nodes"]["model"] = {"kind": "fragile:Fragile", "inputs": ["numbers"]}
    desk.path("numbers.yaml").write_text(yaml.safe_dump(pipeline))
    desk.write_rows("in.jsonl", range(100))
    outcome = desk.bulk("in.jsonl", "out.jsonl", "--part-rows", "50")
    assert outcome.summary["errors"] == {"internal": 1, "invalid_field": 1, "model_output": 1}
    failed = {row["row"]: row["error"] for row in desk.read("out.jsonl") if row["error"]}
    assert sorted(failed) == [13, 26, 39]
    assert failed[39] == {"code": "invalid_field", "message": "text is odd", "field": "text"}


def test_a_real_model_and_a_template(desk: Any, tiny_causal: Any) -> None:
    nodes = {
        "prompt": {"kind": "tokenizer", "artifact": "tiny", "template": "{query}: {title}"},
        "model": {
            "kind": "prefill",
            "artifact": "tiny",
            "inputs": ["prompt"],
            "head": "label_scores",
            "labels": {"yes": "yes", "no": "no"},
        },
        "answer": {"kind": "encoder", "inputs": ["model"], "output": "softmax"},
    }
    bounds = {"samples": 8, "tokens_per_sample": 64, "tokens_per_request": 128}
    pipeline = {"name": "relevance", "bounds": bounds, "nodes": nodes}
    desk.path("relevance.yaml").write_text(yaml.safe_dump(pipeline))
    worker = {
        "pipelines": [{"config": "relevance.yaml"}, {"config": "numbers.yaml"}],
        "engine": {"artifacts": {"tiny": str(tiny_causal.artifact)}, "threads": 1},
    }
    desk.path("worker.yaml").write_text(yaml.safe_dump(worker))
    words = ["mouse", "long battery", "silent click", "wireless mouse with a long battery for my new laptop"]
    titles = [words[number % 4] for number in range(60)]
    titles[7] = "mouse " * 100  # over the bounds, and nothing may be cut
    titles[20] = None  # type: ignore[call-overload]
    table = pa.table({"query": ["buy"] * 60, "name": titles, "key": [f"k{number}" for number in range(60)]})
    pq.write_table(table, desk.path("in.parquet"))
    more = ["--pipeline", "relevance", "--map", "title=name", "--id", "key"]
    outcome = desk.bulk("in.parquet", "out.parquet", *more)
    assert outcome.summary["errors"] == {"invalid_field": 1, "too_large": 1}
    assert len(outcome.summary["models"]) == 1
    rows = pq.read_table(desk.path("out.parquet")).to_pylist()
    assert rows[7]["error_message"].startswith("the row has ")
    assert rows[20]["error_message"].startswith("fields.title is missing: the pipeline's template needs it")
    assert rows[20]["error_field"] == "fields.title"
    for place, row in enumerate(rows):
        if place not in {7, 20}:
            assert row["id"] == f"k{place}"
            assert row["scores"]["yes"] == pytest.approx(rows[place % 4]["scores"]["yes"], abs=1e-5)
    assert desk.bulk("in.parquet", "again.parquet", *more, "--prepare-threads", "4").status == 1
    assert pq.read_table(desk.path("again.parquet")).to_pylist() == rows  # to the bit
    assert "the configuration has relevance, numbers; name one" in desk.bulk("in.parquet", "x.jsonl").told
    lines = [json.dumps({"body": {"query": row["query"], "title": row["name"]}}) for row in table.to_pylist()]
    desk.path("in.jsonl").write_text("\n".join(lines))
    assert desk.bulk("in.jsonl", "out.jsonl", "--pipeline", "relevance").summary["ok"] == 58


def test_groups_are_bounded_by_rows_and_by_characters() -> None:
    rows = [GoodRow(place, BulkSample(text=""), size) for place, size in enumerate([1, 1, 1, 50, 1, 9, 2])]
    groups = [[row.place for row in group] for group in group_rows(rows, 2, 10)]
    assert groups == [[0, 1], [2], [3], [4, 5], [6]]


def test_an_error_of_a_sample_is_told_as_one_of_its_row() -> None:
    assert sample_index("samples[12].fields.x") == 12
    assert sample_index("samples") is None
    assert sample_index(None) is None
    found = row_error("invalid_field", "samples[3].fields.x is missing", "samples[3].fields.x")
    assert (found.message, found.field) == ("fields.x is missing", "fields.x")
    found = row_error("too_large", "samples[0] has 9 tokens", "samples[0]")
    assert (found.message, found.field) == ("the row has 9 tokens", None)


def test_progress_in_words() -> None:
    progress = BulkProgress(0)
    assert progress.describe(12_288, 3, 0.25, 3.0) == "12,288 rows (25%), 4,096 rows/s, 9 s left, 3 failed"
    going_on = BulkProgress(8_192)
    assert going_on.describe(12_288, 0, 0.5, 2.0) == "12,288 rows (50%), 2,048 rows/s"
    assert [duration(seconds) for seconds in (45, 720, 12_240)] == ["45 s", "12 min", "3.4 h"]
