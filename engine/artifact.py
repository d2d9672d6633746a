"""An artifact on disk: the directory that `boundgen build` makes, opened and checked against this machine.

Layout: manifest.json, model.pt2 (the compiled forward), native.so (kernels and runner), weights.safetensors,
tokenizer/, and hopper-DIGEST.so where the plan calls its kernels; where it can search also beam_prompt.pt2,
beam_step.pt2 and beam.so. Opening only reads. An Artifact may be shared by threads; its tensors live on
`device`, are never changed, and serve every lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from engine.artifact_checks import check_files, check_machine, how_to_mend, kernel_files, parse_device
from engine.beam.head_weight import HeadWeight
from engine.errors import ArtifactError, ConfigError
from engine.manifest import (
    FORMAT,
    PACKAGE,
    TOKENIZER,
    WEIGHTS,
    Manifest,
    Parity,
    read_manifest,
)
from engine.models.architecture import Architecture
from engine.models.cuda_weights import restore_weights
from engine.models.decoder import PackedDecoder, no_constant
from engine.models.plan import Plan
from engine.models.weights import EMBEDDING, LM_HEAD, NARROW_HEAD, NARROW_HEAD_SCALE, SCORE
from engine.ops.hopper.library import load as load_kernels
from engine.packed import BatchBounds
from engine.prefixes import ConstantPrefix
from engine.runtime.beam_graphs import GraphBeamLanes
from engine.runtime.beam_lanes import BeamLanes
from engine.runtime.graph_lanes import GraphLanePool
from engine.runtime.lanes import LanePool
from engine.runtime.native import BEAM_LIBRARY, LIBRARY, load_beam_native, load_native, load_weights

__all__ = ["FORMAT", "Artifact", "Manifest", "Parity"]


class Artifact:
    """An opened artifact.

    head_weight[V, H] turns hidden states into logits; score_weight[num_labels, H] is the score head of a
    classification checkpoint, its labels in manifest.labels. Either is None where the checkpoint has none.
    """

    def __init__(
        self,
        path: Path,
        device: torch.device,
        manifest: Manifest,
        digest: str,
        weights: dict[str, Tensor],
        tokenizer: Any | None,
    ) -> None:
        self.path, self.device, self.manifest, self.digest = path, device, manifest, digest
        self.score_weight = weights.pop(SCORE, None)
        self._narrow_head = weights.pop(NARROW_HEAD, None), weights.pop(NARROW_HEAD_SCALE, None)
        head_weight = weights.pop(LM_HEAD, None)
        if manifest.head == "language model" and head_weight is None:
            head_weight = weights[EMBEDDING]  # tied: one matrix does both
        self.head_weight: Tensor | None = head_weight
        self._weights = weights
        self._tokenizer = tokenizer

    @classmethod
    def open(cls, path: Path, *, device: str = "cpu", verify: bool = True) -> Artifact:
        """Read, check, and put the weights on `device`: "cpu", "cuda" or "cuda:N".

        ConfigError for another device; ArtifactError says what misfits and how to mend. `verify=False` skips
        the digests of the files (about a second a gigabyte) where their storage is trusted.
        """
        target = parse_device(device)
        manifest, digest = read_manifest(path)
        check_machine(path, manifest, target)
        check_files(path, manifest, target, verify)
        try:
            load_native(path / LIBRARY)
            for kernels in kernel_files(manifest):
                load_kernels(path / kernels)
            if manifest.beam is not None:
                load_beam_native(path / BEAM_LIBRARY)
            weights = load_weights(path / WEIGHTS, target)
            tokenizer = _load_tokenizer(path / TOKENIZER)
        except (OSError, RuntimeError, ValueError, SafetensorError) as error:
            raise ArtifactError(
                f"{path}: cannot be loaded: {error}; {how_to_mend(path, manifest, target)}"
            ) from error
        return cls(path, target, manifest, digest, weights, tokenizer)

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def has_narrow_head(self) -> bool:
        """Whether a search multiplies the head in 8 bits."""
        return self._narrow_head[0] is not None

    @property
    def bounds(self) -> BatchBounds:
        return self.manifest.bounds

    @property
    def quantises(self) -> bool:
        """Whether some matrix is in 8 bits."""
        return self.manifest.plan is not None and Plan.from_manifest(self.manifest.plan).quantises

    @property
    def tokenizer(self) -> Any:
        """transformers' fast tokenizer; ArtifactError where the checkpoint brought none."""
        if self._tokenizer is None:
            raise ArtifactError(
                f"artifact {self.name!r} has no tokenizer, because its checkpoint brought none: send "
                f"token_ids, or put tokenizer.json beside {self.manifest.source.path!r} and build again"
            )
        return self._tokenizer

    def constant_prefix(self, ids: tuple[int, ...]) -> ConstantPrefix:
        """Keys and values of what prompts start with, by the eager decoder in the weights' own dtype, without
        8-bit activations; about the time of one sample. Only for an artifact whose lanes take prefixes."""
        weights = self._weights
        if self.manifest.plan is not None:
            weights = restore_weights(weights, self._architecture)
        return compute_prefix(self._architecture, weights, ids, self.device)

    def open_lanes(self, lanes: int, threads: int = 1) -> LanePool:
        """`lanes` threads, each with its own runner over the shared weights and `threads` CPU threads."""
        kind = LanePool if self.manifest.plan is None else GraphLanePool
        pool = kind(
            self.path / PACKAGE,
            self._weights,
            self.bounds,
            vocab_size=self.manifest.architecture["vocab_size"],
            device=self.device,
            lanes=lanes,
            threads=threads,
            no_constant=self.no_constant,
        )
        if kernel_files(self.manifest):  # the hopper kernels can leave room for another lane
            pool.share()
        return pool

    @property
    def _architecture(self) -> Architecture:
        return Architecture.from_manifest(self.manifest.architecture)

    @property
    def no_constant(self) -> Tensor:
        """What the package takes for a constant prefix where there is none."""
        return no_constant(self._architecture, getattr(torch, self.manifest.dtype), self.device)

    def open_beams(self, lanes: LanePool) -> BeamLanes:
        """What searches on the threads of `lanes`, which are this artifact's; ConfigError where it cannot."""
        if self.manifest.beam is None or self.head_weight is None:
            reason = "was built without beams; build it with --beam-width and --beam-steps"
            raise ConfigError("artifact", self.name, reason)
        head = HeadWeight(self.head_weight, *self._narrow_head)
        bounds, architecture = self.manifest.beam.bounds, self.manifest.architecture
        kept = None if self.manifest.plan is None else self.bounds
        if isinstance(lanes, GraphLanePool):
            return GraphBeamLanes(lanes, self.path, bounds, head, architecture, kept)
        return BeamLanes(lanes, self.path, bounds, head, architecture, kept)


def compute_prefix(
    architecture: Architecture, weights: Mapping[str, Tensor], ids: tuple[int, ...], device: torch.device
) -> ConstantPrefix:
    """By the eager decoder over its own `weights`, on `device`; waits for it."""
    decoder = PackedDecoder.from_weights(architecture, weights, max(len(ids), 1))
    with torch.inference_mode():
        keys_values = decoder.keys_values(torch.tensor(ids, device=device))
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # lanes read it on streams of their own
    return ConstantPrefix(ids, keys_values)


def _load_tokenizer(folder: Path) -> Any | None:
    if not folder.is_dir():
        return None
    from transformers import AutoTokenizer  # noqa: PLC0415 - a third of a process's start where none is needed

    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
