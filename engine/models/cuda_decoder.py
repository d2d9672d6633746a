"""The packed decoder on CUDA: the graph of engine.models.decoder from the portable operations, per a plan.

Runs on a CPU too, slowly, through the operations' oracles: the plain-torch emulation of what the device
computes, 8-bit rounding included.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.architecture import Architecture
from engine.models.cuda_layers import Batch, CudaLayer, Norm
from engine.models.cuda_weights import COS, SIN
from engine.models.plan import Plan
from engine.ops.portable.attention import tile_tokens
from engine.ops.portable.attention_tiles import attention_tiles
from engine.ops.portable.norm import add_rms_norm
from engine.packed import BatchBounds


class CudaDecoder(nn.Module):
    """Inputs and output of PackedDecoder. Rows beyond cu_seqlens[-1] are padding: computed, never read."""

    rope_cos: Tensor
    rope_sin: Tensor

    def __init__(self, architecture: Architecture, plan: Plan, bounds: BatchBounds) -> None:
        super().__init__()
        a = architecture
        self.embed_tokens = nn.Embedding(a.vocab_size, a.hidden_size, dtype=torch.bfloat16)
        self.layers = nn.ModuleList(CudaLayer(a, layer, plan.scaling) for layer in plan.layers)
        self.norm = Norm(a.hidden_size)
        self.eps = a.norm_eps
        self.tile_tokens = tile_tokens(a.num_heads, a.num_kv_heads)
        self.max_samples, self.max_seqlen = bounds.samples + 1, bounds.tokens_per_sample
        for name in (COS, SIN):
            self.register_buffer(name, torch.empty(bounds.tokens_per_sample, a.head_dim // 2))

    @classmethod
    def from_weights(
        cls, architecture: Architecture, weights: Mapping[str, Tensor], plan: Plan, bounds: BatchBounds
    ) -> CudaDecoder:
        """A decoder over exactly the tensors of prepare_weights, none copied; RuntimeError names what does
        not fit."""
        with torch.device("meta"):
            decoder = cls(architecture, plan, bounds)
        decoder.load_state_dict(weights, strict=True, assign=True)
        return decoder.requires_grad_(False).eval()

    def forward(self, input_ids: Tensor, positions: Tensor, cu_seqlens: Tensor) -> Tensor:
        """input_ids int64[T], positions int64[T], cu_seqlens int32[S+1] -> bf16[S, hidden_size], normed.

        One row a sample, its last token; a sample without tokens repeats another's row.
        """
        tiles = attention_tiles(
            cu_seqlens, positions,
            tokens=self.tile_tokens, max_samples=self.max_samples, max_seqlen=self.max_seqlen,
        )  # fmt: skip
        batch = Batch(positions, cu_seqlens, tiles, (self.rope_cos, self.rope_sin))
        x, delta = F.embedding(input_ids, self.embed_tokens.weight), None
        *earlier, final = self.layers
        for layer in earlier:
            x, delta = layer(x, delta, batch)
        last_token = (cu_seqlens[1:].long() - 1).clamp_min(0)
        x, delta = final(x, delta, batch, last_token)
        return add_rms_norm(x, delta, self.norm.weight, self.eps)[1].values
