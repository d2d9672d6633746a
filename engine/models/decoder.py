"""The eager definition of a packed decoder: what is exported, compiled, and compared with transformers.

Inference only. The module owns its parameters; a compiled package gets the same tensors under the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self, cast

import torch
from torch import Tensor, nn

from engine.models.architecture import Architecture
from engine.models.layers import Before, DecoderLayer, RMSNorm, Rotation
from engine.packed import MIN_SAMPLES


class Decoder(nn.Module):
    """The parameters of a decoder; `max_seqlen` is the longest sample that may come. Subclasses run them."""

    inv_freq: Tensor

    def __init__(self, architecture: Architecture, max_seqlen: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(architecture.vocab_size, architecture.hidden_size)
        layers = [DecoderLayer(architecture, max_seqlen) for _ in range(architecture.num_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(architecture.hidden_size, architecture.norm_eps)
        self.rope_scaling = architecture.rope.scaling
        self.register_buffer("inv_freq", torch.tensor(architecture.rope.inv_freq))

    @classmethod
    def from_weights(cls, architecture: Architecture, weights: Mapping[str, Tensor], max_seqlen: int) -> Self:
        """A decoder over exactly these tensors, none copied; RuntimeError names what is missing."""
        with torch.device("meta"):
            decoder = cls(architecture, max_seqlen)
        decoder.load_state_dict(weights, strict=True, assign=True)
        return decoder.requires_grad_(False).eval()

    def each_layer(self) -> list[DecoderLayer]:
        return [cast(DecoderLayer, layer) for layer in self.layers]

    def rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """positions int64[T] -> cos and sin, [T, 1, head_dim / 2]."""
        angles = positions[:, None, None].float() * self.inv_freq
        return (angles.cos() * self.rope_scaling).to(dtype), (angles.sin() * self.rope_scaling).to(dtype)


class PackedDecoder(Decoder):
    """All samples in one pass without padding."""

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        prefixes: Tensor | None = None,
        constant: Tensor | None = None,
    ) -> Tensor:
        """input_ids int64[T], positions int64[T], cu_seqlens int32[S+1] -> hidden[S, hidden_size].

        One row a segment: its last token after the final norm. Past the last layer's attention nothing else
        is computed, since no other token is read. prefixes int32[S, 2] and constant[L, 2, P, Hkv, D], both or
        neither: what ops.packed_attention says, keys and values of the constant prefix by layer.
        """
        x = self.embed_tokens(input_ids)
        rotation = self.rotation(positions, x.dtype)
        rows = cu_seqlens[1:].long() - 1
        last = len(self.layers) - 1
        for index, layer in enumerate(self.each_layer()):
            before = None
            if prefixes is not None and constant is not None:
                before = Before(prefixes, (constant[index, 0], constant[index, 1]))
            x = layer(x, rotation, cu_seqlens, rows if index == last else None, before)
        normed: Tensor = self.norm(x)
        return normed

    def keys_values(self, input_ids: Tensor) -> Tensor:
        """input_ids int64[P] of one sample -> its keys and values [L, 2, P, Hkv, D], keys rotated."""
        x = self.embed_tokens(input_ids)
        rotation = self.rotation(torch.arange(len(input_ids), device=input_ids.device), x.dtype)
        cu_seqlens = torch.tensor([0, len(input_ids)], dtype=torch.int32, device=input_ids.device)
        kept = []
        for layer in self.each_layer():
            _, k, v = layer.attention.project(layer.attention_norm(x), rotation)
            kept.append(torch.stack((k, v)))
            x = layer(x, rotation, cu_seqlens)
        return torch.stack(kept)


def no_constant(architecture: Architecture, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Keys and values for a batch without a constant prefix: the fewest rows that a package takes, unread."""
    a = architecture
    shape = (a.num_layers, 2, MIN_SAMPLES, a.num_kv_heads, a.head_dim)
    return torch.zeros(shape, dtype=dtype, device=device)
