"""Prefixes from template to answer: the same rows as without, tokens counted as before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.demand import Demand
from engine.pipeline import Answer, ArtifactStore, Pipeline, PipelineConfig
from engine.prefixes import Saved
from engine.runtime.lanes import LanePool

TEMPLATE = "<|im_start|>buy the wireless mouse with a silent click, yes or no?\n{query} for {title}<|im_end|>"
BOUNDS = {"samples": 16, "tokens_per_sample": 128, "tokens_per_request": 1024}


@pytest.fixture(scope="module")
def store(tiny_causal: Any) -> Iterator[ArtifactStore]:
    opened = ArtifactStore({"tiny": tiny_causal.artifact})
    yield opened
    opened.close()


def open_pipeline(store: ArtifactStore, prefixes: str) -> Pipeline:
    nodes: dict[str, Any] = {
        "prompt": {"kind": "tokenizer", "artifact": "tiny", "template": TEMPLATE, "cut": "title"},
        "model": {"kind": "prefill", "artifact": "tiny", "inputs": ["prompt"], "head": "label_scores"},
        "rows": {"kind": "encoder", "inputs": ["model"], "output": "logprobs"},
    }
    nodes["model"] |= {"labels": {"yes": "yes", "no": "no"}, "prefixes": prefixes}
    return Pipeline.open(
        PipelineConfig.model_validate({"name": "test", "bounds": BOUNDS, "nodes": nodes}), store
    )


def answers(pipeline: Pipeline, requests: list[list[Any]]) -> list[Answer]:
    batch = [pipeline.prepare(samples) for samples in requests]
    results = pipeline.submit(batch).result(timeout=60)
    assert all(isinstance(each, Answer) for each in results)
    return [each for each in results if isinstance(each, Answer)]


def test_same_rows_fewer_tokens(store: ArtifactStore, sample: Any) -> None:
    long = "a long battery for my new laptop and the mouse "
    requests = [
        [sample(fields={"query": "a mouse", "title": title}) for title in ("one", "two", "laptop " * 90)],
        [sample(fields={"query": long, "title": str(i)}) for i in range(5)],
        [sample(fields={"query": "\u0301x", "title": "yes"})],
    ]
    with open_pipeline(store, "auto") as sharing, open_pipeline(store, "off") as plain:
        counts = [
            [pipeline.prepare(samples).num_tokens for samples in requests] for pipeline in (sharing, plain)
        ]
        assert counts[0] == counts[1]  # whole prompts, whatever is computed
        with_prefixes, without = answers(sharing, requests), answers(plain, requests)
    for prepared, answer in zip(map(sharing.prepare, requests), with_prefixes, strict=True):
        saved = answer.saved.constant + answer.saved.request
        assert prepared.demand == Demand(prepared.num_tokens - saved, prepared.num_samples)
    for one, other in zip(with_prefixes, without, strict=True):
        for left, right in zip(one.rows, other.rows, strict=True):
            assert left["label"] == right["label"]
            assert left["scores"] == pytest.approx(right["scores"], abs=1e-4)
    assert {each.saved for each in without} == {Saved()}
    constant = with_prefixes[2].saved.constant
    assert constant >= 8
    assert with_prefixes[2].saved == Saved(constant)
    assert with_prefixes[1].saved.constant >= 5 * (constant - 1)
    assert with_prefixes[1].saved.request >= 4 * 8


def test_where_prefixes_have_no_room_of_their_own_they_take_places(
    store: ArtifactStore, sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As lanes of graphs: else a batch might share nothing and compute more than was counted."""
    samples = [
        sample(fields={"query": "a long battery for my laptop " * 2, "title": str(i)}) for i in range(5)
    ]
    with open_pipeline(store, "auto") as pipeline:
        assert pipeline.prepare(samples).demand.samples == 5
    built = store.get("tiny").artifact.bounds.samples
    monkeypatch.setattr(LanePool, "most_segments", built)
    with open_pipeline(store, "auto") as pipeline:
        assert pipeline.prepare(samples).demand.samples == 6
        assert pipeline.prepare(samples[:1]).demand.samples == 1
