"""Model families: one module in engine/models/families a model_type, found by looking into that folder.

A family turns a transformers configuration into an Architecture, or says which option it does not serve.
A new model is a new module there with a `FAMILY`; nothing shared names one.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import transformers
from torch import Tensor

from engine.errors import ConfigError
from engine.models import families
from engine.models.architecture import Architecture
from engine.models.model_options import ModelOptions

ReadArchitecture = Callable[[Any, ModelOptions, int], Architecture]
MapWeights = Callable[[Mapping[str, Tensor], Architecture], dict[str, Tensor]]


@dataclass(frozen=True)
class Family:
    """`read(config, options, max_tokens)`, and how the checkpoint's tensors become the decoder's."""

    model_type: str
    read: ReadArchitecture
    map_weights: MapWeights


def known_families() -> dict[str, Family]:
    """Every family by its model_type."""
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(families.__path__, families.__name__ + "."):
        family = importlib.import_module(module.name).FAMILY
        assert isinstance(family, Family)
        found[family.model_type] = family
    return found


def find_family(model_type: str) -> Family:
    known = known_families()
    if model_type not in known:
        raise ConfigError(
            "model_type", model_type, f"not supported; supported are {', '.join(sorted(known))}"
        )
    return known[model_type]


def read_architecture(config: Any, *, ignore: frozenset[str], max_tokens: int) -> Architecture:
    """The architecture of a transformers configuration; ConfigError names the option that is not served."""
    unset = transformers.PreTrainedConfig().to_dict()  # what every configuration carries, of whatever model
    values = {
        key: value for key, value in config.to_dict().items() if key not in unset or value != unset[key]
    }
    options = ModelOptions(values, ignore)
    options.require(
        "quantization_config", (), "quantized checkpoints are not supported; give the unquantized one"
    )
    architecture = find_family(config.model_type).read(config, options, max_tokens)
    options.finish()
    if architecture.num_heads % architecture.num_kv_heads != 0:
        raise ConfigError(
            "num_key_value_heads",
            architecture.num_kv_heads,
            f"must divide num_attention_heads = {architecture.num_heads}",
        )
    return architecture
