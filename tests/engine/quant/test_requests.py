"""Calibration files in every form, through a pipeline's own template; mistakes name the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from engine.errors import ConfigError
from engine.pipeline_config import read_pipeline
from engine.quant.requests import read_texts
from tiny_models import qwen_tokenizer

PIPELINE = """
name: {name}
bounds: {{samples: 4, tokens_per_sample: 64, tokens_per_request: 128}}
nodes:
  prompt: {{kind: tokenizer, artifact: any, {template}}}
  model: {{kind: prefill, artifact: any, inputs: [prompt], head: label_scores, labels: {{y: "yes", n: "no"}}}}
"""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=qwen_tokenizer(append_end=False))


@pytest.fixture
def pipelines(tmp_path: Path) -> list[Any]:
    found = []
    for name, template in (("pair", 'template: "buy {q} or {t}?"'), ("raw", "add_special_tokens: false")):
        path = tmp_path / f"{name}.yaml"
        path.write_text(PIPELINE.format(name=name, template=template))
        found.append(read_pipeline(path))
    return found


def write(folder: Path, lines: list[Any]) -> Path:
    path = folder / "texts.jsonl"
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines) + "\n\n")
    return path


def test_wire_form_plain_maps_and_token_ids(tmp_path: Path, tokenizer: Any, pipelines: list[Any]) -> None:
    lines = [
        {
            "pipeline": "pair",
            "samples": [{"id": 1, "fields": {"q": "mouse", "t": "cat"}}, {"q": "a", "t": "b"}],
        },
        {"pipeline": "raw", "samples": [{"text": "compare the mouse"}]},
        {"pipeline": "raw", "samples": [{"token_ids": [5, 6, 7]}]},
        {"pipeline": "pair", "samples": [{"q": "a mouse", "t": 5}]},
        {"pipeline": "raw", "samples": [{"text": "yes"}]},
        {"pipeline": "pair", "samples": [{"q": "last", "t": "one"}]},
    ]
    texts = read_texts(write(tmp_path, lines), pipelines, tokenizer)
    assert [len(each) for each in (texts.calibrate, texts.choose, texts.judge)] == [3, 1, 3]
    first = texts.calibrate[0]
    assert tokenizer.decode(first.ids) == "buy mouse or cat?"
    assert first.ids[: first.prefix] == tuple(tokenizer("buy").input_ids)
    assert first.labels == (tokenizer("yes").input_ids[0], tokenizer("no").input_ids[0])
    assert texts.judge[0].ids == (5, 6, 7)
    assert texts.choose[0].prefix == 0


@pytest.mark.parametrize(
    "model",
    [
        'kind: prefill, inputs: [prompt], head: label_scores, labels: {y: "yes"}, prefixes: off',
        "kind: beam, inputs: [prompt], width: 6, steps: 2",
    ],
)
def test_what_is_served_without_a_constant_prefix_has_none(
    model: str, tmp_path: Path, tokenizer: Any
) -> None:
    """Searches and `prefixes: off` compute every token in 8 bits; they were judged as if they did not."""
    path = tmp_path / "whole.yaml"
    head, _ = PIPELINE.format(name="whole", template='template: "buy {q} or {t}?"').split("  model:")
    path.write_text(f"{head}  model: {{artifact: any, {model}}}\n")
    lines = [{"q": str(i), "t": "x"} for i in range(5)]
    texts = read_texts(write(tmp_path, lines), [read_pipeline(path)], tokenizer)
    assert {text.prefix for text in (*texts.calibrate, *texts.choose, *texts.judge)} == {0}


def test_one_pipeline_takes_bare_maps(tmp_path: Path, tokenizer: Any, pipelines: list[Any]) -> None:
    texts = read_texts(write(tmp_path, [{"q": str(i), "t": "x"} for i in range(7)]), pipelines[:1], tokenizer)
    assert len(texts.judge) == 3


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"pipeline": "pear", "samples": [{"q": "a", "t": "b"}]}, "did you mean 'pair'"),
        ({"pipeline": "pair", "samples": [{"q": "a"}]}, r"samples\[0\]\.fields\.t is missing"),
        ({"pipeline": "pair", "samples": []}, "samples is empty"),
        ({"pipeline": "pair", "samples": [3]}, "sample 3 is not a map"),
        ("[1]", "not a JSON object"),
        ('{"q": 1', r"""'\{"q": 1' is not JSON \(column 8: Expecting"""),
        ("x" * 50, rf"'{'x' * 40}…' is not JSON"),
        ('{"q": ' + "[" * 100_000 + "]" * 100_000 + "}", "is not JSON .*recursion"),
    ],
)
def test_mistakes_name_file_and_line(
    line: Any, reason: str, tmp_path: Path, tokenizer: Any, pipelines: list[Any]
) -> None:
    good = {"pipeline": "pair", "samples": [{"q": "a", "t": "b"}]}
    with pytest.raises(ConfigError, match=rf"texts\.jsonl, line 3'.*{reason}"):
        read_texts(write(tmp_path, [good, good, line, good, good]), pipelines, tokenizer)


def test_too_few_requests(tmp_path: Path, tokenizer: Any, pipelines: list[Any]) -> None:
    with pytest.raises(ConfigError, match="1 requests; at least 5"):
        read_texts(write(tmp_path, [{"q": "a", "t": "b"}]), pipelines[:1], tokenizer)


def test_a_line_ends_at_a_newline_alone(tmp_path: Path, tokenizer: Any, pipelines: list[Any]) -> None:
    """JSON leaves the line ends that only Unicode knows as they are, within a string."""
    strange = json.dumps({"q": "a\u2028b\u2029c\u0085d", "t": "x\r"}, ensure_ascii=False)
    path = write(tmp_path, [strange] * 5)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    texts = read_texts(path, pipelines[:1], tokenizer)
    assert len(texts.judge) == 3
    assert tokenizer.decode(texts.judge[0].ids) == "buy a\u2028b\u2029c\u0085d or x\r?"
