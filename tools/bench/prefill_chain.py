"""A whole model of random layers as one CUDA graph: embedding rows, work list, every layer. What the kernel
benchmark times.

Contract: one object a model; `capture` makes a graph with its own static inputs; the current device's current
stream.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.ops.hopper.layer import Batch, Stream, run_layers
from engine.ops.hopper.plan import plan
from engine.ops.hopper.rows import embed
from engine.ops.hopper.scratch import scratch
from engine.ops.hopper.stack import attention_blocks
from engine.ops.hopper.weights import LayerWeights, prepare_layer
from tools.bench.synthetic import ModelShape, Trace, plain_layer, random_source, rope_tables

Inputs = tuple[Tensor, Tensor, Tensor]  # ids, positions, cu_seqlens
VOCABULARY = 32768
CALIBRATION = [128] * 4


@dataclass(frozen=True)
class Captured:
    """A graph and what it writes: the stream after the last layer."""

    graph: torch.cuda.CUDAGraph
    x: Tensor
    step: Callable[[], Tensor]  # keeps the static inputs alive


class Chain:
    """Weights of every layer, calibrated on random tokens."""

    def __init__(
        self, model: ModelShape, precision: dict[str, torch.dtype], library: str, device: str = "cuda"
    ) -> None:
        """precision: element type by matrix, the same in every layer."""
        torch.manual_seed(0)
        self.model, self.precision, self.library, self.device = model, precision, library, device
        self.rope = rope_tables(model.layer.head_dim, model.rope_base, 4096, device)
        self.table = torch.randn(VOCABULARY, model.layer.hidden, device=device).bfloat16()
        x = self.table[torch.randint(0, VOCABULARY, (sum(CALIBRATION),), device=device)].float()
        traces: list[Trace] = []
        for index in range(model.num_layers):
            source = random_source(model.layer, index, device)
            traces.append(plain_layer(model.layer, source, x, CALIBRATION, self.rope))
            x = traces[-1].y
        factors = [trace.factors(precision) for trace in traces]
        after = [f.qkv for f in factors[1:]] + [1.0]
        self.first_scales = torch.tensor([factors[0].qkv, 1.0], device=device)
        self.layers: list[LayerWeights] = [
            prepare_layer(model.layer, random_source(model.layer, i, device), precision, factors[i], after[i])
            for i in range(model.num_layers)
        ]

    def plain(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """The same model in float32 with unquantised weights."""
        x = self.table[ids].float()
        for index in range(self.model.num_layers):
            x = plain_layer(
                self.model.layer, random_source(self.model.layer, index, self.device), x, lengths, self.rope
            ).y
        return x

    def batch(self, lengths: Sequence[int], seed: int = 1) -> Inputs:
        """Random ids int64[T], positions int64[T], cu_seqlens int32[S + 1]."""
        generator = torch.Generator(self.device).manual_seed(seed)
        ids = torch.randint(0, VOCABULARY, (sum(lengths),), generator=generator, device=self.device)
        positions = torch.cat([torch.arange(n) for n in lengths]).to(self.device)
        return ids, positions, torch.tensor([0, *lengths], device=self.device).cumsum(0).int()

    def steps(
        self, inputs: Inputs, *, max_sms: int = 0, last_only: bool = False, chained: bool = True
    ) -> Callable[[], Tensor]:
        """Enqueues a forward pass over static inputs when called; chained: one launch for a layer's GEMMs."""
        ids, positions, cu_seqlens = inputs
        shape, layers = self.model.layer, self.layers
        blocks = attention_blocks(torch.device(self.device), max_sms)
        last = cu_seqlens[1:].long() - 1 if last_only else None

        def step() -> Tensor:
            items, offsets = plan(self.library, cu_seqlens, positions, shape.num_q, shape.num_kv, blocks)
            work = scratch(self.library, positions, len(layers) - 1) if chained else None
            stream: Stream = embed(self.library, ids, self.table, self.first_scales, self.precision["qkv"])
            batch = Batch(positions, items, offsets, *self.rope, work, max_sms, chain_integers=True)
            return run_layers(self.library, shape, layers, stream, batch, last=last)[0]

        return step

    def capture(self, step: Callable[[], Tensor]) -> Captured:
        """One graph of `step`."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())  # the inputs were made there
        with torch.cuda.stream(stream):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x = step()
        return Captured(graph, x, step)
