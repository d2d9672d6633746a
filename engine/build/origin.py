"""Which checkpoint an artifact was made from, and whether another one is that.

A model that was trained on has the same shape and the same config.json, so its weights are told apart by
their digests: about a second a gigabyte.
"""

from __future__ import annotations

from pathlib import Path

from engine.manifest import Source, file_digest


def describe_source(model: Path) -> Source:
    """`model`: a GGUF file, or a directory with config.json and safetensors."""
    if model.is_file():
        return Source(path=str(model.resolve()), kind="gguf", config_sha256=file_digest(model))
    return Source(
        path=str(model.resolve()),
        kind="huggingface",
        config_sha256=file_digest(model / "config.json"),
        weights=_weights(model),
    )


def what_differs(source: Source, model: Path) -> str | None:
    """Why `model` is not the checkpoint of `source`; None where it is, or an older build did not note it.
    OSError where it cannot be read."""
    if model.is_file():
        found = file_digest(model)
        if source.kind != "gguf":
            return "is a GGUF file, the artifact was built from a directory"
        return None if found == source.config_sha256 else _differs(model.name, found, source.config_sha256)
    if source.kind == "gguf":
        return f"is a directory, the artifact was built from the GGUF file {Path(source.path).name}"
    if source.weights is None:
        return None
    found_files = _weights(model)
    if found_files.keys() != source.weights.keys():
        return f"has the weights {sorted(found_files)}, the artifact was built from {sorted(source.weights)}"
    changed = (name for name in sorted(found_files) if found_files[name] != source.weights[name])
    name = next(changed, None)
    return None if name is None else _differs(name, found_files[name], source.weights[name])


def _weights(model: Path) -> dict[str, str]:
    return {path.name: file_digest(path) for path in sorted(model.glob("*.safetensors"))}


def _differs(name: str, found: str, built: str) -> str:
    return f"{name} has sha256 {found[:12]}…, the artifact was built from {built[:12]}…"
