"""What requests take of a batch, what models were spared, and who is dropped before a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engine.demand import Demand
from engine.errors import NodeError
from engine.graph import Capacity, Counted, Node
from engine.packed import BatchBounds
from engine.pipeline import Answer, ArtifactStore, Dropped, Failure, Pipeline
from engine.prefixes import Saved
from engine.runtime.buckets import make_buckets
from engine.runtime.cost import CostModel
from engine.values import Scores
from word_nodes import ONE, Total, config, results

ME = __name__
pytestmark = pytest.mark.usefixtures("fresh_records")


def test_prepare_counts_what_batching_budgets_by(pipeline: Pipeline, sample: Any) -> None:
    prepared = pipeline.prepare([sample("a bb"), sample("c")])
    assert (prepared.num_samples, prepared.num_tokens) == (2, 3)
    assert set(prepared.values) == {"words"}
    assert pipeline.capacity == Capacity(tokens=64, samples=16, batches=2)


class Hungry(Total):
    """Takes five tokens, a place and 100 rows of decode steps more than its samples; its cost is known."""

    cost = CostModel(make_buckets(BatchBounds(16, 64, 64)), ((64, 2.0),))

    def demand(self, inputs: tuple[Any, ...]) -> Demand:
        (tokens,) = inputs
        return Demand(tokens.num_tokens + 5, len(tokens.ids) + 1, rows=100)


def test_a_model_says_what_a_request_takes_and_what_batches_cost(
    no_artifacts: ArtifactStore, sample: Any
) -> None:
    plain = {"kind": "word_nodes:Total", "inputs": ["words"]}
    hungry = plain | {"kind": f"{ME}:Hungry"}
    nodes = ONE | {"total": hungry}
    with Pipeline.open(config(**nodes), no_artifacts) as pipeline:
        one, other = (pipeline.prepare([sample("a bb")] * 2) for _ in range(2))
        assert one.num_tokens == 4
        assert one.demand == Demand(9, 3, rows=100)
        assert pipeline.cost is not None
        assert pipeline.cost.predict_ms(9) == 2.0
        assert len(pipeline.submit([one, other]).result(20)) == 2
        wide = pipeline.prepare([sample("a " * 8)] * 2)
        with pytest.raises(ValueError, match="batch of 4 requests, 84 tokens, 12 samples"):
            pipeline.submit([wide] * 4)  # of 21 tokens each
        assert len(pipeline.submit([wide]).result(20)) == 1
    both = ONE | {"other": hungry, "rows": {"kind": "word_nodes:Collect", "inputs": ["total", "other"]}}
    with Pipeline.open(config(**both), no_artifacts) as pipeline:
        assert pipeline.prepare([sample("a bb")]).demand == Demand(7, 2, rows=100)
        assert pipeline.cost is None  # of one of the two nothing is known
    both["total"] = hungry
    with Pipeline.open(config(**both), no_artifacts) as pipeline:
        assert pipeline.cost is not None
        assert pipeline.cost.predict_ms(9) == 4.0


def test_a_demand_that_fails_is_the_node_s_fault(no_artifacts: ArtifactStore, sample: Any) -> None:
    nodes = ONE | {"total": {"kind": f"{ME}:Confused", "inputs": ["words"]}}
    opened = Pipeline.open(config(**nodes), no_artifacts)
    with opened as pipeline, pytest.raises(NodeError, match="node 'total' failed: KeyError"):
        pipeline.prepare([sample("a")])


class Confused(Total):
    def demand(self, inputs: tuple[Any, ...]) -> Demand:
        raise KeyError("tokens")


def test_dropped_requests_never_reach_the_model(pipeline: Pipeline, sample: Any) -> None:
    batch = [pipeline.prepare([sample("aa")]) for _ in range(3)]
    batch[1].wanted = lambda: False
    assert [type(each) for each in pipeline.submit(batch).result(timeout=20)] == [Answer, Dropped, Answer]
    assert Total.launches == [("total", 2)]


def test_a_batch_of_dropped_requests_launches_nothing(pipeline: Pipeline, sample: Any) -> None:
    batch = [pipeline.prepare([sample("aa")]) for _ in range(2)]
    for prepared in batch:
        prepared.wanted = lambda: False
    assert pipeline.submit(batch).result(timeout=20) == [Dropped(0), Dropped(0)]
    assert Total.launches == []


def test_wanted_is_asked_at_every_model_and_stays_no(no_artifacts: ArtifactStore, sample: Any) -> None:
    nodes = {**ONE, "again": {"kind": f"{ME}:Again", "inputs": ["total"]}}
    nodes["rows"] = {"kind": "word_nodes:Collect", "inputs": ["again"]}
    answers = iter([True, False])
    with Pipeline.open(config(**nodes), no_artifacts) as pipeline:
        prepared = pipeline.prepare([sample("aa")])
        prepared.wanted = lambda: next(answers)
        assert pipeline.submit([prepared]).result(timeout=20) == [Dropped(1)]


class Again(Node):
    """A second model behind the first."""

    consumes = (Scores,)
    produces = Scores
    is_model = True

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        return [scores for (scores,) in requests]


class Sparing(Node):
    """A model that was spared tokens. Knows a bad sum."""

    consumes = (Scores,)
    produces = Scores
    is_model = True

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        values = [scores if scores.logits.sum() != 3 else NodeError("three") for (scores,) in requests]
        return [Counted(value, Saved(2, 5)) for value in values]


def test_what_model_nodes_were_spared_is_added_up(no_artifacts: ArtifactStore, sample: Any) -> None:
    nodes = {
        **ONE,
        "once": {"kind": f"{ME}:Sparing", "inputs": ["total"]},
        "twice": {"kind": f"{ME}:Sparing", "inputs": ["once"]},
        "rows": {"kind": "word_nodes:Collect", "inputs": ["twice"]},
    }
    with Pipeline.open(config(**nodes), no_artifacts) as pipeline:
        good, bad = results(pipeline, sample, "aa", "aaa")
    assert isinstance(good, Answer)
    assert (good.rows, good.saved) == (({"twice": 2.0},), Saved(4, 10))
    assert isinstance(bad, Failure)
    assert bad.message == "three"


def test_wanted_that_raises_fails_its_own_request_only(pipeline: Pipeline, sample: Any) -> None:
    batch = [pipeline.prepare([sample("aa")]) for _ in range(2)]

    def broken() -> bool:
        raise OSError("clock")

    batch[0].wanted = broken
    assert [type(each) for each in pipeline.submit(batch).result(timeout=20)] == [Failure, Answer]


def test_a_batch_over_capacity_is_the_callers_mistake(pipeline: Pipeline, sample: Any) -> None:
    batch = [pipeline.prepare([sample("a")] * 4) for _ in range(5)]
    with pytest.raises(ValueError, match="20 samples"):
        pipeline.submit(batch)
    with pytest.raises(ValueError, match="0 requests"):
        pipeline.submit([])
