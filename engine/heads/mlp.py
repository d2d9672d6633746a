"""MLP: a small trained network on the embedding; its logits are scores by label.

The weights are a safetensors file with the names that torch.nn.Sequential gives linear layers ("0.weight",
"0.bias", "2.weight", ...): layers in the order of their numbers, the activation between, biases optional.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from engine.artifact import Artifact
from engine.errors import ConfigError
from engine.heads.embedding import hidden_size
from engine.heads.head import Head, class_log_norm
from engine.options import Options
from engine.values import Scores

_NAME = re.compile(r"(\d+)\.(weight|bias)")
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": F.tanh,
}


class MlpOptions(Options):
    """`weights` is relative to the pipeline's file; `normalized` says which embedding it was trained on."""

    weights: str
    labels: list[str] = Field(min_length=1)
    activation: Literal["relu", "gelu", "silu", "tanh"] = "relu"
    normalized: bool = True


class MlpHead(Head):
    Options = MlpOptions
    produces = Scores

    def __init__(self, options: MlpOptions, artifact: Artifact, directory: Path) -> None:
        path = directory / options.weights
        self._layers = read_layers(path, hidden_size(artifact), str(artifact.device))
        width = len(self._layers[-1][0])
        if len(options.labels) != width:
            raise ConfigError("labels", options.labels, f"the last layer of {path} gives {width} scores")
        if len(set(options.labels)) != width:
            raise ConfigError("labels", options.labels, "a label is given twice")
        self.labels = tuple(options.labels)
        self._activation = _ACTIVATIONS[options.activation]
        self._normalized = options.normalized

    def compute(self, hidden: Tensor) -> tuple[Tensor, ...]:
        x = hidden.float()
        if self._normalized:
            x = F.normalize(x, dim=-1)
        for position, (weight, bias) in enumerate(self._layers):
            x = F.linear(self._activation(x) if position else x, weight, bias)
        return x, class_log_norm(x)

    def value(self, columns: tuple[Tensor, ...]) -> Scores:
        logits, log_norm = columns
        assert self.labels is not None
        return Scores(self.labels, logits, log_norm)


def read_layers(path: Path, width: int, device: str) -> list[tuple[Tensor, Tensor | None]]:
    """(weight[out, in], bias[out] or None) of each layer as float32; the first takes `width` numbers."""
    try:
        tensors = load_file(path, device=device)
    except (OSError, SafetensorError) as error:
        raise ConfigError("weights", str(path), f"cannot be read: {error}") from None
    named: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _NAME.fullmatch(name)
        if match is None:
            reason = f"has a tensor {name!r}; nn.Sequential of linear layers has '0.weight', '0.bias', ..."
            raise ConfigError("weights", str(path), reason)
        named.setdefault(int(match[1]), {})[match[2]] = tensor.float()
    layers: list[tuple[Tensor, Tensor | None]] = []
    for number in sorted(named):
        weight, bias = named[number].get("weight"), named[number].get("bias")
        if weight is None or weight.dim() != 2 or weight.shape[1] != width:
            shape = None if weight is None else list(weight.shape)
            raise ConfigError("weights", str(path), f"{number}.weight has shape {shape}, not [*, {width}]")
        width = len(weight)
        if bias is not None and list(bias.shape) != [width]:
            reason = f"{number}.bias has shape {list(bias.shape)}, not [{width}]"
            raise ConfigError("weights", str(path), reason)
        layers.append((weight, bias))
    if not layers:
        raise ConfigError("weights", str(path), "has no layers")
    return layers
