"""The two passes of a beam search over PackedDecoder's parameters: what is exported for it.

Keys and values are returned, never written in place: whoever runs the passes keeps them. They come after
the rotation, so that a key is the same wherever it is read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.decoder import Decoder
from engine.ops.beam_attention import beam_attention
from engine.ops.packed_attention import packed_attention

Pass = tuple[Tensor, Tensor, Tensor]  # hidden states, then keys and values of every layer


class PromptDecoder(Decoder):
    """PackedDecoder that hands out the prompts' keys and values."""

    def forward(self, input_ids: Tensor, positions: Tensor, cu_seqlens: Tensor) -> Pass:
        """PackedDecoder's inputs -> hidden[S, hidden_size], keys, values[layers, T, kv heads, head_dim]."""
        x = self.embed_tokens(input_ids)
        rotation = self.rotation(positions, x.dtype)
        last_token = cu_seqlens[1:].long() - 1
        keys, values = [], []
        for index, layer in enumerate(self.each_layer()):
            q, k, v = layer.attention.project(layer.attention_norm(x), rotation)
            keys.append(k)
            values.append(v)
            attended = packed_attention(q, k, v, cu_seqlens, layer.attention.max_seqlen).flatten(-2)
            if index + 1 == len(self.layers):
                attended, x = attended[last_token], x[last_token]
            x = layer.after_attention(x, attended)
        return self.norm(x), torch.stack(keys), torch.stack(values)


class StepDecoder(Decoder):
    """One decode step of every beam, and the same for every step: `ancestors` says what each beam sees."""

    def forward(
        self, input_ids: Tensor, positions: Tensor, cu_seqlens: Tensor, prompt_keys: Tensor,
        prompt_values: Tensor, suffix_keys: Tensor, suffix_values: Tensor, ancestors: Tensor,
    ) -> Pass:  # fmt: skip
        """input_ids and positions int64[R], R rows in S groups of equal size; cu_seqlens int32[S+1] of the
        prompts, whose keys and values are as PromptDecoder gave them (padding after them is not read);
        suffix_*[layers, slots, R, kv heads, head_dim], ancestors int64[slots, R] ->
        hidden[R, hidden_size], new keys and values[layers, R, kv heads, head_dim].
        """
        x = self.embed_tokens(input_ids)
        rotation = self.rotation(positions, x.dtype)
        keys, values = [], []
        for index, layer in enumerate(self.each_layer()):
            q, k, v = layer.attention.project(layer.attention_norm(x), rotation)
            keys.append(k)
            values.append(v)
            prompt = prompt_keys[index], prompt_values[index]
            suffix = suffix_keys[index], suffix_values[index]
            attended = beam_attention(
                q, k, v, prompt, suffix, ancestors, cu_seqlens, layer.attention.max_seqlen
            )
            x = layer.after_attention(x, attended.flatten(-2))
        return self.norm(x), torch.stack(keys), torch.stack(values)
