"""The accuracy half of a build: the study of its schemes, and the compiled package's own answers on texts.

A package whose answers on the judging texts are outside the budget is not written. Writes accuracy.json and
accuracy.svg beside the manifest, whatever the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.build.cuda_beam_package import SERVING
from engine.build.cuda_package import int8_scheme, serves_e4m3
from engine.build.emulation_device import CPU, STUDIED, emulation_device, give_back
from engine.build.plan_times import find_times
from engine.build.spec import BuildSpec, Calibration
from engine.disk import writing
from engine.errors import ArtifactError, ConfigError
from engine.models.architecture import Architecture
from engine.models.checkpoint import Checkpoint
from engine.packed import BatchBounds, PackedBatch, Segment, pack_segments
from engine.prefixes import ConstantPrefix
from engine.quant.agreement import Agreement, Answers, answer, compare
from engine.quant.budget import Budget
from engine.quant.emulation import EmulatedDecoder
from engine.quant.laboratory import WHOLE, Laboratory, Model
from engine.quant.preparation import Prepared
from engine.quant.ranks import Ranks
from engine.quant.requests import TextSets, read_texts
from engine.quant.schemes import Scheme
from engine.quant.serving import Serving
from engine.quant.study import Study, run_study
from engine.quant.texts import Text, batches

REPORT, CHART = "accuracy.json", "accuracy.svg"
NO_SEARCH = "winners of a search were not measured: no --pipeline of --calibrate has a node of kind beam"
FEW_TEXTS = 100  # one of a hundred that flips is 1% of the answers, as much as budgets allow
Forward = Callable[[PackedBatch], Tensor]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class FullPrecision:
    """What a pipeline's prompts begin with, at most `longest` tokens of it, as serving computes it."""

    compute: Callable[[tuple[int, ...]], ConstantPrefix]
    longest: int


@dataclass(frozen=True)
class Accuracy:
    """The study, and the texts that the finished package is judged by. `made`: matrices that the package may
    be of, rounded by the study; whoever builds takes them out, so that they are not held any longer."""

    study: Study
    texts: TextSets
    budget: Budget
    made: list[Prepared] = field(default_factory=list)


def study_accuracy(
    calibration: Calibration, spec: BuildSpec, checkpoint: Checkpoint, folder: Path, progress: Progress
) -> Accuracy:
    """Reads the texts, measures the schemes, chooses, and writes report and chart into `folder`."""
    schemes = choose_schemes(spec, checkpoint.architecture)
    texts = load_texts(calibration, checkpoint, spec.bounds)
    times = find_times(spec, checkpoint.architecture, schemes, progress)
    searched = any(text.search for text in (*texts.choose, *texts.judge))
    device = CPU if searched else emulation_device(spec, checkpoint, STUDIED)
    model = model_of(checkpoint, device)
    kept: list[Laboratory] = []
    study = run_study(model, texts, schemes, calibration.budget, times, progress, _serving(spec), kept.append)
    made = _hand_over(kept.pop(), spec, study)
    give_back(device)
    study = replace(study, notes=(*study.notes, *_notes(spec, texts)))
    for name, text in ((REPORT, study.to_json()), (CHART, study.draw(spec.name))):
        with writing(folder / name):
            (folder / name).write_text(text, encoding="utf-8")
    return Accuracy(study, texts, calibration.budget, made)


def _hand_over(laboratory: Laboratory, spec: BuildSpec, study: Study) -> list[Prepared]:
    """In the form that the package will have; none where it will be of no such matrices."""
    if spec.precision in (None, "bf16") or (spec.precision, spec.device) == ("auto", "cpu"):
        return []
    if spec.precision == "auto":
        return [laboratory.hand_over(study.form)]
    return [laboratory.hand_over("stream" if spec.precision == "int8" else "plain")]


def _serving(spec: BuildSpec) -> Serving:
    """A search's head is in e4m3 where the device multiplies that, whatever its matrices are in."""
    if spec.beam is None:
        return WHOLE
    return replace(SERVING, narrow_head=spec.device == "cpu" or serves_e4m3(spec))


def _notes(spec: BuildSpec, texts: TextSets) -> list[str]:
    """What a reader of the study might take for measured, and is not."""
    notes = []
    if (judged := len(texts.judge)) < FEW_TEXTS:
        notes.append(f"judged by {judged} texts: one that flips counts {1 / judged:.1%}; give more of them")
    if spec.beam is not None and not any(text.search for text in texts.judge):
        notes.append(NO_SEARCH)
    if (spec.device, spec.precision) == ("cpu", "auto"):
        notes.append(f"no CUDA device: this artifact is all {spec.dtype_name}, no plan of these")
    return notes


