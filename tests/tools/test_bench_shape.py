"""`bench engine --shape`: its random checkpoint, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.models.checkpoint import load_checkpoint
from tools.artifact_cache import Wanted, cache_key
from tools.bench.shape_checkpoint import shape_checkpoint
from tools.bench.shape_engine import bench_shape
from tools.bench.shape_setup import ShapeSetup
from tools.bench.shapes import SHAPES
from tools.errors import UserError


@pytest.mark.parametrize("shape", SHAPES)
def test_the_checkpoint_is_of_the_shape(shape: str, tmp_path: Path) -> None:
    narrow = dataclasses.replace(SHAPES[shape], num_layers=1, vocab_size=64, intermediate_size=128)
    folder = shape_checkpoint(shape, narrow, tmp_path)
    found = load_checkpoint(folder, max_tokens=512)
    assert dataclasses.replace(found.architecture, rope=narrow.rope) == narrow
    assert found.architecture.rope.inv_freq == pytest.approx(narrow.rope.inv_freq, rel=1e-5)
    assert found.lm_head is not None
    assert not found.tied
    assert float(found.weights["embed_tokens.weight"].std()) == pytest.approx(1.0, rel=0.1)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert shape_checkpoint(shape, narrow, tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner  # not where only the engine is installed

    from tools.cli import app

    for given, message in (
        ({"shape": "gpt-2"}, "--shape = 'gpt-2': must be one of qwen2"),
        ({"precision": "auto"}, "--precision = 'auto': must be one of bf16, fp8"),
        ({"mixes": ("mean9",)}, "--mixes = 'mean9': must be one of mean150, mean60, shared64of150"),
        ({"lengths": ("1",)}, "--lengths = '1': must be one of mixed, 128"),
        ({"tokens": (8193,)}, "--tokens = 8193: must be from 1 to 8192"),
        ({"in_flight": (0,)}, "--in-flight = 0: must be from 1"),
    ):
        with pytest.raises(UserError, match=message):
            ShapeSetup(**({"shape": "qwen3-0.6b", "precision": "fp8"} | given))  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="torch sees no CUDA device"):
        bench_shape(ShapeSetup("qwen3-0.6b", "fp8"), lambda _: None, lambda _: None)
    for options in (["--shape", "gpt-2"], ["--shape", "qwen3-0.6b", "--tokens", "1k"], ["--from", "x"]):
        result = CliRunner().invoke(app, ["bench", "engine", *options])
        assert result.exit_code == 2
        assert f"error: {options[-2]}" in result.output


def test_options_that_would_do_nothing_are_refused(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from tools.cli import app

    lost = str(tmp_path / "none" / "c.svg")
    for options, said in (
        (["--chart", "c.svg"], "--chart: goes with --shape"),
        (["--tokens", "1024"], "--tokens: goes with --shape"),
        (["--in-flight", "1"], "--in-flight: goes with --shape"),
        (["--pipeline", "beam", "--chart", "c.svg"], "--chart: does not go with --pipeline beam"),
        (["--pipeline", "beam", "--lengths", "128"], "--lengths: does not go with --pipeline beam"),
        (["--shape", "qwen3-0.6b", "--chart", lost], f"--chart = {lost!r}: there is no such folder"),
        (["--pipeline", "beam", "--beam-width", "513"], "--beam-width"),
        (["--pipeline", "beam", "--beam-steps", "9"], "--beam-steps"),
    ):
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", "engine", *options])
        assert result.exit_code == 2
        assert said in result.output


def test_a_chart_that_fails_costs_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from tools.cli import app

    found = {"shape": "s", "precision": "fp8", "kernels": ["portable"], "gpu": "acted", "loops": []}
    monkeypatch.setattr("tools.commands.bench_engine.bench_shape", lambda *_: found)
    options = ["--shape", "qwen3-0.6b", "--mixes", "", "--chart", str(tmp_path / "c.svg"), "--json"]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", "engine", *options])
    assert result.exit_code == 2
    assert "the results hold no closed loops" in result.output
    assert json.loads(result.stdout.splitlines()[-1]) == found


def test_what_it_imports_is_the_engine_alone() -> None:
    code = (
        "import sys, tools.bench.shape_engine; "
        "print({'typer', 'rich', 'aiokafka', 'redis', 'prometheus_client'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_an_artifact_of_other_kernels_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    plain = Wanted(model, "m", "cpu", None, bounds=None)  # type: ignore[arg-type]
    wanted = dataclasses.replace(plain, precision="bf16")
    monkeypatch.delenv("BOUNDGEN_HOPPER_LIBRARY", raising=False)
    monkeypatch.setenv("NVCC", "/nowhere/nvcc")
    monkeypatch.setattr("engine.ops.hopper.compiler.sysconfig.get_paths", lambda: {"purelib": "/nowhere"})
    without = [
        cache_key(each)
        for each in (plain, wanted, dataclasses.replace(wanted, precision="fp8"),
                     dataclasses.replace(wanted, kernels="portable"))
    ]  # fmt: skip
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 13.0\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("NVCC", str(nvcc))
    assert len({*without, cache_key(wanted)}) == 5
    assert cache_key(plain) == without[0]
