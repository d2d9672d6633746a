"""A build that is outside its budget is not written."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import engine.build.package
from engine.beam.bounds import BeamBounds
from engine.build import BuildSpec, build_artifact
from engine.build.accuracy import FEW_TEXTS, NO_SEARCH, judge_package, study_accuracy
from engine.errors import ArtifactError
from engine.manifest import PACKAGE, read_manifest
from engine.models.checkpoint import load_checkpoint
from engine.models.decoder import PackedDecoder
from engine.packed import BatchBounds, PackedBatch
from engine.quant.budget import Budget
from engine.quant.ranks import Ranks

BOUNDS = BatchBounds(samples=8, tokens=256, tokens_per_sample=64)


def test_a_package_over_its_budget_is_refused(tmp_path: Path, tiny_causal: Any, calibrate: Any) -> None:
    checkpoint = load_checkpoint(tiny_causal.checkpoint, max_tokens=64)
    decoder = PackedDecoder.from_weights(checkpoint.architecture, checkpoint.weights, 64)

    def forward(packed: PackedBatch) -> Tensor:
        hidden: Tensor = decoder(packed.input_ids, packed.positions, packed.cu_seqlens)[: packed.num_samples]
        return hidden + 0.05 * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0))

    budget = Budget(9, 1e-5)
    spec = BuildSpec(tiny_causal.checkpoint, tmp_path / "no", "tiny", bounds=BOUNDS)
    accuracy = study_accuracy(calibrate(budget), spec, checkpoint, tmp_path, lambda stage: None)
    with pytest.raises(
        ArtifactError,
        match=r"18 judging texts .* mean KL .*, allowed 1e-05, so it is not written; loosen --max-label",
    ):
        judge_package(accuracy, checkpoint, forward, BOUNDS)


def test_a_build_over_its_budget_leaves_what_was_there(
    tmp_path: Path, tiny_causal: Any, calibrate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is the one that was built before: compiling takes minutes together."""
    manifest = read_manifest(tiny_causal.artifact)[0]
    monkeypatch.setattr(
        engine.build.package,
        "compile_package",
        lambda _, path: shutil.copyfile(tiny_causal.artifact / PACKAGE, path),
    )
    out = tmp_path / "served"
    out.mkdir()
    (out / "manifest.json").write_text("{}")
    spec = BuildSpec(
        tiny_causal.checkpoint, out, "tiny", bounds=manifest.bounds, calibrate=calibrate(Budget(0, 9))
    )
    with pytest.raises(
        ArtifactError,
        match=r"on 18 judging texts .* shift 0\.0000, allowed 0, so it is not written",
    ):
        build_artifact(spec)
    assert [path.name for path in out.iterdir()] == ["manifest.json"]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["served"]  # no scratch either


def test_a_package_that_loses_winners_is_refused(tmp_path: Path, tiny_causal: Any, calibrate: Any) -> None:
    checkpoint = load_checkpoint(tiny_causal.checkpoint, max_tokens=64)
    decoder = PackedDecoder.from_weights(checkpoint.architecture, checkpoint.weights, 64)

    def forward(packed: PackedBatch) -> Tensor:
        hidden: Tensor = decoder(packed.input_ids, packed.positions, packed.cu_seqlens)[: packed.num_samples]
        return hidden

    spec = BuildSpec(tiny_causal.checkpoint, tmp_path / "no", "tiny", bounds=BOUNDS, beam=BeamBounds(5, 2, 4))
    accuracy = study_accuracy(calibrate(Budget(9, 9)), spec, checkpoint, tmp_path, lambda stage: None)
    assert accuracy.study.notes[-1] == NO_SEARCH
    judged = len(accuracy.texts.judge)
    assert judged < FEW_TEXTS
    assert accuracy.study.notes[-2].startswith(f"judged by {judged} texts: one that flips counts")
    ranks = Ranks(8, 5, 2, 0.89, 1.0, 1.0, 1.0, 0.1)
    with pytest.raises(ArtifactError, match=r"winners of a search shared 0\.890, wanted 0\.9, so it is not"):
        judge_package(accuracy, checkpoint, forward, BOUNDS, ranks=ranks)
    kept = judge_package(accuracy, checkpoint, forward, BOUNDS, ranks=replace(ranks, winners=0.9))
    assert kept["measured"]["ranks"]["winners"] == 0.9
