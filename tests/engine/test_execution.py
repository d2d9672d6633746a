"""Nodes that run in two parts: the next batch begins before the last one's rest is done; either may fail.

`on_turn` comes when every model's lane is through with a batch, before the results; only where a node tells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.graph import Capacity, Node, NodeContext, Stage
from engine.pipeline import Answer, ArtifactStore, Failure, Pipeline, PipelineConfig
from engine.values import Rows, Samples, Tokens

ME = __name__
BOUNDS = {"samples": 4, "tokens_per_sample": 8, "tokens_per_request": 16}


class Lengths(Node):
    stage = Stage.PREPARE
    consumes = (Samples,)
    produces = Tokens

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        return [Tokens(((len(samples.samples[0].text),),)) for (samples,) in requests]


class Halves(Node):
    """One thread for each part. The rest of a batch waits until `others` batches after it have begun."""

    consumes = (Tokens,)
    produces = Rows
    is_model = True
    others = 0

    def __init__(self, options: Any, context: NodeContext) -> None:
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="begin")
        self.finisher = ThreadPoolExecutor(1, thread_name_prefix="finish")
        self.capacity = Capacity(64, 16, 3)
        self.num_begun, self._changed = 0, threading.Condition()

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        return self.begin(requests)()

    def begin(self, requests: Sequence[tuple[Any, ...]]) -> Callable[[], Sequence[object]]:
        assert threading.current_thread().name.startswith("begin")
        lengths = [tokens.ids[0][0] for (tokens,) in requests]
        if 5 in lengths:
            raise RuntimeError("five at the beginning")
        with self._changed:
            self.num_begun += 1
            number = self.num_begun
            self._changed.notify_all()

        def rest() -> Sequence[object]:
            with self._changed:
                assert self._changed.wait_for(lambda: self.num_begun >= number + self.others, 20)
            if 6 in lengths:
                raise RuntimeError("six in the rest")
            name = threading.current_thread().name.split("_")[0]
            return [Rows(({"length": length, "thread": name},)) for length in lengths]

        return rest

    def close(self) -> None:
        assert self.executor is not None
        assert self.finisher is not None
        self.executor.shutdown()
        self.finisher.shutdown()


class Whole(Halves):
    """In one part, when `gate` opens."""

    gate = threading.Event()

    def __init__(self, options: Any, context: NodeContext) -> None:
        super().__init__(options, context)
        self._unused, self.finisher = self.finisher, None

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        assert self.gate.wait(20)
        return [Rows(({"whole": tokens.ids[0][0]},)) for (tokens,) in requests]

    def close(self) -> None:
        self.finisher = self._unused
        super().close()


class Join(Node):
    """Two branches' rows -> the second's."""

    consumes = (Rows,)
    produces = Rows
    min_inputs = max_inputs = 2

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        return [rows for _, rows in requests]


@pytest.fixture
def pipeline(no_artifacts: ArtifactStore) -> Iterator[Pipeline]:
    nodes = {
        "lengths": {"kind": f"{ME}:Lengths"},
        "halves": {"kind": f"{ME}:Halves", "inputs": ["lengths"]},
    }
    config = PipelineConfig.model_validate({"name": "test", "bounds": BOUNDS, "nodes": nodes})
    with Pipeline.open(config, no_artifacts) as opened:
        yield opened


def test_the_next_batch_begins_before_the_rest(
    pipeline: Pipeline, sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Halves, "others", 1)
    jobs = [pipeline.submit([pipeline.prepare([sample(text)])]) for text in ("a", "bb", "ccc")]
    for job, length in zip(jobs[:2], (1, 2), strict=True):
        (answer,) = job.result(20)
        assert isinstance(answer, Answer)
        assert answer.rows == ({"length": length, "thread": "finish"},)
        assert answer.gpu_ms > 0
    monkeypatch.setattr(Halves, "others", 0)
    pipeline.submit([pipeline.prepare([sample("d")])]).result(20)
    assert isinstance(jobs[2].result(20)[0], Answer)


@pytest.mark.parametrize("text", ["five!", "sixsix"])
def test_either_part_fails_its_own_batch(pipeline: Pipeline, sample: Any, text: str) -> None:
    bad, good = (pipeline.submit([pipeline.prepare([sample(x)])]) for x in (text, "fine"))
    (failure,) = bad.result(20)
    assert isinstance(failure, Failure)
    assert failure.message == "node 'halves' failed: RuntimeError"
    assert isinstance(good.result(20)[0], Answer)


def test_a_finisher_that_has_ended_is_done_without(pipeline: Pipeline, sample: Any) -> None:
    (node,) = (node for node in pipeline._graph.nodes.values() if isinstance(node, Halves))
    assert node.finisher is not None
    node.finisher.shutdown()
    (answer,) = pipeline.submit([pipeline.prepare([sample("a")])]).result(20)
    assert isinstance(answer, Answer)
    assert answer.rows[0]["thread"] == "begin"


def test_a_turn_comes_before_the_results(
    pipeline: Pipeline, sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Halves, "others", 1)
    turns: list[str] = []
    turned = threading.Event()

    def on_turn() -> None:
        turns.append(threading.current_thread().name.split("_")[0])
        turned.set()
        raise ValueError("the caller's own mistake")

    first = pipeline.submit([pipeline.prepare([sample("a")])], on_turn)
    assert turned.wait(20)
    assert not first.done()
    monkeypatch.setattr(Halves, "others", 0)
    pipeline.submit([pipeline.prepare([sample("bb")])]).result(20)
    assert isinstance(first.result(20)[0], Answer)
    assert turns == ["begin"]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_batch_that_leaves_its_lane_otherwise_tells_its_turn_too(
    pipeline: Pipeline, sample: Any, wanted: bool
) -> None:
    prepared = pipeline.prepare([sample("five!")])  # it fails, or is not run at all
    prepared.wanted = lambda: wanted
    turns: list[None] = []
    pipeline.submit([prepared], lambda: turns.append(None)).result(20)
    assert len(turns) == 1


@pytest.mark.parametrize("mixed", [True, False])
def test_a_model_in_one_part_is_waited_for_and_tells_nothing_alone(
    no_artifacts: ArtifactStore, sample: Any, mixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Whole, "gate", threading.Event())
    nodes: dict[str, Any] = {
        "lengths": {"kind": f"{ME}:Lengths"},
        "whole": {"kind": f"{ME}:Whole", "inputs": ["lengths"]},
    }
    if mixed:
        nodes["halves"] = {"kind": f"{ME}:Halves", "inputs": ["lengths"]}
        nodes["join"] = {"kind": f"{ME}:Join", "inputs": ["halves", "whole"]}
    config = PipelineConfig.model_validate({"name": "test", "bounds": BOUNDS, "nodes": nodes})
    turns: list[bool] = []
    with Pipeline.open(config, no_artifacts) as opened:
        job = opened.submit([opened.prepare([sample("a")])], lambda: turns.append(Whole.gate.is_set()))
        Whole.gate.set()
        (answer,) = job.result(20)
    assert isinstance(answer, Answer)
    assert answer.rows == ({"whole": 1},)
    assert turns == ([True] if mixed else [])


def test_nodes_are_told_how_long_a_batch_takes_to_come(pipeline: Pipeline) -> None:
    pipeline.tell_turns_sooner(0.002)
    assert {node.lead_s for node in pipeline._graph.nodes.values() if node.finisher} == {0.002}
