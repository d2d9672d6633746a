"""Whether an artifact fits this machine and is the one that was built; what to do where it does not.

Reads the files for their digests, changes nothing; any thread. ArtifactError and ConfigError say how to mend.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import torch

from engine.errors import ArtifactError, ConfigError
from engine.manifest import PACKAGE, PROMPT_PACKAGE, STEP_PACKAGE, WEIGHTS, Manifest, file_digest
from engine.models.plan import MATRICES, Plan
from engine.ops.hopper.library import file_name
from engine.runtime.machine import cpu_features, device_arch, torch_release
from engine.runtime.native import BEAM_LIBRARY, LIBRARY


def parse_device(device: str) -> torch.device:
    """ConfigError for what is none, or is not in this machine."""
    try:
        parsed = torch.device(device)
    except RuntimeError:
        parsed = None
    if parsed is None or parsed.type not in ("cpu", "cuda"):
        raise ConfigError("device", device, 'must be "cpu", "cuda" or "cuda:N"')
    count = torch.cuda.device_count()
    if parsed.type == "cuda" and count and (parsed.index or 0) >= count:
        raise ConfigError("device", device, f"this machine has {count} CUDA devices, from cuda:0")
    return parsed


def how_to_mend(path: Path, manifest: Manifest, device: torch.device) -> str:
    """The command that builds the same for this machine; texts that it was calibrated on come on top."""
    words = ["--model", manifest.source.path, "--out", str(path), "--name", manifest.name]
    bounds = manifest.bounds
    words += ["--samples", str(bounds.samples), "--tokens-per-request", str(bounds.tokens)]
    words += ["--tokens-per-sample", str(bounds.tokens_per_sample)]
    if manifest.plan is not None:
        layers = Plan.from_manifest(manifest.plan).layers
        found = {getattr(layer, matrix) for layer in layers for matrix in MATRICES}
        words += ["--precision", next((kind for kind in ("int8", "fp8") if kind in found), "bf16")]
    if manifest.beam is not None:
        for key in ("width", "steps", "prompts"):
            words += [f"--beam-{key}", str(getattr(manifest.beam.bounds, key))]
    return f"rebuild it on this machine: {shlex.join(['boundgen', 'build', *words, '--device', device.type])}"


def check_machine(path: Path, manifest: Manifest, device: torch.device) -> None:
    """ArtifactError where it was compiled for another."""
    mend = how_to_mend(path, manifest, device)

    def require(field: str, built: str, here: str) -> None:
        if built != here:
            raise ArtifactError(f"{path}: {field} = {built!r}, but this machine has {here!r}; {mend}")

    if manifest.device != device.type:
        raise ArtifactError(f"{path}: device = {manifest.device!r}, but {device.type!r} is asked for; {mend}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ArtifactError(
            f"{path}: device = 'cuda', but torch {torch.__version__} sees no CUDA device here"
        )
    require("torch", ".".join(manifest.torch.split(".")[:2]), torch_release())
    require("device_arch", manifest.device_arch, device_arch(device))
    absent = sorted(set(manifest.cpu_features) - set(cpu_features()))
    if absent:
        raise ArtifactError(f"{path}: cpu_features: this processor lacks {', '.join(absent)}; {mend}")


def kernel_files(manifest: Manifest) -> list[str]:
    """The compiled kernels that the package calls, beside native.so."""
    library = None if manifest.plan is None else Plan.from_manifest(manifest.plan).library
    return [] if library is None else [file_name(library)]


def check_files(path: Path, manifest: Manifest, device: torch.device, verify: bool) -> None:
    """ArtifactError for a file that is missing, or with `verify` not the one that was built."""
    beam = () if manifest.beam is None else (PROMPT_PACKAGE, STEP_PACKAGE, BEAM_LIBRARY)
    for name in (PACKAGE, WEIGHTS, LIBRARY, *kernel_files(manifest), *beam):
        if name not in manifest.files:
            raise ArtifactError(
                f"{path}: files: the manifest has no digest of {name!r}, so it was changed after the build; "
                f"{how_to_mend(path, manifest, device)}"
            )
    for name, digest in manifest.files.items():
        file = path / name
        if not file.is_file():
            raise ArtifactError(
                f"{path}: file {name!r} is missing; copy it again or {how_to_mend(path, manifest, device)}"
            )
        if verify and file_digest(file) != digest:
            raise ArtifactError(
                f"{path}: file {name!r} is not the one that was built (sha256 {file_digest(file)[:12]}…, "
                f"manifest {digest[:12]}…); copy it again or {how_to_mend(path, manifest, device)}"
            )