def choose_schemes(spec: BuildSpec, architecture: Architecture) -> tuple[Scheme, ...]:
    """Those that have kernels on the device, or all; ConfigError for scales that its kernels do not know."""
    if spec.device == "cpu":
        return ("e4m3_static", "e4m3_token", "int8" if spec.beam is None else "int8_exact")
    integers = int8_scheme(spec, architecture)
    if spec.precision == "int8":
        return (integers or "int8",)
    if spec.precision == "auto" and integers is not None:
        if spec.scaling == "token" and integers == "int8":
            reason = "auto mixes int8 and e4m3 here, whose kernels know static scales alone"
            mend = "leave --scaling out, or take --kernels portable for e4m3 scaled per token"
            raise ConfigError("scaling", spec.scaling, f"{reason}; {mend}")
        if not serves_e4m3(spec):
            return (integers,)
        if spec.scaling == "static":
            return ("e4m3_static", integers)
    return ("e4m3_static",) if spec.scaling == "static" else ("e4m3_token",)


def load_texts(calibration: Calibration, checkpoint: Checkpoint, bounds: BatchBounds) -> TextSets:
    """ConfigError for a checkpoint without a tokenizer, or texts over the bounds."""
    if checkpoint.tokenizer is None:
        raise ConfigError(
            "calibrate", str(calibration.file), "the checkpoint has no tokenizer to read it with"
        )
    for config in calibration.pipelines:
        if config.bounds.tokens_per_sample > bounds.tokens_per_sample:
            reason = f"pipeline {config.name!r}: the artifact is built for {bounds.tokens_per_sample}"
            raise ConfigError("tokens_per_sample", config.bounds.tokens_per_sample, reason)
    classes = None if checkpoint.score is None else max(2, len(checkpoint.score))
    return read_texts(calibration.file, calibration.pipelines, checkpoint.tokenizer, classes)


def model_of(checkpoint: Checkpoint, device: torch.device = CPU) -> Model:
    """In float32; ConfigError for a checkpoint whose answers cannot be compared, having no head."""
    head = checkpoint.lm_head if checkpoint.lm_head is not None else checkpoint.score
    if head is None:
        raise ConfigError("calibrate", "a model without a head", "accuracy is judged by a head's answers")
    if len(head) == 1:  # a score alone stands against a zero: its probability is a sigmoid
        head = torch.cat([head, torch.zeros_like(head)])
    weights = {name: tensor.to(device, torch.float32) for name, tensor in checkpoint.weights.items()}
    return Model(checkpoint.architecture, weights, head.to(device, torch.float32))


def measure_package(
    model: Model, forward: Forward, texts: Sequence[Text], bounds: BatchBounds,
    prefixes: FullPrecision | None = None,
) -> Agreement:  # fmt: skip
    """`forward` gives a package's float32 hidden states; against the float32 decoder, emulated here.
    Without `prefixes` every prompt is computed whole.
    """
    with torch.inference_mode():
        reference = answer(EmulatedDecoder(model.architecture, model.weights), model.head, texts, {})
        hidden = torch.empty(len(texts), model.architecture.hidden_size)
        for ids, places in _by_prefix(texts, 0 if prefixes is None else prefixes.longest).items():
            prefix = prefixes.compute(ids) if prefixes is not None and ids else None
            done = 0
            for some, packed in batches([texts[place] for place in places], bounds.tokens, bounds.samples):
                rows = packed if prefix is None else _after(prefix, some)
                hidden[places[done : done + len(some)]] = forward(rows).float().cpu()
                done += len(some)
        return compare(reference, Answers(hidden.to(model.head.device) @ model.head.T), texts)


def _by_prefix(texts: Sequence[Text], longest: int) -> dict[tuple[int, ...], list[int]]:
    """Places of the texts by the constant prefix they begin with, at most `longest` tokens of it."""
    found: dict[tuple[int, ...], list[int]] = {}
    for place, text in enumerate(texts):
        found.setdefault(text.ids[: min(text.prefix, longest)], []).append(place)
    return found


def _after(prefix: ConstantPrefix, texts: Sequence[Text]) -> PackedBatch:
    count = len(prefix.ids)
    segments = [Segment(text.ids[count:], count, constant=count) for text in texts]
    return pack_segments(segments, len(texts), prefix.keys_values)


def judge_package(
    accuracy: Accuracy, checkpoint: Checkpoint, forward: Forward, bounds: BatchBounds,
    prefixes: FullPrecision | None = None, ranks: Ranks | None = None, device: torch.device = CPU,
) -> dict[str, Any]:  # fmt: skip
    """What the manifest keeps; ArtifactError where the package is outside its budget. `ranks`: of its
    searches, where texts are searched from; `device`: that float32 runs on."""
    found = measure_package(model_of(checkpoint, device), forward, accuracy.texts.judge, bounds, prefixes)
    found = replace(found, ranks=ranks)
    if (reason := accuracy.budget.broken(found)) is not None:
        options = "--max-label-shift, --max-kl or --min-winners"
        mend = f"loosen {options} if that is good enough, or build with more precision"
        raise ArtifactError(
            f"accuracy: on {found.texts} judging texts the package's {reason}, so it is not written; {mend}"
        )
    study = accuracy.study
    return {
        "method": study.method,
        "budget": asdict(study.budget),
        "times": asdict(study.times),
        "plans": [asdict(result) for result in study.results],
        "layers": list(study.layers),
        "notes": list(study.notes),
        "measured": asdict(found),
    }
