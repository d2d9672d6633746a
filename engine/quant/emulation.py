"""A whole decoder in plain torch, each of its matrices under a scheme of its own; where its weights are.

An emulation: sums of integers are the device's to the bit, everything else is float32 and rounded to bf16
where a device stores bf16 (`carrier`). Tokens that `exact` marks (a constant prefix) go through float32
matrices. Slow on purpose: a reference to measure with, not to serve with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.architecture import Architecture
from engine.models.layers import rotate
from engine.models.weights import EMBEDDING, INV_FREQ, MODULES
from engine.ops.packed_attention import packed_attention
from engine.packed import PackedBatch
from engine.quant.floats import Float32Matrix
from engine.quant.rows import Matrix, Rows

Place = tuple[int, str]  # layer, kind: qkv, output, gate_up, down
Observer = Callable[[int, str, Rows], None]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q, k, v [T, heads, D] -> [T, heads, D]
NORMS = {"qkv": "attention_norm", "gate_up": "mlp_norm"}


@dataclass(frozen=True)
class Stream:
    """The residual x[T, H] and its root mean square one step before, [T, 1] or None at the first step."""

    x: Tensor
    before: Tensor | None


@dataclass(frozen=True)
class Batch:
    """A packed batch with its rotations, and which tokens stay in full precision (bool[T] or None); tensors
    are where the decoder is."""

    packed: PackedBatch
    cu_seqlens: Tensor
    rotation: tuple[Tensor, Tensor]
    exact: Tensor | None


class EmulatedDecoder:
    """`weights`: float32, PackedDecoder's names; `unrotate`: see engine.quant.rotation, None: not rotated."""

    def __init__(
        self, architecture: Architecture, weights: Mapping[str, Tensor], unrotate: Tensor | None = None,
        carrier: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        self.architecture = architecture
        self._weights = weights
        self.rotated = unrotate is not None
        self._unrotate = torch.diag(weights["norm.weight"]) if unrotate is None else unrotate
        self._carrier = carrier
        places = [(layer, kind) for layer in range(architecture.num_layers) for kind in MODULES]
        self.plain = {place: Float32Matrix(self.folded(place)) for place in places}

    @property
    def device(self) -> torch.device:
        return self._unrotate.device

    def folded(self, place: Place) -> Tensor:
        """float32[N, K]: a matrix with the norm before it folded in."""
        layer, kind = place
        weight = self._weights[f"layers.{layer}.{MODULES[kind]}.weight"].float()
        if kind not in NORMS:
            return weight
        return weight * self._weights[f"layers.{layer}.{NORMS[kind]}.weight"].float()

    def begin(self, packed: PackedBatch, exact: Tensor | None = None) -> tuple[Stream, Batch]:
        """The stream at the first layer; the tokens may be elsewhere than the decoder."""
        ids, positions, borders = (
            tensor.to(self.device) for tensor in (packed.input_ids, packed.positions, packed.cu_seqlens)
        )
        exact = None if exact is None else exact.to(self.device)
        angles = positions[:, None, None].float() * self._weights[INV_FREQ].float()
        scaling = self.architecture.rope.scaling
        x = self._store(self._weights[EMBEDDING][ids].float())
        rotation = angles.cos() * scaling, angles.sin() * scaling
        return Stream(x, None), Batch(packed, borders, rotation, exact)

    def step(
        self, layer: int, stream: Stream, batch: Batch, matrices: Mapping[Place, Matrix],
        observe: Observer | None = None, attend: Attend | None = None,
    ) -> Stream:  # fmt: skip
        """One layer. A place that `matrices` does not name is float32; `attend`: to something else than the
        batch's own tokens."""
        x = stream.x

        def apply(kind: str, rows: Rows) -> Tensor:
            if observe is not None:
                observe(layer, kind, rows)
            plain = self.plain[layer, kind]
            matrix = matrices.get((layer, kind), plain)
            product = matrix(rows)
            if batch.exact is not None and matrix is not plain:
                product[batch.exact] = plain(rows.take(batch.exact))
            bias = self._weights.get(f"layers.{layer}.{MODULES[kind]}.bias")
            return product if bias is None else product + bias.float()

        qkv_rows, rms = self._normed(x, stream.before)
        x = self._store(x + apply("output", Rows(self._attend(layer, apply("qkv", qkv_rows), batch, attend))))
        gate_up_rows, rms = self._normed(x, rms)
        gate, up = apply("gate_up", gate_up_rows).chunk(2, dim=-1)
        return Stream(self._store(x + apply("down", Rows(F.silu(gate) * up))), rms)

    def finish(self, stream: Stream, batch: Batch) -> Tensor:
        """hidden float32[num_samples, H] after the final norm, in the plain model's channels."""
        rows = stream.x[batch.cu_seqlens[1 : batch.packed.num_samples + 1].long() - 1]
        normed, _ = self._normed(rows, None)
        return normed.inputs @ self._unrotate

    def run(
        self, packed: PackedBatch, matrices: Mapping[Place, Matrix], exact: Tensor | None = None,
        attend: Attend | None = None,
    ) -> Tensor:  # fmt: skip
        """All layers: hidden float32[num_samples, H]."""
        stream, batch = self.begin(packed, exact)
        for layer in range(self.architecture.num_layers):
            stream = self.step(layer, stream, batch, matrices, attend=attend)
        return self.finish(stream, batch)

    def _attend(self, layer: int, qkv: Tensor, batch: Batch, attend: Attend | None) -> Tensor:
        a = self.architecture
        heads = qkv.reshape(len(qkv), -1, a.head_dim)
        q, k, v = torch.split(heads, [a.num_heads, a.num_kv_heads, a.num_kv_heads], dim=1)
        if a.qk_norm:
            q, k = (self._head_norm(x, layer, name) for x, name in ((q, "q_norm"), (k, "k_norm")))
        q, k, v = (self._store(x) for x in (rotate(q, batch.rotation), rotate(k, batch.rotation), v))
        if attend is not None:
            return attend(layer, q, k, v).flatten(1)
        return packed_attention(q, k, v, batch.cu_seqlens, batch.packed.max_seqlen).flatten(1)

    def _head_norm(self, x: Tensor, layer: int, name: str) -> Tensor:
        factor = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.architecture.norm_eps)
        return x * factor * self._weights[f"layers.{layer}.attention.{name}.weight"].float()

    def _normed(self, x: Tensor, before: Tensor | None) -> tuple[Rows, Tensor]:
        rms = (x.square().mean(-1, keepdim=True) + self.architecture.norm_eps).sqrt()
        return Rows(x, 1.0 / rms, before), rms

    def _store(self, x: Tensor) -> Tensor:
        return x.to(self._carrier).float()
