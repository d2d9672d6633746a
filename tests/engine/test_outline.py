"""Pipelines without artifacts: what does not fit is told as Pipeline.open tells it, what may fit passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.nodes.registry import KINDS
from engine.outline import OUTLINES, check_outline
from engine.pipeline_config import read_pipeline

GOOD = """
name: both
bounds: {samples: 8, tokens_per_sample: 64, tokens_per_request: 256}
nodes:
  prompt: {kind: tokenizer, artifact: none, template: "{query}"}
  intent: {kind: prefill, artifact: none, inputs: [prompt], head: label_scores, labels: {yes: "Y", no: "N"}}
  near: {kind: prefill, artifact: none, inputs: [prompt], head: embedding}
  found: {kind: beam, artifact: none, inputs: [prompt], width: 4, steps: 2}
  answer:
    kind: encoder
    inputs: [intent, near, found]
    output: {intent: mapping}
    mapping: {values: {yes: 1, no: 0}}
"""

CONFIGS = Path(__file__).parents[2] / "configs"


def check(folder: Path, text: str) -> None:
    path = folder / "pipeline.yaml"
    path.write_text(text, encoding="utf-8")
    check_outline(read_pipeline(path))


def test_all_of_our_kinds_and_what_the_project_brings(tmp_path: Path) -> None:
    check(tmp_path, GOOD)
    check(tmp_path, GOOD[: GOOD.index("  answer")])  # rows are not needed to make texts
    paths = [path for path in CONFIGS.glob("*.yaml") if "nodes:" in path.read_text(encoding="utf-8")]
    assert paths
    for path in paths:
        check_outline(read_pipeline(path))


def test_every_kind_has_an_outline() -> None:
    assert set(OUTLINES) == set(KINDS.values())


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        (
            "{intent: map",
            "{intnt: map",
            "answer.output.intnt = 'mapping': no such input; did you mean",
        ),
        (
            "{intent: mapping}",
            "{intent: top_k}",
            "answer.output.intent = 'top_k': needs TopK, but",
        ),
        (
            "{intent: mapping}",
            "{near: bems}",
            "answer.output.near = 'bems': no such output; did you mean",
        ),
        ("no: 0", "not: 0", "answer.mapping.values.not = 0: no such label; did you mean 'no'?"),
        ("inputs: [intent, ", "inputs: [intents, ", "answer.inputs = 'intents': no such node; did you mean"),
        (
            "head: embedding",
            "head: embeding",
            "near.head = 'embeding': no such head; did you mean",
        ),
        ("head: embedding", "head: embedding, k: 3", "near.k = 3: unknown setting"),
        ("steps: 2", "step: 2", "found.step = 2: unknown setting; did you mean 'steps'?"),
        ("kind: beam", "kind: bean", "found.kind = 'bean': no such kind; did you mean 'beam'?"),
        ("inputs: [prompt], width", "inputs: [near], width", "found.inputs = 'near': gives Embeddings, but"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, was: str, becomes: str, said: str) -> None:
    assert was in GOOD
    with pytest.raises(ConfigError) as caught:
        check(tmp_path, GOOD.replace(was, becomes))
    assert f"pipeline.yaml: nodes.{said}" in str(caught.value)


def test_a_node_of_the_users_own_need_not_be_installed(tmp_path: Path) -> None:
    text = GOOD.replace("kind: beam", "kind: 'no.such:Node'")
    check(tmp_path, text)
    with pytest.raises(ConfigError, match=r"answer\.inputs = 'nothing': no such node"):
        check(tmp_path, text.replace("inputs: [intent, ", "inputs: [nothing, "))
