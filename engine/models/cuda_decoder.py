"""The packed decoder on CUDA: the graph of engine.models.decoder from operations of our own, per a plan.

Layers go the portable or the hopper path; consecutive ones of the latter are one operation.

Runs on a CPU too, slowly, through the operations' oracles: the plain-torch emulation of what the device
computes, 8-bit rounding included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.architecture import Architecture
from engine.models.cuda_layers import Batch, CudaLayer
from engine.models.cuda_matrix import Norm
from engine.models.cuda_weights import COS, SIN, UNROTATE
from engine.models.hopper_layers import COS as HOPPER_COS
from engine.models.hopper_layers import SIN as HOPPER_SIN
from engine.models.hopper_layers import HopperBatch, HopperLayer, run_hopper
from engine.models.plan import Plan
from engine.ops.portable.attention import tile_tokens
from engine.ops.portable.attention_tiles import attention_tiles
from engine.ops.portable.norm import add_rms_norm
from engine.packed import BatchBounds


class CudaDecoder(nn.Module):
    """Inputs and output of PackedDecoder. Rows beyond cu_seqlens[-1] are padding: computed, never read."""

    rope_cos: Tensor
    rope_sin: Tensor
    hopper_cos: Tensor
    hopper_sin: Tensor
    unrotate: Tensor

    def __init__(
        self, architecture: Architecture, plan: Plan, bounds: BatchBounds, positions: int | None = None
    ) -> None:
        """`positions`: how many the rotary tables have, where they are more than a sample's tokens."""
        super().__init__()
        a, positions = architecture, positions or bounds.tokens_per_sample
        self.embed_tokens = nn.Embedding(a.vocab_size, a.hidden_size, dtype=torch.bfloat16)
        self.architecture, self.runs, self.library = a, plan.runs(), plan.library or ""
        self.layers = nn.ModuleList(
            HopperLayer(a, layer, after)
            if layer.path == "hopper"
            else CudaLayer(a, layer, plan.inputs(index))
            for index, (layer, after) in enumerate(zip_longest(plan.layers, plan.layers[1:]))
        )
        if plan.rotated:
            self.register_buffer(UNROTATE, torch.empty(a.hidden_size, a.hidden_size))
        self.rotated = plan.rotated
        self.norm = Norm(a.hidden_size)
        self.eps = a.norm_eps
        self.tile_tokens = tile_tokens(a.num_heads, a.num_kv_heads)
        self.max_segments, self.max_seqlen = bounds.segments + 1, bounds.tokens_per_sample
        for name in (COS, SIN):
            self.register_buffer(name, torch.empty(positions, a.head_dim // 2))
        if any(path == "hopper" for path, _ in self.runs):
            for name in (HOPPER_COS, HOPPER_SIN):
                table = torch.empty(positions, a.head_dim // 2, dtype=torch.bfloat16)
                self.register_buffer(name, table)

    @classmethod
    def from_weights(
        cls,
        architecture: Architecture,
        weights: Mapping[str, Tensor],
        plan: Plan,
        bounds: BatchBounds,
        positions: int | None = None,
    ) -> Self:
        """A decoder over exactly the tensors of prepare_weights, none copied; RuntimeError names what does
        not fit."""
        with torch.device("meta"):
            decoder = cls(architecture, plan, bounds, positions)
        decoder.load_state_dict(weights, strict=True, assign=True)
        return decoder.requires_grad_(False).eval()

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        prefixes: Tensor | None = None,
        constant: Tensor | None = None,
    ) -> Tensor:
        """PackedDecoder's inputs -> bf16[S, hidden_size], normed.

        One row a segment, its last token; a segment without tokens repeats another's row.
        """
        paths = {path for path, _ in self.runs}
        portable = self._batch(positions, cu_seqlens) if "portable" in paths else None
        before = None if prefixes is None or constant is None else (prefixes, constant)
        last_token = (cu_seqlens[1:].long() - 1).clamp_min(0)
        x: Tensor | None = None
        delta: Tensor | None = None
        for path, indices in self.runs:
            layers: list[Any] = [self.layers[index] for index in indices]
            last = last_token if indices.stop == len(self.layers) else None
            if path == "hopper":
                x = None if x is None else _without_padding(x if delta is None else x + delta, cu_seqlens)
                hopper = self._hopper_batch(positions, cu_seqlens, before, indices)
                x, delta = self._run_hopper(layers, hopper, input_ids, x, last), None
                continue
            x = F.embedding(input_ids, self.embed_tokens.weight) if x is None else x
            for index, layer in zip(indices, layers, strict=True):
                given = portable
                if given is not None and before is not None:
                    keys, values = before[1][index, 0], before[1][index, 1]
                    given = replace(given, before=(before[0], keys, values))
                x, delta = layer(x, delta, given, last if layer is layers[-1] else None)
        assert x is not None
        return self.finish(x, delta)

    def finish(self, x: Tensor, delta: Tensor | None) -> Tensor:
        """The stream after the last layer -> bf16 rows, normed, in the model's own channels."""
        if not self.rotated:
            return add_rms_norm(x, delta, self.norm.weight, self.eps)[1].values
        rows = x.float() if delta is None else x.float() + delta.float()
        normed = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + self.eps)
        return (normed @ self.unrotate).bfloat16()

    def _run_hopper(
        self, layers: list[Any], batch: HopperBatch, input_ids: Tensor, x: Tensor | None,
        last: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Embedding included where no layer ran before."""
        if x is None:
            table = self.embed_tokens.weight
            return run_hopper(self.architecture, layers, batch, table, ids=input_ids, last=last)
        return run_hopper(self.architecture, layers, batch, x, last=last)

    def _batch(self, positions: Tensor, cu_seqlens: Tensor) -> Batch:
        tiles = attention_tiles(
            cu_seqlens, positions,
            tokens=self.tile_tokens, max_samples=self.max_segments, max_seqlen=self.max_seqlen,
        )  # fmt: skip
        return Batch(positions, cu_seqlens, tiles, (self.rope_cos, self.rope_sin))

    def _hopper_batch(
        self, positions: Tensor, cu_seqlens: Tensor, before: tuple[Tensor, Tensor] | None, run: range
    ) -> HopperBatch:
        tables = (self.hopper_cos, self.hopper_sin)
        given = () if before is None else (before[0], before[1][run.start : run.stop])
        return HopperBatch(self.library, positions, cu_seqlens, tables, *given)


def _without_padding(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """x with zeros past the last segment. Portable attention leaves those rows as it found them, and the
    hopper one multiplies them: by zero, but NaN stays NaN."""
    real = torch.arange(x.shape[0], device=x.device) < cu_seqlens[-1]
    return torch.where(real.unsqueeze(-1), x, 0.0)
