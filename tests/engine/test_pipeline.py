"""Pipelines of the user's own nodes: order, concurrency, failures kept apart, dropping, closing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
import torch

from engine.demand import Demand
from engine.errors import ConfigError, InputError, NodeError
from engine.graph import Capacity, Counted, Node, NodeContext, Stage
from engine.options import Options
from engine.packed import BatchBounds
from engine.pipeline import Answer, ArtifactStore, Dropped, Failure, Pipeline, PipelineConfig
from engine.prefixes import Saved
from engine.runtime.buckets import make_buckets
from engine.runtime.cost import CostModel
from engine.values import Rows, Samples, Scores, Tokens

BOUNDS = {"samples": 4, "tokens_per_sample": 8, "tokens_per_request": 16}
ME = __name__


class Words(Node):
    """Token ids: the lengths of the words."""

    stage = Stage.PREPARE
    consumes = (Samples,)
    produces = Tokens

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        return [
            Tokens(tuple(tuple(map(len, sample.text.split())) for sample in samples.samples))
            for (samples,) in requests
        ]


class Held(Words):
    """Holds something that must be closed."""

    closed: ClassVar[list[str]] = []

    def __init__(self, options: Any, context: NodeContext) -> None:
        self.name = context.name

    def close(self) -> None:
        self.closed.append(self.name)
        raise OSError("an error here hides no other, and leaves no other node open")


class Broken(Words):
    """Fails at open, in its own way."""

    def __init__(self, options: Any, context: NodeContext) -> None:
        raise ZeroDivisionError


class Total(Node):
    """A model: its only label's logit is the sum of the sample's token ids. Knows some bad ids."""

    class Options(Options):
        barrier: str = ""

    consumes = (Tokens,)
    produces = Scores
    is_model = True
    barriers: ClassVar[dict[str, threading.Barrier]] = {}
    launches: ClassVar[list[tuple[str, int]]] = []

    def __init__(self, options: Options, context: NodeContext) -> None:
        self.name = context.name
        self.labels = ("total",)
        self.barrier = self.barriers.get(options.barrier)
        self.capacity = Capacity(tokens=64, samples=16, batches=2)

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        self.launches.append((self.name, len(requests)))
        if self.barrier:
            self.barrier.wait(timeout=20)
        return [self._score(tokens) for (tokens,) in requests]

    def _score(self, tokens: Tokens) -> object:
        if any(13 in sample for sample in tokens.ids):
            return NodeError("thirteen", "model_output")
        if any(14 in sample for sample in tokens.ids):
            raise RuntimeError("fourteen")
        logits = torch.tensor([[float(sum(sample))] for sample in tokens.ids])
        return Scores(("total",), logits, torch.zeros(len(logits)))


class Collect(Node):
    """Rows of every input, by its name."""

    consumes = (Scores,)
    produces = Rows
    max_inputs = 4

    def __init__(self, options: Options, context: NodeContext) -> None:
        self.names = tuple(context.inputs)

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        return [self._rows(inputs) for inputs in requests]

    def _rows(self, inputs: tuple[Scores, ...]) -> Rows:
        columns = [scores.logits[:, 0].tolist() for scores in inputs]
        return Rows(tuple(dict(zip(self.names, row, strict=True)) for row in zip(*columns, strict=True)))


def config(**nodes: dict[str, object]) -> PipelineConfig:
    return PipelineConfig.model_validate({"name": "test", "bounds": BOUNDS, "nodes": nodes})


ONE = {
    "words": {"kind": f"{ME}:Words"},
    "total": {"kind": f"{ME}:Total", "inputs": ["words"]},
    "rows": {"kind": f"{ME}:Collect", "inputs": ["total"]},
}


@pytest.fixture(autouse=True)
def fresh_records() -> None:
    Total.launches.clear()
    Total.barriers.clear()


@pytest.fixture
def pipeline(no_artifacts: ArtifactStore) -> Any:
    with Pipeline.open(config(**ONE), no_artifacts) as opened:
        yield opened


def results(pipeline: Pipeline, sample: Any, *texts: str) -> list[object]:
    batch = [pipeline.prepare([sample(text)]) for text in texts]
    return list(pipeline.submit(batch).result(timeout=20))


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
    plain = {"kind": f"{ME}:Total", "inputs": ["words"]}
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
    both = ONE | {"other": hungry, "rows": {"kind": f"{ME}:Collect", "inputs": ["total", "other"]}}
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
        "left": {"kind": f"{ME}:Total", "inputs": ["words"], "barrier": "both"},
        "right": {"kind": f"{ME}:Total", "inputs": ["words"], "barrier": "both"},
        "rows": {"kind": f"{ME}:Collect", "inputs": ["left", "right"]},
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
    nodes["rows"] = {"kind": f"{ME}:Collect", "inputs": ["again"]}
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
        "rows": {"kind": f"{ME}:Collect", "inputs": ["twice"]},
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


def test_an_executor_that_is_gone_fails_the_batch(
    pipeline: Pipeline, sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = ThreadPoolExecutor(1)
    gone.shutdown()
    monkeypatch.setattr(Total, "executor", gone)
    (failed,) = results(pipeline, sample, "aa")
    assert isinstance(failed, Failure)
    assert "cannot start" in failed.message


def test_a_batch_over_capacity_is_the_callers_mistake(pipeline: Pipeline, sample: Any) -> None:
    batch = [pipeline.prepare([sample("a")] * 4) for _ in range(5)]
    with pytest.raises(ValueError, match="20 samples"):
        pipeline.submit(batch)
    with pytest.raises(ValueError, match="0 requests"):
        pipeline.submit([])


def test_close_waits_for_what_runs_and_takes_no_more(no_artifacts: ArtifactStore, sample: Any) -> None:
    Total.barriers["gate"] = threading.Barrier(2)
    nodes = {**ONE, "total": {**ONE["total"], "barrier": "gate"}}
    pipeline = Pipeline.open(config(**nodes), no_artifacts)
    prepared = pipeline.prepare([sample("aa")])
    future = pipeline.submit([prepared])
    closer = threading.Thread(target=pipeline.close)
    closer.start()
    Total.barriers["gate"].wait(timeout=20)
    closer.join(timeout=20)
    assert isinstance(future.result(timeout=0)[0], Answer)
    pipeline.close()
    with pytest.raises(RuntimeError, match="closed"):
        pipeline.submit([prepared])


def test_close_is_bounded_and_fails_what_hangs(no_artifacts: ArtifactStore, sample: Any) -> None:
    Total.barriers["never"] = threading.Barrier(2)
    nodes = {**ONE, "total": {**ONE["total"], "barrier": "never"}}
    pipeline = Pipeline.open(config(**nodes), no_artifacts)
    future = pipeline.submit([pipeline.prepare([sample("aa")])])
    pipeline.close(timeout_s=0.05)
    (failed,) = future.result(timeout=0)
    assert failed == Failure("the pipeline closed", "internal", None, 1)
    Total.barriers["never"].abort()


def test_an_open_that_fails_closes_the_nodes_that_were_made(no_artifacts: ArtifactStore) -> None:
    held = {"kind": f"{ME}:Held"}
    late_mistakes: dict[str, dict[str, Any]] = {
        "a later node's options": {"total": {"kind": f"{ME}:Total", "inputs": ["held"], "surprise": 1}},
        "no sink": {},
        "an error that is no ConfigError": {"broken": {"kind": f"{ME}:Broken", "inputs": ["held"]}},
    }
    for name, nodes in late_mistakes.items():
        Held.closed.clear()
        with pytest.raises((ConfigError, ZeroDivisionError)):
            Pipeline.open(config(held=held, other=held, **nodes), no_artifacts)
        assert sorted(Held.closed) == ["held", "other"], name


def test_errors_at_open_name_the_node(no_artifacts: ArtifactStore) -> None:
    with pytest.raises(ConfigError) as caught:
        Pipeline.open(config(**{**ONE, "rows": {"kind": "encodr", "inputs": ["total"]}}), no_artifacts)
    assert caught.value.key == "nodes.rows.kind"


def test_an_observer_is_told_every_nodes_value_for_its_own_request(pipeline: Pipeline, sample: Any) -> None:
    seen: list[tuple[str, object]] = []
    watched = pipeline.prepare([sample("a bb")], lambda name, value: seen.append((name, value)))
    pipeline.submit([pipeline.prepare([sample("ccc")]), watched]).result(timeout=20)
    assert [name for name, _ in seen] == ["words", "total", "rows"]
    assert seen[0][1] == Tokens(((1, 2),))
    assert seen[2][1] == Rows(({"total": 3.0},))
