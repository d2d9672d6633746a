"""How a pipeline opens and closes: what runs ends or fails in time, and nothing is left open."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from engine.errors import ConfigError
from engine.graph import NodeContext
from engine.pipeline import Answer, ArtifactStore, Failure, Pipeline
from word_nodes import ONE, Total, Words, config, results

ME = __name__
pytestmark = pytest.mark.usefixtures("fresh_records")


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


def test_an_executor_that_is_gone_fails_the_batch(
    pipeline: Pipeline, sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = ThreadPoolExecutor(1)
    gone.shutdown()
    monkeypatch.setattr(Total, "executor", gone)
    (failed,) = results(pipeline, sample, "aa")
    assert isinstance(failed, Failure)
    assert "cannot start" in failed.message


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
        "a later node's options": {"total": {"kind": "word_nodes:Total", "inputs": ["held"], "surprise": 1}},
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
