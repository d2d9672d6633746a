"""Pipelines of the user's own nodes: order, concurrency, failures kept apart."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from engine.errors import InputError, NodeError
from engine.graph import Node, Stage
from engine.pipeline import Answer, ArtifactStore, Failure, Pipeline
from engine.values import Rows, Samples, Tokens
from word_nodes import ONE, Collect, Total, config, results

ME = __name__
pytestmark = pytest.mark.usefixtures("fresh_records")


def test_answers_come_in_order_with_one_row_a_sample(pipeline: Pipeline, sample: Any) -> None:
    batch = [pipeline.prepare([sample("a bb"), sample("ccc")]), pipeline.prepare([sample("dddd")])]
    first, second = pipeline.submit(batch).result(timeout=20)
    assert isinstance(first, Answer)
    assert isinstance(second, Answer)
    assert first.rows == ({"total": 3.0}, {"total": 3.0})
    assert second.rows == ({"total": 4.0},)
    assert first.model_runs == 1
    assert first.gpu_ms > 0
    assert Total.launches == [("total", 2)]


@pytest.mark.parametrize(
    ("texts", "code", "words"),
    [
        ([], "invalid", "at least one"),
        (["a"] * 5, "too_large", "5 samples"),
        (["a", "a a a a a a a a a"], "too_large", r"samples\[1\] has 9 tokens"),
        (["a a a a a a"] * 3, "too_large", "18 tokens"),
        (["a", " "], "invalid", r"samples\[1\] has no tokens"),
    ],
)
def test_requests_outside_the_bounds_are_refused(
    pipeline: Pipeline, sample: Any, texts: list[str], code: str, words: str
) -> None:
    with pytest.raises(InputError, match=words) as caught:
        pipeline.prepare([sample(text) for text in texts])
    assert caught.value.code == code


def test_branches_run_at_the_same_time(no_artifacts: ArtifactStore, sample: Any) -> None:
    Total.barriers["both"] = threading.Barrier(2)
    nodes = {
        "words": ONE["words"],
        "left": {"kind": "word_nodes:Total", "inputs": ["words"], "barrier": "both"},
        "right": {"kind": "word_nodes:Total", "inputs": ["words"], "barrier": "both"},
        "rows": {"kind": "word_nodes:Collect", "inputs": ["left", "right"]},
    }
    with Pipeline.open(config(**nodes), no_artifacts) as pipeline:
        (answer,) = results(pipeline, sample, "a bb")
    assert isinstance(answer, Answer)
    assert answer.rows == ({"left": 3.0, "right": 3.0},)
    assert answer.model_runs == 2


def test_a_request_that_fails_leaves_its_neighbours_alone(pipeline: Pipeline, sample: Any) -> None:
    good, bad = results(pipeline, sample, "aa", "a" * 13)
    assert isinstance(good, Answer)
    assert bad == Failure("thirteen", "model_output", None, 1)


def test_a_node_that_raises_fails_its_batch_and_the_pipeline_goes_on(
    pipeline: Pipeline, sample: Any, caplog: pytest.LogCaptureFixture
) -> None:
    failed = results(pipeline, sample, "aa", "a" * 14)
    assert [type(each) for each in failed] == [Failure, Failure]
    assert all(isinstance(each, Failure) and each.code == "internal" for each in failed)
    assert "fourteen" in caplog.text
    assert isinstance(results(pipeline, sample, "aa")[0], Answer)


@pytest.mark.parametrize("given", [[], [1, 2], [object()]])
def test_a_node_that_breaks_its_contract_fails_its_batch(
    pipeline: Pipeline, sample: Any, monkeypatch: pytest.MonkeyPatch, given: list[object]
) -> None:
    monkeypatch.setattr(Collect, "run", lambda self, requests: given)
    (failed,) = results(pipeline, sample, "aa")
    assert isinstance(failed, Failure)
    assert failed.code == "internal"


def test_too_few_rows_fail_the_request(
    pipeline: Pipeline, sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Collect, "run", lambda self, requests: [Rows(())] * len(requests))
    assert results(pipeline, sample, "aa") == [Failure("0 rows for 1 samples", "internal", None, 1)]


class Greet(Node):
    """Rows before batching: a pipeline without a model."""

    stage = Stage.PREPARE
    consumes = (Samples,)
    produces = Rows

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        samples = requests[0][0].samples
        if samples[0].text == "bug":
            raise KeyError("bug")
        if samples[0].text == "refuse":
            return [InputError("invalid", "refused", "samples[0]")]
        return [Rows(tuple({"text": sample.text} for sample in samples))]


def test_a_pipeline_may_need_no_batch(no_artifacts: ArtifactStore, sample: Any) -> None:
    with Pipeline.open(config(only={"kind": f"{ME}:Greet"}), no_artifacts) as pipeline:
        assert pipeline.model is None
        (answer,) = results(pipeline, sample, "hi")
        assert answer == Answer(({"text": "hi"},), 0, 0.0)
        with pytest.raises(InputError, match="refused"):
            pipeline.prepare([sample("refuse")])
        with pytest.raises(NodeError, match="'only' failed: KeyError"):
            pipeline.prepare([sample("bug")])


def test_an_observer_is_told_every_nodes_value_for_its_own_request(pipeline: Pipeline, sample: Any) -> None:
    seen: list[tuple[str, object]] = []
    watched = pipeline.prepare([sample("a bb")], lambda name, value: seen.append((name, value)))
    pipeline.submit([pipeline.prepare([sample("ccc")]), watched]).result(timeout=20)
    assert [name for name, _ in seen] == ["words", "total", "rows"]
    assert seen[0][1] == Tokens(((1, 2),))
    assert seen[2][1] == Rows(({"total": 3.0},))
