"""One request through two real models at once, their results joined; artifacts shared by pipelines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import yaml

from engine.errors import ConfigError
from engine.pipeline import Answer, ArtifactStore, Pipeline, PipelineConfig

PIPELINE = """
name: both
bounds: {samples: 8, tokens_per_sample: 64, tokens_per_request: 256}
nodes:
  prompt: {kind: tokenizer, artifact: causal, template: "{query} yes", cut: query}
  intent: {kind: prefill, artifact: causal, inputs: [prompt], head: label_scores, labels: {y: "yes", n: "no"}}
  quality: {kind: prefill, artifact: classifier, inputs: [prompt], head: score}
  answer: {kind: encoder, inputs: [intent, quality], output: {quality: logits}}
"""


@pytest.fixture(scope="module")
def store(tiny_causal: Any, tiny_classifier: Any) -> Iterator[ArtifactStore]:
    store = ArtifactStore({"causal": tiny_causal.artifact, "classifier": tiny_classifier.artifact})
    yield store
    store.close()


@pytest.fixture
def config() -> PipelineConfig:
    return PipelineConfig.model_validate(yaml.safe_load(PIPELINE))


def alone(store: ArtifactStore, name: str, tokens: list[int]) -> torch.Tensor:
    from engine.packed import pack

    lanes = store.get(name).lanes
    return lanes.executor.submit(lanes.forward, pack([tokens])).result(timeout=60)[0]


def test_the_results_are_each_models_own(store: ArtifactStore, config: PipelineConfig, sample: Any) -> None:
    texts = ["buy the mouse", "laptop", "a long battery"]
    with Pipeline.open(config, store) as pipeline:
        batch = [pipeline.prepare([sample(fields={"query": text})]) for text in texts]
        results = pipeline.submit(batch).result(timeout=60)
        names = pipeline.model
    assert names is not None
    assert names.name.count("+") == 1
    score = store.get("classifier").artifact.score_weight
    tokenizer = store.get("causal").artifact.tokenizer
    for text, result in zip(texts, results, strict=True):
        assert isinstance(result, Answer)
        assert result.model_runs == 2
        (row,) = result.rows
        tokens = tokenizer.encode(f"{text} yes", add_special_tokens=False)
        assert score is not None
        expected = (alone(store, "classifier", tokens) @ score.float().T).tolist()
        assert list(row["quality"]["scores"].values()) == pytest.approx(expected, abs=1e-4)  # type: ignore[index]
        assert sum(row["intent"]["scores"].values()) == pytest.approx(1)  # type: ignore[index]


def test_both_models_run_at_the_same_time(
    store: ArtifactStore, config: PipelineConfig, sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lane waits for the other inside its model node: one after the other would never finish."""
    together = threading.Barrier(2)
    for name in ("causal", "classifier"):
        lanes = store.get(name).lanes
        run = lanes.run

        def meet(packed: Any, head: Any, run: Any = run) -> Any:
            together.wait(timeout=30)
            return run(packed, head)

        monkeypatch.setattr(lanes, "run", meet)
    with Pipeline.open(config, store) as pipeline:
        (result,) = pipeline.submit([pipeline.prepare([sample(fields={"query": "buy"})])]).result(timeout=60)
    assert isinstance(result, Answer)


def test_pipelines_share_artifacts_and_outlive_each_other(
    store: ArtifactStore, config: PipelineConfig, sample: Any
) -> None:
    first, second = Pipeline.open(config, store), Pipeline.open(config, store)
    opened = store.get("causal")
    first.close()
    (result,) = second.submit([second.prepare([sample(fields={"query": "buy"})])]).result(timeout=60)
    second.close()
    assert isinstance(result, Answer)
    assert store.get("causal") is opened


def test_an_artifact_is_loaded_once_by_many_threads(tiny_causal: Any) -> None:
    store = ArtifactStore({"causal": tiny_causal.artifact})
    assert store.opened == {}
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(store.get("causal"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    (lanes,) = store.opened.values()
    assert lanes.load_report.seconds > 0
    assert lanes.load_report.weights_bytes > 1_000
    assert (lanes.fallbacks, lanes.launch_report.launches, lanes.cost) == (0, 0, None)  # no graphs on a CPU
    assert store.fallbacks == {"causal": 0}
    store.close()
    store.close()
    assert store.opened == store.fallbacks == store.load_reports == {}
    assert len(found) == 4
    assert len({id(each) for each in found}) == 1


def test_an_unknown_artifact_is_named_with_its_node(store: ArtifactStore, config: PipelineConfig) -> None:
    wrong = yaml.safe_load(PIPELINE.replace("artifact: classifier", "artifact: clasifier"))
    with pytest.raises(ConfigError, match="did you mean 'classifier'") as caught:
        Pipeline.open(PipelineConfig.model_validate(wrong), store)
    assert caught.value.key == "nodes.quality.artifact"
