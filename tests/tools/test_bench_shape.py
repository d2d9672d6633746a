"""`bench engine --shape`: the random checkpoint is of the shape that was asked for; what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from engine.models.checkpoint import load_checkpoint
from tools.artifact_cache import Wanted, cache_key
from tools.bench.shape_checkpoint import shape_checkpoint
from tools.bench.shape_engine import ShapeSetup, bench_shape
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

    def run(shape: str) -> None:
        bench_shape(ShapeSetup(shape, "fp8", "fastest", 1), lambda _: None, lambda _: None)

    with pytest.raises(UserError, match="--shape = 'gpt-2': must be one of qwen2"):
        run("gpt-2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="torch sees no CUDA device"):
        run("qwen3-0.6b")
    result = CliRunner().invoke(app, ["bench", "engine", "--shape", "gpt-2"])
    assert result.exit_code != 0


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


@pytest.mark.gpu
@pytest.mark.slow
def test_a_shape_is_measured_through_its_artifact() -> None:
    lines: list[str] = []
    setup = ShapeSetup("smollm2-135m", "fp8", "fastest", 2, tokens=(1024,), in_flight=(4,), seconds=0.5)
    found = bench_shape(setup, lambda _: None, lines.append)
    assert found["check"]["repeat_equal"]
    assert found["check"]["finite"]
    assert found["buckets"][0]["tflops"] > 0
    assert found["fallbacks"] == 9  # of `check`, whose head is none that was prepared
    assert any(line.startswith("kernels: ") for line in lines)
