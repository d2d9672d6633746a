"""`boundgen items compile` on the vocabulary of a real small artifact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.beam.compiled_items import load_items
from engine.beam.items import ItemRules
from engine.pipeline import ArtifactStore
from tiny_models import TinyModel
from tools.cli import app


@pytest.fixture
def items_file(tmp_path: Path) -> Path:
    rows = [{"item_id": f"i{i}", "token_ids": [3, i % 4, 5]} for i in range(8)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "items.jsonl"


def run(*arguments: object):
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner(env=environment).invoke(app, ["items", *map(str, arguments)])


def test_what_is_compiled_is_what_a_pipeline_loads(items_file: Path, tiny_causal: TinyModel):
    out = items_file.with_name("items.safetensors")
    done = run("compile", items_file, out, "--artifact", tiny_causal.artifact, "--steps", 2, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    store = ArtifactStore({"tiny": tiny_causal.artifact})
    opened = store.get("tiny")
    size = int(opened.artifact.manifest.architecture["vocab_size"])
    loaded = load_items(out, ItemRules(3, size, vocabulary=opened.vocabulary))
    store.close()
    assert (told["version"], told["items"], told["sequences"], told["nodes"]) == (loaded.version, 8, 4, 10)
    assert told["device_bytes"] == loaded.device_bytes
    assert told["file_bytes"] == out.stat().st_size


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--steps", 3), "row 1, token_ids = [3, 0, 5]: has 3 tokens; a sequence has 4"),
        (("--steps", 3, "--eos", "finish", "--end-token", 5), None),
        (("--steps", 2, "--end-token", 5), "--end-token = 5: belongs to --eos finish"),
    ],
)
def test_mistakes_are_told_with_status_two(
    items_file: Path, tiny_causal: TinyModel, arguments: tuple[object, ...], said: str | None
):
    out = items_file.with_name("out")
    done = run("compile", items_file, out, "--artifact", tiny_causal.artifact, *arguments)
    assert done.exit_code == (0 if said is None else 2), done.output
    assert out.exists() == (said is None)
    if said is not None:
        assert said in done.output


def test_a_compiled_file_is_not_compiled_again(items_file: Path, tiny_causal: TinyModel):
    out = items_file.with_name("out")
    options = ("--artifact", tiny_causal.artifact, "--steps", 2)
    assert run("compile", items_file, out, *options).exit_code == 0
    done = run("compile", out, out, *options)
    assert done.exit_code == 2
    assert "is compiled already" in done.output


def test_help_has_an_example():
    done = run("compile", "--help")
    assert "boundgen items compile items.parquet" in " ".join(done.output.split("Example:")[1].split())


def test_an_item_file_is_not_replaced_by_what_is_made_of_it(items_file: Path, tiny_causal: TinyModel):
    before, link = items_file.read_bytes(), items_file.with_name("link.jsonl")
    link.symlink_to(items_file)
    for out in (items_file, link):
        done = run("compile", items_file, out, "--artifact", tiny_causal.artifact, "--steps", 2)
        assert done.exit_code == 2, done.output
        assert f"OUT = '{out}': is IN itself" in done.output.replace("\n", "")
    assert items_file.read_bytes() == before
