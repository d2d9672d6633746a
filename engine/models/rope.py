"""Rotary frequencies, computed once at build from a checkpoint's configuration.

The formulas are transformers' own (ROPE_INIT_FUNCTIONS), so a type that it knows is served as it defines it.
Two types change their frequencies with the sequence's length; those are constant up to a length, and only
bounds within it are served.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.errors import ConfigError
from engine.models.architecture import Rope

# type -> the parameter that says up to which length its frequencies stay as they are
LENGTH_DEPENDENT = {"dynamic": "max_position_embeddings", "longrope": "original_max_position_embeddings"}
# Only "proportional" defines what a partial rotation is within a full-width head.
PARTIAL_ROTATION = frozenset({"proportional"})


def compute_rope(config: Any, head_dim: int, max_tokens: int) -> Rope:
    """Frequencies for samples of up to `max_tokens` tokens.

    `config` is a transformers configuration. ConfigError for a type that transformers does not know, for a
    partial rotation, and for bounds that reach lengths at which the type would change its frequencies.
    """
    parameters = config.rope_parameters
    if not isinstance(parameters, dict) or "rope_type" not in parameters:
        raise ConfigError("rope_parameters", parameters, "must be one map with rope_type and rope_theta")
    kind = parameters["rope_type"]
    if kind != "default" and kind not in ROPE_INIT_FUNCTIONS:
        known = ", ".join(["default", *sorted(ROPE_INIT_FUNCTIONS)])
        raise ConfigError(
            "rope_parameters.rope_type", kind, f"unknown; the installed transformers knows {known}"
        )
    partial = parameters.get("partial_rotary_factor")
    if partial not in (None, 1, 1.0) and kind not in PARTIAL_ROTATION:
        raise ConfigError(
            "rope_parameters.partial_rotary_factor", partial, "partial rotation is not supported"
        )
    _require_constant(kind, parameters, config.max_position_embeddings, max_tokens)
    inv_freq, scaling = _initial(config, kind, parameters, head_dim)
    if inv_freq.shape != (head_dim // 2,):
        raise ConfigError(
            "rope_parameters", parameters, f"gives {len(inv_freq)} frequencies for heads of {head_dim}"
        )
    return Rope(kind=kind, inv_freq=tuple(inv_freq.tolist()), scaling=float(scaling))


def _initial(config: Any, kind: str, parameters: dict[str, Any], head_dim: int) -> tuple[torch.Tensor, float]:
    if kind == "default":
        exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return 1.0 / (parameters["rope_theta"] ** exponent), 1.0
    inv_freq, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return inv_freq.float(), scaling


def _require_constant(kind: str, parameters: dict[str, Any], max_positions: int, max_tokens: int) -> None:
    if kind not in LENGTH_DEPENDENT:
        return
    key = LENGTH_DEPENDENT[kind]
    limit = parameters.get(key) or max_positions
    if max_tokens > limit:
        raise ConfigError(
            "bounds.tokens_per_sample",
            max_tokens,
            f"rope type {kind!r} changes its frequencies above {key} = {limit}; a build with "
            f"tokens_per_sample <= {limit} is exact",
        )
