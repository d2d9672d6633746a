"""The eager definition of a packed decoder: what is exported, compiled, and compared with transformers.

Inference only. The module owns its parameters; a compiled package gets the same tensors under the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self, cast

import torch
from torch import Tensor, nn

from engine.models.architecture import Architecture
from engine.models.layers import DecoderLayer, RMSNorm, Rotation


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

    def forward(self, input_ids: Tensor, positions: Tensor, cu_seqlens: Tensor) -> Tensor:
        """input_ids int64[T], positions int64[T], cu_seqlens int32[S+1] -> hidden[S, hidden_size].

        One row a sample: its last token after the final norm. Past the last layer's attention nothing else is
        computed, since no other token is read.
        """
        x = self.embed_tokens(input_ids)
        rotation = self.rotation(positions, x.dtype)
        last_token = cu_seqlens[1:].long() - 1
        *earlier, final = self.layers
        for layer in earlier:
            x = layer(x, rotation, cu_seqlens)
        x = final(x, rotation, cu_seqlens, last_token)
        normed: Tensor = self.norm(x)
        return normed
