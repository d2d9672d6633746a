"""doctor ARTIFACT TEXTS: answers inside and outside a budget, and what it says where texts do not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from tools.cli import app

PIPELINE = """
name: pair
bounds: {samples: 4, tokens_per_sample: 64, tokens_per_request: 128}
nodes:
  prompt: {kind: tokenizer, artifact: any, template: "compare {q} yes or no:"}
  model: {kind: prefill, artifact: any, inputs: [prompt], head: label_scores, labels: {y: "yes", n: "no"}}
"""


@pytest.fixture
def doctor(tmp_path: Path, tiny_causal: Any) -> Any:
    (tmp_path / "pair.yaml").write_text(PIPELINE)
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"q": "mouse " * n}) for n in range(1, 9)))

    def run(*options: str, texts: str = "texts.jsonl", artifact: Path = tiny_causal.artifact) -> Any:
        places = [str(artifact), str(tmp_path / texts), "--pipeline", str(tmp_path / "pair.yaml")]
        checkpoint = ["--model", str(tiny_causal.checkpoint)]
        return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["doctor", *places, *checkpoint, *options])

    return run


def test_a_float32_artifact_answers_as_its_model(doctor: Any) -> None:
    result = doctor()
    assert result.exit_code == 0, result.output
    assert "on 8 texts against float32" in result.output


def test_over_the_budget_is_a_failure_with_a_mend(doctor: Any) -> None:
    result = doctor("--max-label-shift", "0", "--json")
    assert result.exit_code == 1
    (finding,) = json.loads(result.output.splitlines()[-1])["findings"]
    assert "allowed 0" in finding["detail"]
    assert "--calibrate" in finding["mend"]


def test_a_checkpoint_that_was_trained_on_is_another_model(
    doctor: Any, tmp_path: Path, tiny_causal: Any
) -> None:
    """Of the same shape, under the same config.json: only its weights tell."""
    retrained = shutil.copytree(tiny_causal.checkpoint, tmp_path / "retrained")
    weights = load_file(retrained / "model.safetensors")
    save_file({name: x * 1.01 for name, x in weights.items()}, retrained / "model.safetensors")
    result = doctor("--model", str(retrained), "--json")
    assert result.exit_code == 1
    (finding,) = json.loads(result.output.splitlines()[-1])["findings"]
    assert f"checkpoint {retrained}: model.safetensors has sha256" in finding["detail"]
    assert "--model" in finding["mend"]


def test_texts_that_are_not_there(doctor: Any) -> None:
    result = doctor(texts="nothing.jsonl")
    assert result.exit_code == 1
    assert "nothing.jsonl" in result.output
    assert "mend: mend it, or give other texts" in result.output


def test_texts_that_do_not_fit_the_template(doctor: Any, tmp_path: Path) -> None:
    """The checkpoint has nothing to do with it."""
    good = json.dumps({"q": "mouse"})
    (tmp_path / "lacking.jsonl").write_text("\n".join([good] * 6 + ['{"p": "mouse"}']))
    result = doctor("--json", texts="lacking.jsonl")
    assert result.exit_code == 1
    (finding,) = json.loads(result.output.splitlines()[-1])["findings"]
    assert "lacking.jsonl, line 7': samples[0].fields.q is missing" in finding["detail"]
    assert finding["mend"] == "mend it, or give other texts or another --pipeline"


def test_an_encoder_that_reads_what_no_node_gives(doctor: Any, tmp_path: Path) -> None:
    """Nothing but the tokenizer and the labels was looked at."""
    more = "  answer: {kind: encoder, inputs: [model], output: {modle: logits}}\n"
    (tmp_path / "pair.yaml").write_text(PIPELINE + more)
    result = doctor()
    assert result.exit_code == 1
    assert f"{tmp_path / 'pair.yaml'}: nodes.answer.output.modle = 'logits': no such input" in result.output


@pytest.mark.parametrize(
    ("place", "missing", "mend"),
    [
        ("nowhere", "no such directory, so no artifact", "the directory that build --out named"),
        ("pair.yaml", "is no directory, so no artifact", "the directory that build --out named"),
        ("empty", "no readable manifest.json", "copy it again, or build it"),
    ],
)
def test_an_artifact_that_is_none(doctor: Any, tmp_path: Path, place: str, missing: str, mend: str) -> None:
    """The checkpoint is not what is missing."""
    (tmp_path / "empty").mkdir()
    result = doctor("--json", artifact=tmp_path / place)
    assert result.exit_code == 1
    (finding,) = json.loads(result.output.splitlines()[-1])["findings"]
    assert f"{tmp_path / place}: {missing}" in finding["detail"]
    assert mend in finding["mend"]
    assert "--model" not in finding["mend"]


@pytest.mark.parametrize(
    ("texts", "options", "said"),
    [
        ("away.jsonl", ("--pipeline", "pair.yaml"), "TEXTS = '{folder}/away.jsonl': cannot be read"),
        ("garbled.jsonl", ("--pipeline", "pair.yaml"), "TEXTS = '{folder}/garbled.jsonl, line 1'"),
        ("away.jsonl", (), "TEXTS = '{folder}/away.jsonl': needs --pipeline"),
        (None, ("--pipeline", "pair.yaml"), "--pipeline goes with TEXTS"),
    ],
)
def test_errors_name_what_was_typed(
    tmp_path: Path, tiny_causal: Any, texts: str | None, options: tuple[str, ...], said: str
) -> None:
    """No option of build, which reads such texts too."""
    (tmp_path / "pair.yaml").write_text(PIPELINE)
    (tmp_path / "garbled.jsonl").write_text("{\n")
    given = [str(tmp_path / each) for each in ([] if texts is None else [texts])]
    places = [str(tmp_path / each) if each.endswith("yaml") else each for each in options]
    command = ["doctor", str(tiny_causal.artifact), *given, *places]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, command)
    assert result.exit_code in (1, 2)
    assert said.format(folder=tmp_path) in result.output
    assert "calibrate" not in result.output


def test_an_artifact_without_texts(tmp_path: Path) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["doctor", str(tmp_path)])
    assert result.exit_code == 2
    assert f"{tmp_path}: is no worker's YAML; of an artifact TEXTS are needed" in result.output


def test_a_search_is_judged_by_its_winners(tmp_path: Path, tiny_beam: Any) -> None:
    pipeline = tmp_path / "recall.yaml"
    head, _ = PIPELINE.split("  model:")
    pipeline.write_text(
        f"{head}  model: {{kind: beam, artifact: any, inputs: [prompt], width: 8, steps: 2}}\n"
    )
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join(json.dumps({"q": "mouse " * n}) for n in range(1, 9)))

    def run(*options: str) -> Any:
        places = [str(tiny_beam.artifact), str(texts), "--pipeline", str(pipeline), *options]
        checkpoint = ["--model", str(tiny_beam.checkpoint)]
        return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["doctor", *places, *checkpoint])

    result = run()
    assert result.exit_code == 0, result.output
    assert "against float32, 100.0% of 8 searches' winners" in result.output
    pipeline.write_text(pipeline.read_text().replace("steps: 2", "steps: 5"))
    result = run()
    assert result.exit_code == 1
    assert "beam_steps = 4: pipeline 'pair' searches with steps = 5" in result.output
