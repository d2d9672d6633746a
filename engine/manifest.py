"""manifest.json: what an artifact is, what it was built with, and the digest of each of its files.

Written once by a build, read by everyone else. Its own digest therefore names the whole artifact; `digest` in
it is that of everything else in it, so that a value changed by hand is an error and not believed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, field_validator

from engine.beam.bounds import BeamBounds
from engine.disk import writing
from engine.errors import ArtifactError
from engine.mistakes import in_words
from engine.models.architecture import Architecture
from engine.packed import BatchBounds

FORMAT = 5  # raised whenever native.so, kernels' arguments, a package's inputs or this file change in meaning
MANIFEST = "manifest.json"
DIGEST = "digest"  # its key
PACKAGE = "model.pt2"
PROMPT_PACKAGE = "beam_prompt.pt2"  # this and the next one where the artifact can search
STEP_PACKAGE = "beam_step.pt2"
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer"  # a folder; absent where the checkpoint brought none


_ARCHITECTURE = TypeAdapter(Architecture)


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Parity(_Frozen):
    """What a build measured against `reference`, which ran one sample at a time in float32."""

    reference: str
    quantity: Literal["log-probability", "score", "hidden state"]
    samples: int
    tokens: int
    max_abs_error: float
    mean_abs_error: float
    top1_agreement: float | None  # share of samples with the reference's likeliest token or label
    max_abs_tolerance: float
    mean_abs_tolerance: float


class BeamParity(_Frozen):
    """What a build measured against `reference`, a search that computes every sequence whole, in float32."""

    reference: str
    prompts: int
    width: int
    steps: int
    max_abs_error: float  # of the scores, rank by rank
    same_sequences: float  # share of the reference's sequences that were found
    max_abs_tolerance: float


class Beam(_Frozen):
    """That the artifact can search, and how far."""

    bounds: BeamBounds
    parity: BeamParity


class Source(_Frozen):
    """Where the weights came from. config_sha256 is of config.json or the GGUF file, `weights` of each
    of a directory's safetensors; None where a build did not note them."""

    path: str
    kind: Literal["huggingface", "gguf"]
    config_sha256: str
    weights: dict[str, str] | None = None


class Manifest(_Frozen):
    """See the fields; `architecture` is engine.models.architecture.Architecture as plain values."""

    format: int
    name: str
    family: str
    architecture: dict[str, Any]
    dtype: Literal["float32", "bfloat16"]
    device: Literal["cpu", "cuda"]
    device_arch: str
    cpu_features: tuple[str, ...]
    torch: str
    transformers: str
    boundgen: str
    compiler: str
    bounds: BatchBounds
    head: Literal["language model", "score", "none"]
    labels: tuple[str, ...] | None
    ignored_options: tuple[str, ...]
    source: Source
    parity: Parity
    files: dict[str, str]  # path in the artifact -> sha256
    accuracy: dict[str, Any] | None = None  # engine.build.accuracy: plans emulated, the package measured
    plan: dict[str, Any] | None = None  # engine.models.plan.Plan as plain values; None: the eager operations
    beam: Beam | None = None

    @field_validator("architecture")
    @classmethod
    def _whole(cls, values: dict[str, Any]) -> dict[str, Any]:
        try:
            made = _ARCHITECTURE.validate_python(values)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {in_words(first)}") from None
        for key, value in vars(made).items():
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise ValueError(f"{key} = {value}: must be at least 1")
        if 2 * (given := len(made.rope.inv_freq)) != made.head_dim:
            raise ValueError(f"rope.inv_freq: {given} values for head_dim = {made.head_dim}")
        return values

    @field_validator("files")
    @classmethod
    def _inside(cls, files: dict[str, str]) -> dict[str, str]:
        for name in files:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"{name!r} points outside the artifact")
        return files


def write_manifest(folder: Path, manifest: Manifest) -> None:
    text = json.dumps(sealed(manifest.model_dump(mode="json")), indent=2)
    with writing(folder / MANIFEST):
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def sealed(values: dict[str, Any]) -> dict[str, Any]:
    """The values with the digest that a manifest of them has, whatever they had."""
    open_ = {key: value for key, value in values.items() if key != DIGEST}
    text = json.dumps(open_, sort_keys=True, separators=(",", ":"))
    return {**open_, DIGEST: hashlib.sha256(text.encode()).hexdigest()}


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """The manifest and its digest; ArtifactError where it is missing, garbled or of another format."""
    path = folder / MANIFEST
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ArtifactError(
            f"{folder}: no readable {MANIFEST} ({error.strerror}), so it is no artifact or a partial copy; "
            f"copy it again, or make one: boundgen build --model MODEL --out {folder}"
        ) from error
    mend = f"copy the artifact again, or rebuild it: boundgen build --model MODEL --out {folder}"
    try:
        values = json.loads(raw)
        found = values["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path}: garbled ({error}); {mend}") from error
    if found != FORMAT:
        raise ArtifactError(f"{path}: format = {found!r}, this boundgen reads format {FORMAT}; {mend}")
    if values.pop(DIGEST, None) != sealed(values)[DIGEST]:
        raise ArtifactError(f"{path}: changed since the build (its digest says so); {mend}")
    try:
        return Manifest.model_validate(values), hashlib.sha256(raw).hexdigest()
    except ValidationError as error:
        first = error.errors()[0]
        where, reason = ".".join(map(str, first["loc"])), in_words(first)
        raise ArtifactError(f"{path}: {where} = {first['input']!r:.80}: {reason}; {mend}") from error


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
