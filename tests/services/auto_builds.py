"""Tiny builds with `precision = "auto"`: their specs, and what must hold of an artifact that came of one.

Wide enough that 8 bits save time on a device: 4,096 tokens through a gate of 512 to 6,144 columns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.artifact import Artifact
from engine.beam.bounds import BeamBounds
from engine.build.accuracy import CHART, REPORT
from engine.build.spec import Calibration
from engine.models.checkpoint import load_checkpoint
from engine.models.cuda_decoder import CudaDecoder
from engine.models.decoder import PackedDecoder
from engine.models.plan import MATRICES, Plan
from engine.models.weights import OF_NO_DECODER
from engine.packed import BatchBounds, PackedBatch
from engine.pipeline_config import PipelineConfig
from engine.quant.budget import Budget
from engine.runtime.native import load_weights
from hopper_models import save_tiny

SIZES = {"hidden_size": 512, "intermediate_size": 3072, "initializer_range": 0.06}
BOUNDS = BatchBounds(samples=64, tokens=4096, tokens_per_sample=128)
BEAM_BOUNDS = BatchBounds(samples=8, tokens=512, tokens_per_sample=64)
BEAM = BeamBounds(width=32, steps=2, prompts=8)
PRECISIONS = {scheme: scheme.split("_")[0].replace("e4m3", "fp8") for scheme in (
    "bf16", "e4m3_static", "e4m3_token", "int8", "int8_exact",
)}  # fmt: skip
WORDS = ["yes", "no", "buy", "the", "wireless", "mouse", "with", "a", "silent", "click", "long", "laptop"]


def save_model(folder: Path, layers: int, **more: Any) -> Path:
    """A random checkpoint of SIZES, or `more`, with a tokenizer."""
    return save_tiny(folder, "int8", num_hidden_layers=layers, **(SIZES | more))


def calibration(folder: Path, budget: Budget, search: BeamBounds | None = None) -> Calibration:
    """60 requests to a pipeline of two labels, or of a search."""
    model: dict[str, Any] = {"kind": "prefill", "head": "label_scores", "labels": {"y": "yes", "n": "no"}}
    if search is not None:
        model = {"kind": "beam", "width": search.width, "steps": search.steps}
    prompt = {"kind": "tokenizer", "artifact": "tiny", "template": "buy {q} or compare {t}"}
    nodes = {"prompt": prompt, "model": model | {"artifact": "tiny", "inputs": ["prompt"]}}
    bounds = {"samples": 2, "tokens_per_sample": 48, "tokens_per_request": 96}
    config = PipelineConfig.model_validate({"name": "tiny", "bounds": bounds, "nodes": nodes})
    fields = [{"q": " ".join(WORDS[n % 8 : n % 8 + 5]), "t": WORDS[n % 12]} for n in range(60)]
    file = folder / "texts.jsonl"
    file.write_text("\n".join(map(json.dumps, fields)) + "\n", encoding="utf-8")
    return Calibration(file, (config,), budget)


def check_study(artifact: Artifact, schemes: list[str], batches: list[int], source: str) -> None:
    """What was measured is kept, by times of this device; what was chosen is what was built; it holds."""
    manifest = artifact.manifest
    accuracy, plan = manifest.accuracy, manifest.plan
    assert accuracy is not None
    assert plan is not None
    assert {REPORT, CHART} <= set(manifest.files)
    report = json.loads((artifact.path / REPORT).read_text(encoding="utf-8"))
    assert report["times"] == accuracy["times"]
    assert accuracy["times"]["source"] == source
    assert accuracy["method"].endswith(f"; speed {source}")
    assert accuracy["times"]["batches"] == batches
    assert accuracy["times"]["layer"] > 0
    assert [each["name"] for each in accuracy["plans"]] == ["bf16", *schemes, "auto"]
    chosen = [{kind: PRECISIONS[layer[kind]] for kind in MATRICES} for layer in accuracy["layers"]]
    assert [{kind: layer[kind] for kind in MATRICES} for layer in plan["layers"]] == chosen
    measured, budget = accuracy["measured"], accuracy["budget"]
    assert measured["texts"] == 36  # of 60 requests three in five judge
    assert 0 < measured["next_token_kl"] <= budget["kl"]
    parity = manifest.parity
    assert parity.mean_abs_error <= parity.mean_abs_tolerance


def run_oracles(checkpoint: Path, artifact: Artifact, packed: PackedBatch) -> tuple[Tensor, Tensor]:
    """hidden float32[samples, H] on the CPU: of the artifact's tensors through its operations' oracles, and
    of the checkpoint as it is."""
    longest, plan = artifact.bounds.tokens_per_sample, artifact.manifest.plan
    assert plan is not None
    source = load_checkpoint(checkpoint, max_tokens=longest)
    stored = load_weights(artifact.path / "weights.safetensors", torch.device("cpu"))
    stored = {name: tensor for name, tensor in stored.items() if name not in OF_NO_DECODER}
    decoders = (
        CudaDecoder.from_weights(source.architecture, stored, Plan.from_manifest(plan), artifact.bounds),
        PackedDecoder.from_weights(source.architecture, source.weights, longest),
    )
    with torch.inference_mode():
        made, plain = (
            each(packed.input_ids, packed.positions, packed.cu_seqlens)[: packed.num_samples].float()
            for each in decoders
        )
    return made, plain
