"""`build_artifact`: a checkpoint in, an artifact's directory out, whole or not at all.

Everything is written to a hidden sibling of the target, which takes the target's name at the end. One
thread; memory for about four copies of the model in float32, ten with texts to calibrate on; minutes for the
compiler.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.artifact import compute_prefix
from engine.build.accuracy import Accuracy, FullPrecision, judge_package, study_accuracy
from engine.build.beam_package import check_beam, write_beam_library, write_beam_packages
from engine.build.beam_parity import measure_beam
from engine.build.compilation import compile_package, export_decoder
from engine.build.compiler import CompilerCheck, compiler_told, require_compiler
from engine.build.cuda_package import write_cuda_package
from engine.build.emulation_device import COMPARED, emulation_device
from engine.build.native import build_native, default_cache
from engine.build.origin import describe_source
from engine.build.parity import measure_parity, tolerated_as
from engine.build.rounding import Rounding
from engine.build.spec import BuildSpec
from engine.build.target import full_disk_told, require_folder, require_replaceable, require_room
from engine.disk import writing
from engine.manifest import (
    FORMAT,
    PACKAGE,
    TOKENIZER,
    WEIGHTS,
    Manifest,
    Parity,
    file_digest,
    write_manifest,
)
from engine.models.checkpoint import Checkpoint, load_checkpoint
from engine.models.cuda_weights import restore_weights
from engine.models.decoder import PackedDecoder, no_constant
from engine.models.plan import Plan
from engine.models.weights import LM_HEAD, OF_NO_DECODER, SCORE, convert_weights
from engine.packed import PackedBatch
from engine.prefixes import ConstantPrefix
from engine.quant.ranks import Ranks
from engine.runtime.graph_lanes import GraphLanePool
from engine.runtime.lanes import LanePool
from engine.runtime.machine import cpu_features, device_arch
from engine.runtime.native import LIBRARY, load_native, load_weights

Progress = Callable[[str], None]


def build_artifact(spec: BuildSpec, progress: Progress = lambda stage: None) -> Path:
    """Build `spec` and return its directory. `progress` hears the name of each stage as it begins.

    ConfigError for an option of the checkpoint or the spec that cannot be served; ArtifactError for files
    that cannot be read, a compiler that will not do, or a result out of tolerance. Whatever fails, `spec.out`
    stays as it was.
    """
    require_replaceable(spec.out)
    if spec.calibrate is not None:
        spec.calibrate.check()
    cache = spec.cache or default_cache()
    with compiler_told(), full_disk_told(spec.out, cache):
        progress("checking the compiler")
        compiler = require_compiler()
        require_folder(spec.out.parent)
        require_room(spec.out.parent, 0)
        with tempfile.TemporaryDirectory(dir=spec.out.parent, prefix=f".{spec.out.name}.") as scratch:
            folder = Path(scratch, "artifact")
            folder.mkdir()
            with full_disk_told(spec.out, cache):  # before what was written goes, and with it what to look at
                _write_artifact(spec, compiler, folder, progress)
            _publish(folder, spec.out, Path(scratch, "replaced"))
    return spec.out


def _write_artifact(spec: BuildSpec, compiler: CompilerCheck, folder: Path, progress: Progress) -> None:
    progress("compiling the native library")
    shutil.copyfile(build_native(compiler, spec.cache or default_cache()), folder / LIBRARY)
    load_native(folder / LIBRARY)
    if spec.beam is not None:
        write_beam_library(spec, compiler, folder)
    progress("loading the checkpoint")
    checkpoint = load_checkpoint(spec.model, max_tokens=spec.max_positions, ignore=spec.ignore_options)
    check_beam(spec, checkpoint)
    _write_weights(spec, checkpoint, folder)
    accuracy = None
    if spec.calibrate is not None:
        accuracy = study_accuracy(spec.calibrate, spec, checkpoint, folder, progress)
    plan = _write_package(spec, checkpoint, folder, accuracy, progress)
    progress("comparing with transformers")
    beam, ranks = None, None
    if spec.beam is not None:
        texts = () if accuracy is None else accuracy.texts.judge
        beam, ranks = measure_beam(spec, spec.beam, checkpoint, folder, plan, texts)
    parity, judged = _measure(spec, checkpoint, folder, plan, accuracy, ranks)
    progress("writing the artifact")
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)  # safetensors writes for its owner alone
    described = _describe(spec, checkpoint, parity, compiler, folder, plan)
    write_manifest(folder, described.model_copy(update={"accuracy": judged, "beam": beam}))


def _write_weights(spec: BuildSpec, checkpoint: Checkpoint, folder: Path) -> None:
    tensors = dict(checkpoint.weights)
    if checkpoint.lm_head is not None and not checkpoint.tied:
        tensors[LM_HEAD] = checkpoint.lm_head
    if checkpoint.score is not None:
        tensors[SCORE] = checkpoint.score
    converted = convert_weights(tensors, spec.torch_dtype)
    require_room(spec.out.parent, sum(tensor.nbytes for tensor in converted.values()))
    with writing(folder / WEIGHTS):
        save_file(converted, folder / WEIGHTS)
    if checkpoint.tokenizer is not None:
        checkpoint.tokenizer.save_pretrained(str(folder / TOKENIZER))


def _write_package(
    spec: BuildSpec, checkpoint: Checkpoint, folder: Path, accuracy: Accuracy | None, progress: Progress
) -> Plan | None:
    studied_alone = (spec.precision, spec.device) == ("auto", "cpu")
    if spec.precision is not None and not studied_alone:
        study = None if accuracy is None else accuracy.study
        rounding = Rounding() if accuracy is None else Rounding(accuracy.texts.calibrate, made=accuracy.made)
        return write_cuda_package(spec, spec.precision, checkpoint, folder, progress, study, rounding)
    progress("exporting")
    device = torch.device(spec.device)
    weights = load_file(folder / WEIGHTS, device=spec.device)
    weights = {name: weights[name] for name in checkpoint.weights}
    decoder = PackedDecoder.from_weights(checkpoint.architecture, weights, spec.bounds.tokens_per_sample)
    exported = export_decoder(decoder, spec.bounds, device, _no_constant(spec, checkpoint))
    progress("compiling the model")
    compile_package(exported, folder / PACKAGE)
    if spec.beam is not None:
        write_beam_packages(spec, spec.beam, checkpoint, weights, folder, progress)
    return None


def _measure(
    spec: BuildSpec, checkpoint: Checkpoint, folder: Path, plan: Plan | None, accuracy: Accuracy | None,
    ranks: Ranks | None,
) -> tuple[Parity, dict[str, Any] | None]:  # fmt: skip
    """Parity with transformers, and what the judging texts say where there are any; `ranks`: of its searches
    on them."""

    weights = load_weights(folder / WEIGHTS, torch.device(spec.device))
    pool = (LanePool if plan is None else GraphLanePool)(
        folder / PACKAGE,
        weights,
        spec.bounds,
        vocab_size=checkpoint.architecture.vocab_size,
        device=torch.device(spec.device),
        lanes=1,
        threads=torch.get_num_threads(),
        no_constant=_no_constant(spec, checkpoint),
    )

    def forward(packed: PackedBatch) -> Tensor:
        return pool.executor.submit(pool.forward, packed).result()

    try:
        prefixes = None
        if plan is not None and plan.quantises and pool.takes_prefixes:
            prefixes = FullPrecision(partial(_prefix, spec, checkpoint, weights), pool.most_constant)
        judged = None
        if accuracy is not None:
            there = emulation_device(spec, checkpoint, COMPARED)
            judged = judge_package(accuracy, checkpoint, forward, spec.bounds, prefixes, ranks, there)
        checkpoint.reference.to(spec.device)
        precision = tolerated_as(plan, spec.dtype_name)
        parity = measure_parity(checkpoint, forward, spec.bounds, precision, prefixes=pool.takes_prefixes)
        return parity, judged
    finally:
        pool.close()


def _prefix(
    spec: BuildSpec, checkpoint: Checkpoint, weights: dict[str, Tensor], ids: tuple[int, ...]
) -> ConstantPrefix:
    """As the artifact will compute it."""
    decoder = {name: tensor for name, tensor in weights.items() if name not in OF_NO_DECODER}
    restored = restore_weights(decoder, checkpoint.architecture)
    return compute_prefix(checkpoint.architecture, restored, ids, torch.device(spec.device))


def _no_constant(spec: BuildSpec, checkpoint: Checkpoint) -> Tensor:
    return no_constant(checkpoint.architecture, spec.torch_dtype, torch.device(spec.device))


def _describe(
    spec: BuildSpec, checkpoint: Checkpoint, parity: Parity, compiler: CompilerCheck, folder: Path,
    plan: Plan | None,
) -> Manifest:  # fmt: skip
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return Manifest(
        format=FORMAT,
        name=spec.name,
        family=checkpoint.family,
        architecture=dataclasses.asdict(checkpoint.architecture),
        dtype=spec.dtype_name,
        device=spec.device,
        device_arch=device_arch(torch.device(spec.device)),
        cpu_features=cpu_features(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        boundgen=_own_version(),
        compiler=compiler.version,
        bounds=spec.bounds,
        head=checkpoint.head,
        labels=checkpoint.labels,
        ignored_options=spec.ignore_options,
        source=describe_source(spec.model),
        parity=parity,
        files={path.relative_to(folder).as_posix(): file_digest(path) for path in files},
        plan=None if plan is None else plan.to_manifest(),
    )


def _publish(folder: Path, out: Path, replaced: Path) -> None:
    """Two renames where an artifact is replaced; a process that has the old one open keeps it."""
    if out.exists():
        out.rename(replaced)
    folder.rename(out)


def _own_version() -> str:
    try:
        return version("boundgen")
    except PackageNotFoundError:  # run from a checkout that was not installed
        return "unknown"
