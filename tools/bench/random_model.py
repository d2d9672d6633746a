"""A model of a given shape with random weights, compiled for CUDA as a build would: what the engine's bench
runs."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from engine.build.calibration import calibrate
from engine.build.compilation import compile_package, export_decoder
from engine.models.architecture import Architecture
from engine.models.cuda_decoder import CudaDecoder
from engine.models.cuda_weights import prepare_weights
from engine.models.decoder import PackedDecoder
from engine.models.plan import Plan, Precision, choose_plan
from engine.packed import BatchBounds, pack

CALIBRATION = [[(7 * i + j) % 997 for j in range(64)] for i in range(8)]


def random_weights(architecture: Architecture, max_seqlen: int, seed: int = 0) -> dict[str, Tensor]:
    """Of the eager decoder, bf16 on CUDA; deviations like those of trained models."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    with torch.device("meta"):
        shapes = {name: x.shape for name, x in PackedDecoder(architecture, max_seqlen).state_dict().items()}
    weights = {}
    for name, shape in shapes.items():
        if name.endswith("norm.weight"):
            drawn = torch.rand(shape, device="cuda", generator=generator) + 0.5
        else:
            drawn = torch.randn(shape, device="cuda", generator=generator) * (
                1.0 if "embed" in name else 0.03
            )
        weights[name] = drawn.bfloat16()
    weights["inv_freq"] = torch.tensor(architecture.rope.inv_freq, device="cuda")
    return weights


def make_decoder(
    architecture: Architecture,
    weights: dict[str, Tensor],
    precision: Precision,
    static: bool,
    bounds: BatchBounds,
) -> tuple[CudaDecoder, dict[str, Tensor], Plan]:
    """The decoder, the tensors that its package asks for, and its plan."""
    major, minor = torch.cuda.get_device_capability()
    plan = choose_plan(architecture, precision, arch=10 * major + minor, static=static)
    scales = None
    if plan.quantises and static:
        eager = PackedDecoder.from_weights(architecture, weights, bounds.tokens_per_sample)
        scales = calibrate(eager, [pack(CALIBRATION)])
    prepared = prepare_weights(
        weights, architecture, plan, max_seqlen=bounds.tokens_per_sample, input_scales=scales
    )
    return CudaDecoder.from_weights(architecture, prepared, plan, bounds), prepared, plan


def compile_once(decoder: CudaDecoder, bounds: BatchBounds, package: Path) -> Path:
    """Its package, compiled unless `package` is there already."""
    if not package.exists():
        compile_package(export_decoder(decoder, bounds, torch.device("cuda")), package)
    return package
