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
from engine.build.calibration import calibrate
from engine.build.spec import Calibration
from engine.models.decoder import PackedDecoder
from engine.packed import BatchBounds, PackedBatch
from engine.pipeline_config import PipelineConfig
from engine.quant.agreement import exact_rows
from engine.quant.budget import Budget
from engine.quant.texts import Text, batches
from hopper_models import PIPELINE, save_tiny
from random_decoders import make_architecture, random_weights

BOUNDS = BatchBounds(samples=32, tokens=1024, tokens_per_sample=128)


class StopError(Exception):
    pass


@pytest.mark.parametrize("given", ["calibrate", "calibration", "nothing"])
def test_the_texts_that_were_given_are_the_ones(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of --calibrate's texts scales knew nothing: random probes made them."""
    lengths: list[int] = []

    def calibrate(_: Any, batches: Iterable[PackedBatch], *more: Any) -> dict[str, float]:
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


@pytest.mark.parametrize("left_out", [False, True])
def test_tokens_of_a_constant_prefix_say_nothing(left_out: bool) -> None:
    """They are served in full precision, and the largest by far: studied that way, calibrated otherwise."""
    architecture = make_architecture()
    weights = random_weights(architecture)
    weights["embed_tokens.weight"][7] *= 100
    decoder = PackedDecoder.from_weights(architecture, weights, 96)
    texts = [Text((7, 3, n, 5, n + 1), prefix=1) for n in range(10, 20)]
    ((some, packed),) = batches(texts)
    exact = exact_rows(some, len(packed.input_ids))
    scales = calibrate(decoder, [packed], [exact] if left_out else [None])
    plain = float(weights["embed_tokens.weight"][[3, 5, *range(10, 21)]].abs().max()) * 2 / 448
    assert set(scales) == set(calibrate(decoder, [packed]))
    if left_out:
        assert scales["layers.0.attention_norm"] == pytest.approx(plain)
        assert scales["norm"] > plain  # of the last tokens alone, which are not of the prefix
    else:
        assert scales["layers.0.attention_norm"] > 10 * plain
