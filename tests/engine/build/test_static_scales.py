"""Which texts static scales of e4m3 come from: those that a build is given to calibrate with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import engine.build.cuda_package
from engine.build import BuildSpec, build_artifact
from engine.build.spec import Calibration
from engine.packed import BatchBounds, PackedBatch
from engine.pipeline_config import PipelineConfig
from engine.quant.budget import Budget
from hopper_models import PIPELINE, save_tiny

BOUNDS = BatchBounds(samples=32, tokens=1024, tokens_per_sample=128)


class StopError(Exception):
    pass


@pytest.mark.parametrize("given", ["calibrate", "calibration", "nothing"])
def test_the_texts_that_were_given_are_the_ones(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of --calibrate's texts scales knew nothing: random probes made them."""
    lengths: list[int] = []

    def calibrate(_: Any, batches: Iterable[PackedBatch]) -> dict[str, float]:
        lengths.extend(count for batch in batches for count in batch.cu_seqlens.diff().tolist())
        raise StopError

    monkeypatch.setattr(engine.build.cuda_package, "calibrate", calibrate)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    more: dict[str, Any] = {}
    if given == "calibration":
        more["calibration"] = ("buy a laptop or a silent mouse",)
    elif given == "calibrate":
        path = tmp_path / "texts.jsonl"
        path.write_text(
            "\n".join(json.dumps({"query": "mouse " * n}) for n in range(1, 11)), encoding="utf-8"
        )
        config = PipelineConfig.model_validate(PIPELINE)
        more["calibrate"] = Calibration(path, (config,), Budget(99, 99))
    checkpoint = save_tiny(tmp_path / "tiny", "norm", num_hidden_layers=1)
    spec = BuildSpec(
        checkpoint, tmp_path / "out", "tiny", dtype="bfloat16", bounds=BOUNDS, kernels="portable", **more
    )
    object.__setattr__(spec, "precision", "fp8")  # a spec refuses it without a device
    with pytest.raises(StopError):
        build_artifact(spec)
    real = [length for length in lengths if length > 1]
    assert len(real) == {"calibrate": 2, "calibration": 1}.get(given, len(real))  # one request in five
    assert (len(real) > 5) == (given == "nothing")
