"""Nodes that run in two parts: the next batch begins before the last one's rest is done; either may fail."""

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
