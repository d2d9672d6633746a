"""An existing artifact's answers on new texts, against the float32 model that it was built from.

Loads both: the artifact as a worker would, the checkpoint in plain torch. Takes about a second for ten texts
of a small model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from engine.artifact import Artifact
from engine.build.accuracy import FullPrecision, load_texts, measure_package, model_of
from engine.build.origin import what_differs
from engine.build.spec import Calibration
from engine.build.winners import count_winners, searcher
from engine.errors import ArtifactError, ConfigError
from engine.models.checkpoint import load_checkpoint
from engine.quant.agreement import Agreement
from tools.doctor.findings import Finding, fail, ok

TEXTS = "TEXTS"  # the argument, as its help calls it
MEND_TEXTS = "mend it, or give other texts or another --pipeline"


def check_answers(folder: Path, model: Path | None, calibration: Calibration) -> Iterator[Finding]:
    """One finding: inside the budget or not, or why that cannot be said. `model`: the checkpoint, where it is
    no longer where the build found it. All of the file's texts judge."""
    if not folder.is_dir():
        lacks = "is no directory" if folder.exists() else "no such directory"
        yield fail(
            "answers", f"{folder}: {lacks}, so no artifact", "give the directory that build --out named"
        )
        return
    try:
        calibration.check()
        artifact = Artifact.open(folder, device="cuda" if torch.cuda.is_available() else "cpu")
    except ConfigError as error:
        yield fail("answers", typed(error), MEND_TEXTS)
        return
    except ArtifactError as error:
        yield fail("answers", str(error), "copy it again, or build it on a machine like this one")
        return
    try:
        found = measure_artifact(artifact, model, calibration)
    except (ArtifactError, ConfigError) as error:
        line = f"{calibration.file}, line "
        is_texts = isinstance(error, ConfigError) and str(error.value).startswith(line)
        mend = "name the checkpoint with --model, the texts' template with --pipeline"
        yield fail("answers", typed(error), MEND_TEXTS if is_texts else mend)
        return
    detail = f"{folder}: {describe(found)}"
    if (reason := calibration.budget.broken(found)) is not None:
        mend = "build again with --calibrate on such texts, or in more precision; or raise the budget"
        yield fail("answers", f"{detail}: {reason}", mend)
    else:
        yield ok("answers", detail)


def typed(error: ArtifactError | ConfigError) -> str:
    """The error with the name that doctor's arguments have, where build has an option for the same."""
    if isinstance(error, ConfigError) and error.key == "calibrate":
        return str(ConfigError(TEXTS, error.value, error.reason, error.file))
    return str(error)


def describe(found: Agreement) -> str:
    """What was measured and is there, in one line."""
    shift = "" if found.label_shift is None else f"label shift {found.label_shift:.4f}, "
    same = "" if found.label_agreement is None else f", same label {found.label_agreement:.1%}"
    won = ""
    if found.ranks is not None:
        won = f", {found.ranks.winners:.1%} of {found.ranks.prompts} searches' winners"
    return f"{shift}KL {found.next_token_kl:.5f}{same} on {found.texts} texts against float32{won}"


def measure_artifact(artifact: Artifact, moved: Path | None, calibration: Calibration) -> Agreement:
    """`moved`: where the checkpoint is now. ArtifactError for another checkpoint than the artifact's;
    ArtifactError, ConfigError as the loaders of checkpoint and texts raise them."""
    built = artifact.manifest
    model_path = moved or Path(built.source.path)
    if model_path.exists() and (reason := what_differs(built.source, model_path)) is not None:
        raise ArtifactError(
            f"checkpoint {model_path}: {reason}: answers of another model say nothing about it"
        )
    checkpoint = load_checkpoint(
        model_path,
        max_tokens=built.bounds.tokens_per_sample,
        ignore=built.ignored_options,
    )
    calibration.check_beam(None if built.beam is None else built.beam.bounds)
    sets = load_texts(calibration, checkpoint, artifact.bounds)
    texts, model = [*sets.calibrate, *sets.choose, *sets.judge], model_of(checkpoint)
    lanes = artifact.open_lanes(1, torch.get_num_threads())
    prefixes = None
    if artifact.quantises and lanes.takes_prefixes:
        prefixes = FullPrecision(artifact.constant_prefix, lanes.most_constant)
    try:
        ranks = None
        if built.beam is not None and any(text.search for text in texts):
            ranks = count_winners(model, texts, searcher(artifact.open_beams(lanes)), built.beam.bounds)
        found = measure_package(
            model,
            lambda packed: lanes.executor.submit(lanes.forward, packed).result(),
            texts,
            artifact.bounds,
            prefixes,
        )
        return replace(found, ranks=ranks)
    finally:
        lanes.close()
