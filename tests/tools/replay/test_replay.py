"""`boundgen replay` of what a real worker answered: nothing where nothing changed, every change named."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from engine.manifest import sealed
from kafka_service import consumer_groups
from tools.cli import app

GOOD = 12
ALL = 18


def change_weights(artifact: Path, target: Path) -> Path:
    """The same package over other weights, its manifest in order."""
    shutil.copytree(artifact, target)
    weights = load_file(target / "weights.safetensors")
    for name, each in weights.items():
        if "embed" in name:
            weights[name] = each * 1.5
    save_file(weights, target / "weights.safetensors")
    manifest = json.loads((target / "manifest.json").read_text())
    digest = hashlib.sha256((target / "weights.safetensors").read_bytes()).hexdigest()
    manifest["files"]["weights.safetensors"] = digest
    (target / "manifest.json").write_text(json.dumps(sealed(manifest)))
    return target


def kinds(findings: dict[str, Any]) -> dict[str, list[str]]:
    """What the changes are -> their texts."""
    found: dict[str, list[str]] = {}
    for each in findings["changes"]:
        found.setdefault(each["what"], []).append(each["text"])
    return found


def test_unchanged_shows_none(scene: Any):
    found = scene.replay(scene.config())
    assert found.status == 0, found.told
    findings = found.findings
    assert (findings["requests"], findings["same"], findings["different"]) == (ALL, ALL, 0)
    assert findings["changes"] == []
    assert findings["outcomes"] == {"ok": GOOD, "invalid": 4, "rejected": 1, "expired": 1}
    assert "0 different" in found.told


def test_a_changed_label_set_is_named(scene: Any):
    labels = {"yes": " yes", "buy": " buy"}
    for capture in (scene.capture, scene.bare):
        found = scene.replay(scene.config({"nodes.model.labels": labels}), files=[capture])
        assert found.status == 1
        assert (found.findings["different"], found.findings["same"]) == (GOOD, ALL - GOOD)
        named = kinds(found.findings)
        assert named["labels"] == ["labels added: buy", "labels removed: no"]
        assert "artifact" not in named
        assert "prompts" not in named
        groups = {(each["path"], each["kind"]) for each in found.findings["groups"]}
        assert {("results[*].scores.buy", "added"), ("results[*].scores.no", "removed")} <= groups
    assert "setting" not in named  # the bare capture does not know the pipeline


def test_a_changed_template_is_named(scene: Any):
    config = scene.config({"nodes.prompt.template": "Compare {query} with {title}:"})
    found = scene.replay(config)
    assert found.status == 1
    named = kinds(found.findings)
    (setting,) = named["setting"]
    assert setting.startswith("nodes.prompt.template changed: 'Query: {query}")
    assert "'Compare {query} with {title}:'" in setting
    assert named["prompts"] == ["prompts changed: usage.tokens differ in 12 of 12 answers"]

    bare = kinds(scene.replay(config, files=[scene.bare]).findings)
    assert "setting" not in bare
    assert "a capture with --config would say which" in bare["prompts"][0]


def test_a_template_of_as_many_tokens_is_told_as_unknown_without_a_configuration(scene: Any):
    config = scene.config({"nodes.prompt.template": "Query: {query}\nTitle: {title}\nBuy;"})
    bare = scene.replay(config, files=[scene.bare])
    assert bare.status == 1
    assert list(kinds(bare.findings)) == ["unknown"]
    assert "--explain" in kinds(bare.findings)["unknown"][0]
    assert "setting" in kinds(scene.replay(config).findings)


def test_a_changed_artifact_is_named(scene: Any, tmp_path: Path):
    other = change_weights(scene.model.artifact, tmp_path / "other")
    found = scene.replay(scene.config(artifact=other))
    assert found.status == 1
    named = kinds(found.findings)
    assert list(named) == ["artifact"]
    assert "12 replies" in named["artifact"][0]
    first = found.findings["first"]
    assert first["request"].startswith("request 'good-0' at ")
    assert first["path"].startswith("results[0].")
    assert "first divergence: request 'good-0'" in found.told


def test_a_tolerance_hides_what_is_smaller(scene: Any, tmp_path: Path):
    other = change_weights(scene.model.artifact, tmp_path / "other")
    found = scene.replay(scene.config(artifact=other), "--abs-tol", "1", "--id", "good-0")
    assert [each["path"] for each in found.findings["groups"] if each["kind"] == "number"] == []


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--id", "good-3", "--id", "over"], ["good-3", "over"]),
        (["--outcome", "rejected"], ["large"]),
        (["--error-code", "unknown_pipeline"], ["other"]),
        (["--error-code", "malformed"], ["garbled", "cut"]),
        (["--offsets", "2-4"], ["good-2", "good-3", "good-4"]),
        (["--offsets", "16-"], ["garbled", "cut"]),
        (["--partition", "1"], []),
        (["--topic", "another"], []),
        (["--limit", "2"], ["good-0", "good-1"]),
        (["--until", "1h"], []),
        (["--since", "1h", "--offsets", "7"], ["good-7"]),
    ],
)
def test_selection(scene: Any, options: list[str], ids: list[str]):
    found = scene.replay(scene.config(), *options)
    assert (found.status, found.findings["requests"]) == (0 if ids else 3, len(ids)), found.told


def test_deterministic_repeats_to_the_bit(scene: Any):
    once = scene.replay(scene.config(), "--deterministic")
    again = scene.replay(scene.config(), "--deterministic")
    assert once.status == 0, once.told
    found = once.findings["deterministic"]
    assert (found["repeated"], found["unrepeatable"]) == (ALL, 0)
    assert found["digest"] == again.findings["deterministic"]["digest"]
    assert "digest" in once.told


def test_explain_shows_prompt_tokens_logits_and_rows(scene: Any):
    found = scene.replay(scene.config(), "--explain", "good-1")
    assert found.status == 0, found.told
    (told,) = found.findings["explained"]
    assert [node["name"] for node in told["nodes"]] == ["prompt", "model", "answer"]
    assert len(told["samples"]) == 2
    prompt, model, answer = (node["samples"] for node in told["nodes"])
    assert prompt[0]["prompt"] == "Query: silent click\nTitle: silent click\nBuy:"
    assert "".join(text for _, text in prompt[0]["tokens"]) == prompt[0]["prompt"]
    assert set(model[0]["labels"]) == {"yes", "no"}
    recorded = told["recorded"]["results"][0]
    assert answer[0]["scores"]["yes"] == pytest.approx(recorded["scores"]["yes"], abs=1e-5)
    for words in ("request 'good-1'", "prompt: 'Query: silent click", "logprob", "recorded row"):
        assert words in found.output


def test_explain_a_request_that_was_refused(scene: Any):
    found = scene.replay(scene.config(), "--explain", "lacking")
    assert found.status == 0
    assert "samples[0].fields.title" in found.output
    assert "no node gave a value" in found.output


def test_deadlines_kept_show_what_would_expire(scene: Any):
    settings = scene.config(deadlines={"default_timeout_ms": 1})
    found = scene.replay(settings, "--deadlines", "keep", "--id", "large", "--id", "lacking")
    assert found.findings["outcomes"] == {"expired": 2}
    assert found.status == 1
    assert "outcome" in {each["path"] for each in found.findings["groups"]}
    assert scene.replay(settings, "--id", "large", "--id", "lacking").status == 0


def test_straight_from_kafka_without_any_group(scene: Any):
    before = asyncio.run(consumer_groups(scene.site.bootstrap))
    committed = asyncio.run(scene.site.committed())
    found = scene.replay(scene.config(), "--kafka", scene.site.topic, "--offsets", "3-14", files=[])
    assert found.status == 0, found.told
    assert (found.findings["compared"], found.findings["same"]) == (12, 12)
    late = scene.replay(
        scene.config(), "--kafka", scene.site.topic, "--outcome", "rejected", "--limit", "1", files=[]
    )
    assert late.findings["requests"] == 1  # a limit counts what is selected
    assert asyncio.run(consumer_groups(scene.site.bootstrap)) == before
    assert asyncio.run(scene.site.committed()) == committed


def test_a_truncated_capture_is_replayed_up_to_there(scene: Any, tmp_path: Path):
    cut = tmp_path / "cut.capture"
    cut.write_bytes(scene.capture.read_bytes()[:-10])
    found = scene.replay(scene.config(), files=[cut])
    assert found.status == 0
    assert found.findings["requests"] == ALL
    assert found.findings["unanswered"] == 1  # the last record was a reply
    assert "its last record is incomplete" in found.told


def test_wrong_use(scene: Any, tmp_path: Path):
    config = scene.config()
    nothing = tmp_path / "nothing.capture"
    nothing.write_bytes(b"hello")
    for files, more, words in (
        ([], [], "--kafka"),
        ([nothing], [], "not a capture"),
        ([tmp_path / "absent"], [], "absent"),
        ([scene.capture], ["--offsets", "9-2"], "--offsets"),
        ([scene.capture], ["--since", "yesterday"], "--since"),
        ([scene.capture], ["--explain", "nobody"], "--explain = 'nobody'"),
        ([], ["--kafka", "no.such.topic"], "no.such.topic"),
    ):
        found = scene.replay(config, *more, files=files)
        assert found.status == 2, found
        assert words in found.told


def test_help_tells_a_newcomer_what_it_does():
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(
        app, ["replay", "--help"]
    )
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert "Example: boundgen replay" in text
    assert "Publishes nothing" in text
