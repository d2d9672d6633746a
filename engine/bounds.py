"""Bounds of a pipeline: the most that one of its requests may hold. Known before the first request."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from engine.errors import ConfigError, InputError
from engine.options import Options
from engine.packed import BatchBounds
from engine.values import Tokens


class Bounds(Options):
    """Counts; a request over any of them is refused whole with InputError too_large."""

    samples: int = Field(ge=1)
    tokens_per_sample: int = Field(ge=1)
    tokens_per_request: int = Field(ge=1)

    @model_validator(mode="after")
    def _sample_fits_request(self) -> Self:
        if self.tokens_per_sample > self.tokens_per_request:
            raise ValueError("tokens_per_sample exceeds tokens_per_request")
        return self

    def check_samples(self, num_samples: int) -> None:
        """InputError unless a request may have so many samples."""
        if num_samples == 0:
            raise InputError("invalid", "samples is empty: a request has at least one", "samples")
        if num_samples > self.samples:
            raise InputError(
                "too_large", f"{num_samples} samples, a request may have {self.samples}", "samples"
            )

    def check_tokens(self, tokens: Tokens) -> None:
        """InputError unless every sample and the whole request fit."""
        for index, sample in enumerate(tokens.ids):
            if not sample:
                raise InputError("invalid", f"samples[{index}] has no tokens", f"samples[{index}]")
            if len(sample) > self.tokens_per_sample:
                message = (
                    f"samples[{index}] has {len(sample)} tokens, a sample may have {self.tokens_per_sample}"
                )
                raise InputError("too_large", message, f"samples[{index}]")
        if tokens.num_tokens > self.tokens_per_request:
            message = f"{tokens.num_tokens} tokens, a request may have {self.tokens_per_request}"
            raise InputError("too_large", message, "samples")

    def check_artifact(self, artifact: str, built: BatchBounds) -> None:
        """ConfigError unless an artifact built for `built` can run any request within these bounds."""
        pairs = (
            ("samples", self.samples, built.samples),
            ("tokens_per_sample", self.tokens_per_sample, built.tokens_per_sample),
            ("tokens_per_request", self.tokens_per_request, built.tokens),
        )
        for key, value, most in pairs:
            if value > most:
                reason = f"artifact {artifact!r} was built for at most {most}; lower it, or build with more"
                raise ConfigError(f"bounds.{key}", value, reason)
