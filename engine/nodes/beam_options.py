"""Settings of a beam node and what a request asks of one. Errors name the key and quote the value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from engine.errors import ConfigError, InputError
from engine.graph import NodeContext
from engine.options import Options
from engine.runtime.beam_lanes import BeamLanes
from engine.store import OpenedArtifact


class BeamOptions(Options):
    """width: beams a prompt. steps: decode steps; a sequence has one token more. eos: whether an end token
    finishes a beam; end_tokens: which they are, the tokenizer's own where they are left out. slices: [start,
    stop) of the vocabulary for each token of a sequence. items: a file of the only sequences there may be."""

    artifact: str
    width: int = Field(ge=1)
    steps: int = Field(ge=1)
    eos: Literal["fixed", "finish"] = "fixed"
    end_tokens: list[int] | None = Field(default=None, min_length=1)
    slices: list[list[int]] | None = None
    normalize: Literal["none", "length"] = "none"
    items: str | None = None


@dataclass(frozen=True)
class Asked:
    """What a request's own options ask for."""

    width: int
    top_n: int | None


def read_asked(options: Mapping[str, object], width: int) -> Asked:
    """Of a pipeline of this width; InputError names the option and quotes its value."""
    asked, top_n = (_count(options, key, width) for key in ("width", "top_n"))
    return Asked(width if asked is None else asked, top_n)


def check_bounds(options: BeamOptions, context: NodeContext, lanes: BeamLanes) -> None:
    built = f"artifact {options.artifact!r} was built for at most"
    for key, most in (("width", lanes.bounds.width), ("steps", lanes.bounds.steps)):
        if getattr(options, key) > most:
            raise ConfigError(key, getattr(options, key), f"{built} {most}; lower it, or build with more")
    if context.bounds.samples > lanes.bounds.prompts:
        reason = f"{built} {lanes.bounds.prompts} prompts a batch; lower it, or build with more"
        raise ConfigError("bounds.samples", context.bounds.samples, reason)


def find_end_tokens(options: BeamOptions, opened: OpenedArtifact, vocab_size: int) -> tuple[int, ...] | None:
    if options.eos == "fixed":
        if options.end_tokens is not None:
            raise ConfigError("end_tokens", options.end_tokens, "is for eos: finish")
        return None
    if options.end_tokens is not None:
        for token in options.end_tokens:
            if not 0 <= token < vocab_size:
                raise ConfigError("end_tokens", token, f"is outside the vocabulary of {vocab_size}")
        return tuple(options.end_tokens)
    own = None if opened.vocabulary is None else opened.artifact.tokenizer.eos_token_id
    if own is None:
        raise ConfigError("eos", options.eos, "the tokenizer names no end token; give end_tokens")
    return (int(own),)


def check_slices(options: BeamOptions, vocab_size: int) -> tuple[tuple[int, int], ...] | None:
    if options.slices is None:
        return None
    if len(options.slices) != options.steps + 1:
        reason = f"a sequence has {options.steps + 1} tokens, and each needs its [start, stop)"
        raise ConfigError("slices", options.slices, reason)
    for place, pair in enumerate(options.slices):
        if len(pair) != 2 or not 0 <= pair[0] < pair[1] <= vocab_size:
            reason = f"must be [start, stop) within the vocabulary of {vocab_size}"
            raise ConfigError(f"slices.{place}", pair, reason)
    return tuple((start, stop) for start, stop in options.slices)


def _count(options: Mapping[str, object], key: str, most: int) -> int | None:
    value = options.get(key)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():  # of languages that have no other numbers
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        reason = f"must be a whole number from 1 to {most}"
        raise InputError("invalid", f"options.{key} = {options[key]!r}: {reason}", f"options.{key}")
    if value > most:
        raise InputError("too_large", f"options.{key} = {value}: at most {most}", f"options.{key}")
    return value
