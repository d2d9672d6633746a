"""The two passes of a beam search on CUDA, over CudaDecoder's tensors: what is exported for it.

Keys and values are written where the search keeps them, in buffers that are the caller's. Layers go the
portable path. Runs on a CPU too, through the operations' oracles.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor

from engine.models.cuda_decoder import CudaDecoder
from engine.models.cuda_layers import CudaLayer
from engine.models.cuda_matrix import Product
from engine.ops.portable.attention import varlen_attention
from engine.ops.portable.kept_attention import kept_beam_attention
from engine.ops.portable.kept_rotary import Kept, head_norm_rope_keep
from engine.ops.portable.quantised import Activation


class _BeamPass(CudaDecoder):
    """What both passes share."""

    def each_layer(self) -> list[CudaLayer]:
        return [cast(CudaLayer, layer) for layer in self.layers]

    def finish(self, x: Tensor, delta: Tensor | Product | None) -> Tensor:
        """As CudaDecoder's, of a product too."""
        if not isinstance(delta, Product):
            return super().finish(x, delta)
        if self.rotated:
            return super().finish(x, delta.make())
        return delta.add_norm(x, self.norm, self.eps)[1].values


class CudaPromptDecoder(_BeamPass):
    """CudaDecoder that keeps the prompts' keys and values."""

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, positions: Tensor, cu_seqlens: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """CudaDecoder's inputs, keys and values[layers, 1, T, kv heads, head_dim] to be written ->
        bf16[S, hidden_size], normed."""
        batch = self._batch(positions, cu_seqlens)
        last_token = cu_seqlens[1:].long() - 1
        x, delta = self.embed_tokens.weight, None
        for index, layer in enumerate(self.each_layer()):
            x, normed = layer.before_attention(x, delta, None if index else input_ids)
            kept = Kept(keys, values, cu_seqlens[:1], index)  # slot 0: where the first sample begins
            attention = layer.attention
            q, k, v = head_norm_rope_keep(
                attention.qkv(normed), positions, (self.rope_cos, self.rope_sin), attention.norms, kept,
                heads=attention.heads, kv_heads=attention.kv_heads, eps=attention.eps,
                q_scale=attention.q_scale,
            )  # fmt: skip
            attended = varlen_attention(q, k, v, batch.tiles, cu_seqlens, scale=layer.output.input_scale)
            x, delta = layer.after_attention(
                x, attended, last_token if index + 1 == len(self.layers) else None
            )
        return self.finish(x, delta)


class CudaStepDecoder(_BeamPass):
    """One decode step of every beam, and the same for every step: `ancestors` says what each beam sees."""

    def forward(  # type: ignore[override]  # noqa: PLR0913, PLR0917 - what the package takes
        self, input_ids: Tensor, positions: Tensor, cu_seqlens: Tensor, prompt_keys: Tensor,
        prompt_values: Tensor, suffix_keys: Tensor, suffix_values: Tensor, ancestors: Tensor, slot: Tensor,
    ) -> Tensor:  # fmt: skip
        """input_ids and positions int64[R], R rows in S groups of equal size and one position each;
        cu_seqlens int32[S+1] of the prompts, whose keys and values CudaPromptDecoder wrote;
        suffix_*[layers, slots, R, kv heads, head_dim], whose `slot` int64[1] is written; ancestors
        int64[slots, R] -> bf16[R, hidden_size].
        """
        x, delta = self.embed_tokens.weight, None
        for index, layer in enumerate(self.each_layer()):
            x, normed = layer.before_attention(x, delta, None if index else input_ids)
            kept = Kept(suffix_keys, suffix_values, slot, index)
            attention = layer.attention
            attended = kept_beam_attention(
                attention.qkv(normed), positions, (self.rope_cos, self.rope_sin), attention.norms, kept,
                (prompt_keys, prompt_values), ancestors, cu_seqlens, heads=attention.heads,
                kv_heads=attention.kv_heads, eps=attention.eps, max_seqlen=self.max_seqlen,
            )  # fmt: skip
            x, delta = layer.after_attention(x, Activation(attended))
        return self.finish(x, delta)
