"""An artifact on disk: the directory that `boundgen build` makes, opened and checked against this machine.

Layout: manifest.json, model.pt2 (the compiled forward), weights.safetensors, the tokenizer's files.
Opening reads; nothing here writes. An Artifact may be shared by threads; its tensors live on `device`, are
never changed, and serve every lane.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from engine.packed import BatchBounds
from engine.runtime.lanes import LanePool

FORMAT = 1


class Parity(BaseModel):
    """Errors measured at build against `reference`, one sample at a time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reference: str
    samples: int
    tokens: int
    max_abs_logprob_error: float
    mean_abs_logprob_error: float
    top1_agreement: float
    tolerance: float


class Manifest(BaseModel):
    """What manifest.json holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int
    name: str
    family: str
    architecture: dict[str, Any]
    dtype: Literal["float32", "bfloat16"]
    device: Literal["cpu", "cuda"]
    device_arch: str
    torch: str
    transformers: str
    boundgen: str
    bounds: BatchBounds
    labels: tuple[str, ...] | None
    source: dict[str, str]
    parity: Parity
    files: dict[str, str]


class Artifact:
    """An opened artifact.

    head_weight[V, H] turns hidden states into logits; score_weight[num_labels, H] is the score head of a
    classification checkpoint, its labels in manifest.labels; either is None where the checkpoint has none.
    """

    path: Path
    device: str
    manifest: Manifest
    digest: str  # sha256 over manifest.json, and so over every file
    tokenizer: Any  # transformers' PreTrainedTokenizerFast
    head_weight: Tensor | None
    score_weight: Tensor | None

    @classmethod
    def open(cls, path: Path, *, device: str, verify: bool = True) -> Artifact:
        """Read and check; `device` is "cpu", "cuda" or "cuda:N". ArtifactError says what misfits and how to mend it."""
        raise NotImplementedError

    def open_lanes(self, lanes: int, threads: int = 1) -> LanePool:
        """A pool of `lanes` threads, each with its own runner over the shared weights; `threads` CPU threads each."""
        raise NotImplementedError
