"""The CUDA half of a build: plan, calibration, quantised weights, and the package compiled from them.

Whoever asks for what cannot be served gets the nearest that can, and the plan's notes say so. Needs the
device.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.beam.head_weight import narrow_head
from engine.build.calibration import calibrate
from engine.build.compensated import compensate_e4m3
from engine.build.compilation import compile_package, export_decoder
from engine.build.cuda_beam_package import plan_beams, write_cuda_beam_packages
from engine.build.emulation_device import ROUNDED, emulation_device, give_back
from engine.build.gate_choice import choose_gate
from engine.build.hopper_library import compile_kernels, finds_kernels
from engine.build.integers import on_device, put, round_decoder, take_rounded
from engine.build.native import default_cache
from engine.build.probes import probe_samples
from engine.build.rounding import Rounding
from engine.build.spec import BuildSpec, Precision
from engine.disk import writing
from engine.manifest import PACKAGE, WEIGHTS
from engine.models.architecture import Architecture
from engine.models.checkpoint import Checkpoint
from engine.models.cuda_decoder import CudaDecoder
from engine.models.cuda_weights import UNROTATE, prepare_weights
from engine.models.decoder import PackedDecoder, no_constant
from engine.models.hopper_weights import Rounded
from engine.models.plan import FIRST_E4M3, NO_KERNELS, HopperKernels, Plan, choose_plan, restrict_plan
from engine.models.plan import Precision as PlanPrecision
from engine.models.weights import EMBEDDING, LM_HEAD, NARROW_HEAD, NARROW_HEAD_SCALE
from engine.quant.agreement import exact_rows
from engine.quant.laboratory import CALIBRATION_TOKENS
from engine.quant.rotation import FINAL_NORM
from engine.quant.schemes import Scheme
from engine.quant.study import Study
from engine.quant.texts import Text, batches, spread

Progress = Callable[[str], None]


def write_cuda_package(
    spec: BuildSpec,
    precision: Precision,
    checkpoint: Checkpoint,
    folder: Path,
    progress: Progress,
    study: Study | None = None,
    rounding: Rounding | None = None,
) -> Plan:
    """Plan for the device that is here, then write_planned_package; the plan goes to the manifest.

    `study`: what "auto" chose, by measured accuracy. `rounding`: on what, its form aside.
    """
    rounding = rounding or Rounding()
    if precision == "auto":
        assert study is not None
        rounding = replace(rounding, form=study.form if study.form != "plain" else rounding.form)
        precision = "fp8" if study.form == "plain" else "int8"
    (plan,), library = plan_device(spec, [precision], checkpoint.architecture, progress)
    if study is not None and spec.precision == "auto":
        plan = restrict_plan(plan, study.layers)
    if spec.beam is not None:
        plan = plan_beams(plan, counted=study is not None and study.counts_winners)
    if library is not None:
        shutil.copyfile(library, folder / library.name)
    for note in plan.notes:
        progress(f"plan: {note}")
    head = study is None or spec.precision != "auto" or study.narrow_head
    narrow = head and serves_e4m3(spec)  # which int8 does not say
    return write_planned_package(spec, plan, checkpoint, folder, progress, rounding, narrow=narrow)


def int8_scheme(spec: BuildSpec, architecture: Architecture) -> Scheme | None:
    """How the device that is here would run int8 matrices of such layers: with predicted scales on the hopper
    path, with exact ones on the portable path, which a search goes; None where no matrix can be."""
    hopper = spec.beam is None and spec.kernels != "portable" and finds_kernels()
    kernels = HopperKernels("to be compiled") if hopper else NO_KERNELS
    plan = choose_plan(
        architecture, "int8", arch=_arch(spec), static=True, kernels=kernels, bounds=spec.bounds
    )
    plan = plan if spec.beam is None else plan_beams(plan)
    if not plan.rotated:
        return None
    return "int8_exact" if plan.library is None else "int8"


def serves_e4m3(spec: BuildSpec) -> bool:
    """Whether the device that is here multiplies e4m3."""
    return _arch(spec) >= FIRST_E4M3


def _arch(spec: BuildSpec) -> int:
    major, minor = torch.cuda.get_device_capability(torch.device(spec.device))
    return 10 * major + minor


def plan_device(
    spec: BuildSpec, precisions: Sequence[PlanPrecision], architecture: Architecture, progress: Progress
) -> tuple[list[Plan], Path | None]:
    """The plan of all matrices in each precision on the device that is here, and the library of kernels where
    one calls it; compiled only if some layer would."""

    def choose(kernels: HopperKernels) -> list[Plan]:
        return [
            choose_plan(
                architecture, precision,
                arch=_arch(spec), static=spec.scaling == "static", kernels=kernels, bounds=spec.bounds,
            )
            for precision in precisions
        ]  # fmt: skip

    if spec.beam is not None or spec.kernels == "portable":
        reason = "not asked for" if spec.beam is None else "a search shares the portable path's weights"
        return choose(HopperKernels(None, reason)), None
    plans = choose(HopperKernels("to be compiled"))
    if all(plan.library is None for plan in plans):
        return plans, None
    progress("compiling the kernels")
    kernels, library = compile_kernels(spec.cache or default_cache())
    return choose(kernels), library


def write_planned_package(
    spec: BuildSpec,
    plan: Plan,
    checkpoint: Checkpoint,
    folder: Path,
    progress: Progress,
    rounding: Rounding,
    *,
    narrow: bool = True,
) -> Plan:
    """Replaces the weights in `folder` by prepared ones and writes the package; returns the plan with what
    calibration decided. `narrow`: a search's head too, where any matrix is in 8 bits.

    On a CPU the same package comes out, with the operations' oracles in it.
    """
    architecture, device = checkpoint.architecture, torch.device(spec.device)
    stored = load_file(folder / WEIGHTS, device=spec.device)
    weights = {name: stored.pop(name) for name in checkpoint.weights}
    if plan.rotated:
        if checkpoint.tied:  # the head keeps its own channels
            stored[LM_HEAD] = weights[EMBEDDING]
        plan, prepared = _prepare_rotated(spec, plan, checkpoint, progress, rounding)
    else:
        prepared = _prepare(spec, plan, checkpoint, weights, progress, rounding)
    give_back(device)
    if spec.beam is not None:
        plan = choose_gate(plan, architecture, prepared, spec.bounds, spec.beam)
    progress("exporting")
    exported = export_decoder(
        CudaDecoder.from_weights(architecture, prepared, plan, spec.bounds, spec.max_positions),
        spec.bounds,
        device,
        no_constant(architecture, torch.bfloat16, device),
    )
    progress("compiling the model")
    compile_package(exported, folder / PACKAGE, as_traced=True)
    if spec.beam is not None:
        write_cuda_beam_packages(architecture, prepared, plan, spec.bounds, spec.beam, folder, progress)
        if narrow and plan.quantises:
            stored |= _narrow_head(stored.get(LM_HEAD, prepared[EMBEDDING]))
    with writing(folder / WEIGHTS):
        save_file(_on_cpu(prepared | stored), folder / WEIGHTS)
    return plan


def _prepare(
    spec: BuildSpec, plan: Plan, checkpoint: Checkpoint, weights: Mapping[str, Tensor], progress: Progress,
    rounding: Rounding,
) -> dict[str, Tensor]:  # fmt: skip
    texts, scales, made = spread(rounding.texts, CALIBRATION_TOKENS), None, rounding.take()
    rounded: Mapping[int, Rounded] = {}
    if plan.quantises and texts:
        if made is None:
            progress("rounding matrices")
        device, there = torch.device(spec.device), emulation_device(spec, checkpoint, ROUNDED)
        changed, rounded = compensate_e4m3(
            checkpoint.architecture, checkpoint.weights, plan, texts, there, made
        )
        weights = {**weights, **{name: x.to(device, torch.bfloat16) for name, x in changed.items()}}
        rounded = on_device(rounded, device)
    if plan.quantises and plan.scaling == "static":
        progress("calibrating")
        decoder = PackedDecoder.from_weights(checkpoint.architecture, weights, spec.bounds.tokens_per_sample)
        samples = texts or [Text(tuple(ids)) for ids in _calibration_samples(spec, checkpoint)]
        given = list(batches(samples))
        exact = [exact_rows(some, len(packed.input_ids)) for some, packed in given]
        scales = calibrate(decoder, [packed for _, packed in given], exact)
    return prepare_weights(
        weights, checkpoint.architecture, plan,
        max_seqlen=spec.max_positions, input_scales=scales, rounded=rounded,
    )  # fmt: skip


def _prepare_rotated(
    spec: BuildSpec, plan: Plan, checkpoint: Checkpoint, progress: Progress, rounding: Rounding
) -> tuple[Plan, dict[str, Tensor]]:
    progress("calibrating")
    device, there = torch.device(spec.device), emulation_device(spec, checkpoint, ROUNDED)
    made = take_rounded(plan, rounding.take(), rounding.form)
    if made is None:
        trusted = bool(rounding.texts or spec.calibration)
        texts = rounding.texts or [Text(tuple(ids)) for ids in _calibration_samples(spec, checkpoint)]
        made = round_decoder(
            checkpoint.architecture, checkpoint.weights, plan, spread(texts, CALIBRATION_TOKENS),
            trusted=trusted, say=progress, form=rounding.form, device=there,
        )  # fmt: skip
    weights = {name: put(tensor, device) for name, tensor in made.weights.items()}
    prepared = prepare_weights(
        weights, checkpoint.architecture, made.plan,
        max_seqlen=spec.max_positions, rounded=on_device(made.layers, device),
    )  # fmt: skip
    carried = {name: prepared[name].bfloat16() for name in (EMBEDDING, FINAL_NORM)}
    return made.plan, prepared | carried | {UNROTATE: put(made.unrotate, device)}


def _narrow_head(head: Tensor) -> dict[str, Tensor]:
    """The head in 8 bits, where the library takes it."""
    narrow = narrow_head(head)
    return {} if narrow is None else {NARROW_HEAD: narrow[0], NARROW_HEAD_SCALE: narrow[1]}


def _calibration_samples(spec: BuildSpec, checkpoint: Checkpoint) -> list[list[int]]:
    """The texts that were given, or the probes where there are none; cut to the bounds."""
    longest = spec.bounds.tokens_per_sample
    if not spec.calibration or checkpoint.tokenizer is None:
        return probe_samples(checkpoint.tokenizer, checkpoint.architecture.vocab_size, longest, frozenset())
    samples = [checkpoint.tokenizer(text)["input_ids"][:longest] for text in spec.calibration]
    return [sample for sample in samples if sample]


def _on_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
