"""By which times a build chooses: measured where the device that is here runs kernels of our own, else
estimated."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.build.cuda_beam_package import plan_beams
from engine.build.cuda_package import plan_device
from engine.build.gate_choice import batches_to_compare
from engine.build.layer_times import BATCHES, batches_within, measure_times
from engine.build.spec import BuildSpec
from engine.models.architecture import Architecture
from engine.models.plan import Precision
from engine.quant.schemes import Scheme
from engine.quant.speed import estimate_times
from engine.quant.times import Times

PRECISIONS: dict[Scheme, Precision] = {
    "e4m3_static": "fp8", "e4m3_token": "fp8", "int8": "int8", "int8_exact": "int8",
}  # fmt: skip


def find_times(
    spec: BuildSpec, architecture: Architecture, schemes: Sequence[Scheme], progress: Callable[[str], None]
) -> Times:
    """`schemes`: that the device will be asked for."""
    if spec.device != "cuda" or spec.precision is None:
        return estimate_times(architecture)
    plans, _ = plan_device(spec, [PRECISIONS[each] for each in schemes], architecture, progress)
    if spec.beam is not None:
        plans = [plan_beams(plan) for plan in plans]
    progress("measuring layers on the device")
    batches: Sequence[int] = BATCHES
    if spec.beam is not None:
        batches = [rows for rows, _ in batches_to_compare(spec.bounds, spec.beam)]
    return measure_times(
        architecture, dict(zip(schemes, plans, strict=True)), batches_within(spec.bounds, batches),
        torch.device(spec.device),
    )  # fmt: skip
