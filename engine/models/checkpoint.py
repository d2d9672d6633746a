"""Reads a checkpoint through transformers: a Hugging Face directory of safetensors, or one GGUF file.

Never touches the network. The transformers model, in float32, is both where the weights come from and the
reference that a build is measured against.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch import Tensor

from engine.errors import ArtifactError, ConfigError
from engine.models.architecture import Architecture
from engine.models.family import find_family, read_architecture
from engine.models.gguf_file import check_gguf
from engine.models.weights import EMBEDDING, LM_HEAD, SCORE

# suffix of the class that config.json names -> the auto class that loads it, and its head's parameter
_KINDS: dict[str, tuple[str, str | None]] = {
    "ForCausalLM": ("AutoModelForCausalLM", LM_HEAD),
    "ForSequenceClassification": ("AutoModelForSequenceClassification", SCORE),
    "Model": ("AutoModel", None),
}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "tokenizer.model")


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint. weights[...] are the decoder's; heads are float32, None where there is none.

    lm_head[V, H] is the decoder's own embed_tokens.weight where the two are tied.
    """

    family: str
    architecture: Architecture
    weights: dict[str, Tensor]
    lm_head: Tensor | None
    score: Tensor | None  # [num_labels, H]
    labels: tuple[str, ...] | None
    reference: Any  # the transformers model, eval, float32
    tokenizer: Any | None

    @property
    def head(self) -> Literal["language model", "score", "none"]:
        if self.lm_head is not None:
            return "language model"
        return "none" if self.score is None else "score"

    @property
    def tied(self) -> bool:
        return self.lm_head is self.weights[EMBEDDING]


def load_checkpoint(path: Path, *, max_tokens: int, ignore: Collection[str] = ()) -> Checkpoint:
    """Load and check everything; `max_tokens`: the longest sample to be served; `ignore`: as in ModelOptions.

    ConfigError for an option that is not served, ArtifactError for missing or extra files or tensors.
    """
    location = _locate(path)
    with _quiet():
        config = _load(path, transformers.AutoConfig, location)
        architecture = read_architecture(config, ignore=frozenset(ignore), max_tokens=max_tokens)
        if path.is_file():
            check_gguf(path, architecture)
        loader, head_name = _kind(config)
        model, report = _load(
            path, getattr(transformers, loader), location, dtype=torch.float32, output_loading_info=True
        )
        tokenizer = _load_tokenizer(path, location)
    _require_complete(path, report)
    base = model.base_model.state_dict()
    weights = find_family(config.model_type).map_weights(base, architecture)
    head = None
    if head_name is not None:
        head = _take_head(model, head_name)
        if head.data_ptr() == base[EMBEDDING].data_ptr():
            head = weights[EMBEDDING]
    is_score = head_name == SCORE
    labels = (
        tuple(str(config.id2label[i]) for i in range(len(head))) if is_score and head is not None else None
    )
    return Checkpoint(
        family=config.model_type,
        architecture=architecture,
        weights=weights,
        lm_head=None if is_score else head,
        score=head if is_score else None,
        labels=labels,
        reference=model.eval().requires_grad_(False),
        tokenizer=tokenizer,
    )


def _locate(path: Path) -> dict[str, Any]:
    if path.is_file() and path.suffix == ".gguf":
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    if path.is_dir() and (path / "config.json").is_file():
        return {"pretrained_model_name_or_path": str(path)}
    raise ConfigError(
        "model", str(path), "neither a .gguf file nor a directory with a config.json and safetensors"
    )


def _load(path: Path, loader: Any, location: dict[str, Any], **options: Any) -> Any:
    try:
        return loader.from_pretrained(**location, **options, local_files_only=True)
    except Exception as error:  # for bad files transformers raises whatever its parts raise
        raise ArtifactError(f"{path}: transformers cannot load it: {error}") from error


def _kind(config: Any) -> tuple[str, str | None]:
    # A GGUF file names no class: it holds a language model.
    name = (config.architectures or ["ForCausalLM"])[0]
    for suffix, kind in _KINDS.items():
        if name.endswith(suffix):
            return kind
    raise ConfigError("architectures", config.architectures, f"supported are …{', …'.join(_KINDS)}")


def _load_tokenizer(path: Path, location: dict[str, Any]) -> Any | None:
    if path.is_dir() and not any((path / name).is_file() for name in _TOKENIZER_FILES):
        return None
    return _load(path, transformers.AutoTokenizer, location)


def _require_complete(path: Path, report: dict[str, Any]) -> None:
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        for name in sorted(map(str, report[kind])):
            raise ArtifactError(f"{path}: tensor {name!r} is {kind.removesuffix('_keys')}")


def _take_head(model: Any, name: str) -> Tensor:
    extra = set(model.state_dict()) - {
        f"{model.base_model_prefix}.{key}" for key in model.base_model.state_dict()
    }
    if extra != {name}:
        raise ArtifactError(
            f"checkpoint: unexpected tensor {min(extra - {name}, default=name)!r} beside the decoder"
        )
    head: Tensor = model.get_parameter(name).detach()
    return head


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers' progress bars would break whoever shows progress of a build."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with redirect_stderr(
            StringIO()
        ):  # the bar of its GGUF reader knows no switch; log handlers stay as they are
            yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()  # type: ignore[no-untyped-call]
