"""Pipeline files: how they are read, and how their mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.pipeline_config import read_pipeline

GOOD = """
name: relevance
bounds: {samples: 32, tokens_per_sample: 512, tokens_per_request: 4096}
nodes:
  prompt: {kind: tokenizer, artifact: smollm2, template: "Query: {query}", cut: query}
  model: {kind: prefill, artifact: x, inputs: [prompt], head: label_scores, labels: {yes: " yes", no: " no"}}
  answer: {kind: encoder, inputs: [model], output: softmax}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "pipeline.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_documented_form(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    config = read_pipeline(path)
    assert config.name == "relevance"
    assert config.bounds.tokens_per_request == 4096
    assert config.nodes["prompt"].inputs == ["request"]
    assert config.nodes["model"].settings["head"] == "label_scores"
    assert config.file == path


def test_labels_named_yes_and_no_stay_text(tmp_path: Path) -> None:
    settings = read_pipeline(written(tmp_path, GOOD)).nodes["model"].settings
    assert settings["labels"] == {"yes": " yes", "no": " no"}


def test_true_and_false_are_still_booleans(tmp_path: Path) -> None:
    text = GOOD.replace("cut: query", "add_special_tokens: true, other: off")
    settings = read_pipeline(written(tmp_path, text)).nodes["prompt"].settings
    assert settings["add_special_tokens"] is True
    assert settings["other"] == "off"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "pipeline = None: a pipeline file is a map"),
        ("- a", "pipeline = ['a']: a pipeline file is a map"),
        ("a: [", "is not YAML"),
        (GOOD + "name: again\n", "the key 'name' is given twice"),
        (GOOD.replace("head:", "kind: x, head:"), "the key 'kind' is given twice"),
        (GOOD.replace("bounds:", "bound:"), "bound = "),
        (GOOD.replace("samples: 32", "samples: 0"), "bounds.samples = 0"),
        (
            GOOD.replace("samples: 32", "sample: 32"),
            "bounds.sample = 32: unknown setting; did you mean 'samples'?",
        ),
        (GOOD.replace("samples: 32", "samples: many"), "bounds.samples = 'many'"),
        (GOOD.replace("4096", "100"), "tokens_per_sample exceeds tokens_per_request"),
        (GOOD.replace("kind: encoder, ", ""), "nodes.answer.kind = None: required"),
        (GOOD.replace("[model]", "model"), "nodes.answer.inputs = 'model'"),
        (GOOD.replace("[model]", "[]"), "nodes.answer.inputs = []"),
        (GOOD.replace("relevance", "a/b"), "name = 'a/b'"),
        ("name: x\nbounds: 3\nnodes: {}", "bounds = 3"),
    ],
)
def test_mistakes_name_file_key_and_value(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_pipeline(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml.*cannot be read"):
        read_pipeline(tmp_path / "nowhere.yaml")


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_bytes(b"name: \xff")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        read_pipeline(path)
