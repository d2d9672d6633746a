"""What a build is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from engine.beam.bounds import BeamBounds
from engine.errors import ConfigError
from engine.outline import check_outline
from engine.packed import BatchBounds
from engine.pipeline_config import PipelineConfig
from engine.quant.budget import Budget
from engine.quant.request_lines import read_lines

Dtype = Literal["float32", "bfloat16"]
Precision = Literal["bf16", "fp8", "int8", "auto"]
Scaling = Literal["static", "token"]
Kernels = Literal["fastest", "portable"]
Device = Literal["cpu", "cuda"]
_DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Calibration:
    """Requests (engine.quant.request_lines), the pipelines whose templates make them texts, and how far
    answers may move."""

    file: Path
    pipelines: tuple[PipelineConfig, ...]
    budget: Budget = field(default_factory=Budget)

    def check(self) -> None:
        """ConfigError for pipelines whose nodes do not fit each other, or a file that is no list of requests
        to them; needs no model."""
        for config in self.pipelines:
            check_outline(config)
        read_lines(self.file, [config.name for config in self.pipelines])

    def check_beam(self, beam: BeamBounds | None) -> None:
        """ConfigError where a pipeline searches and the artifact cannot, or not as far."""
        for config in self.pipelines:
            for node in (each for each in config.nodes.values() if each.kind == "beam"):
                for key in ("width", "steps"):
                    built, asked = None if beam is None else getattr(beam, key), node.settings.get(key)
                    if built is None or (isinstance(asked, int) and asked > built):
                        reason = (
                            f"pipeline {config.name!r} searches with {key} = {asked!r}; build for as much"
                        )
                        raise ConfigError(f"beam_{key}", built, reason)


@dataclass(frozen=True)
class BuildSpec:
    """`model`: a Hugging Face directory or a .gguf file; `out`: the artifact's directory, replaced if one.

    `bounds` are of one packed batch, which may hold several requests. `ignore_options` names options of the
    checkpoint's configuration that the user states to be without effect. `cache` keeps the native library.

    `precision` asks for CUDA operations of our own, served from captured graphs, and is that of their
    matrices; None: torch's operations. "fp8" needs sm_89; its activations are scaled per tensor from
    `calibration` texts ("static", the fastest) or per token as they are made. "int8" is rotated and rounded
    on the texts of `calibrate` or `calibration`. `kernels`: "portable" leaves
    those for one GPU generation alone. "auto" takes as many 8-bit matrices as the budget of `calibrate`
    allows; `calibrate` measures schemes on its texts, whatever the device, and the finished package is judged
    by them.

    `beam`: also compile what a beam search needs, within these bounds; None: the artifact cannot search.
    """

    model: Path
    out: Path
    name: str
    device: Device = "cpu"
    dtype: Dtype | None = None  # float32 on a CPU, bfloat16 on CUDA
    bounds: BatchBounds = field(default_factory=lambda: BatchBounds(256, 8192, 512))
    ignore_options: tuple[str, ...] = ()
    cache: Path | None = None
    precision: Precision | None = None
    scaling: Scaling = "static"
    kernels: Kernels = "fastest"
    calibration: tuple[str, ...] = ()
    calibrate: Calibration | None = None
    beam: BeamBounds | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("name", self.name, "must not be empty")
        if self.device not in ("cpu", "cuda"):
            raise ConfigError("device", self.device, "must be cpu or cuda")
        if self.dtype not in (None, *_DTYPES):
            raise ConfigError("dtype", self.dtype, f"must be one of {', '.join(_DTYPES)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device", self.device, f"torch {torch.__version__} sees no CUDA device here")

        if self.calibrate is not None:
            self.calibrate.check_beam(self.beam)
        if self.precision == "auto" and self.calibrate is None:
            reason = "chooses by measured accuracy: it needs texts (--calibrate)"
            raise ConfigError("precision", self.precision, reason)
        alone = self.precision == "auto" and self.device == "cpu"  # the accuracy half needs no GPU
        if (
            self.precision is not None
            and not alone
            and (self.device, self.dtype_name) != ("cuda", "bfloat16")
        ):
            raise ConfigError("precision", self.precision, "needs device cuda and dtype bfloat16")

    @property
    def dtype_name(self) -> Dtype:
        return self.dtype or ("bfloat16" if self.device == "cuda" else "float32")

    @property
    def max_positions(self) -> int:
        """The longest sequence there will be: a prompt and the tokens of a beam that are read again."""
        return self.bounds.tokens_per_sample + (0 if self.beam is None else self.beam.steps)

    @property
    def torch_dtype(self) -> torch.dtype:
        return _DTYPES[self.dtype_name]
