"""Captured searches of a tiny random model, its decoders eager in place of packages: for tests on the CPU,
where graphs are acted out, and on a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.beam.bounds import BeamBounds
from engine.beam.frontier import Frontier
from engine.beam.head_weight import HeadWeight
from engine.beam.legal import LegalTensors
from engine.beam.search import SearchPlan
from engine.beam.trie import compile_trie
from engine.build.calibration import calibrate
from engine.build.cuda_beam_package import plan_beams
from engine.models.architecture import Architecture, Rope
from engine.models.cuda_beam import CudaPromptDecoder, CudaStepDecoder
from engine.models.cuda_weights import prepare_weights
from engine.models.decoder import PackedDecoder
from engine.models.plan import Precision, choose_plan
from engine.ops.portable.linear import quantise_weight
from engine.packed import BatchBounds, pack
from engine.runtime.beam_buckets import SearchSizes
from engine.runtime.beam_graphs import GraphBeamLanes
from engine.runtime.beam_lanes import BeamLanes, Passes
from engine.runtime.graph_lanes import GraphLanePool
from engine.runtime.native import Runner

VOCAB, STEPS, WIDTH = 64, 3, 6
BOUNDS = BatchBounds(samples=8, tokens=64, tokens_per_sample=20)
BEAM = BeamBounds(width=WIDTH, steps=STEPS, prompts=4)
SIZES = SearchSizes(WIDTH, BEAM.prompts, BOUNDS.tokens_per_sample, BOUNDS.tokens, STEPS)
PLAN = SearchPlan(STEPS)
PROMPTS = [[5, 6, 7], [1], [42] * 20, [9, 8, 7, 6, 5]]
INV_FREQ = tuple((1e-4 ** (torch.arange(0, 16, 2) / 16)).tolist())
ARCHITECTURE = Architecture(
    vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=16, norm_eps=1e-6, rope=Rope("default", INV_FREQ, 1.0), qk_norm=True,
)  # fmt: skip


class NoRunner:
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def constant_names(self) -> list[str]:
        return []

    def use_constants(self, constants: object) -> None:
        pass

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        rows = len(inputs[2]) - 1
        return [torch.zeros(rows, ARCHITECTURE.hidden_size, dtype=torch.bfloat16, device=self._device)]


class NoPool(GraphLanePool):
    """Lanes whose forward does nothing."""

    def open_runner(self) -> Runner:
        return NoRunner(self._device)


class EagerBeams(GraphBeamLanes):
    passes: tuple[Passes, Passes]

    def _open_passes(self) -> tuple[Passes, Passes]:
        return self.passes


OpenBeams = Callable[..., EagerBeams]


@dataclasses.dataclass(frozen=True)
class TinyModel:
    """The decoders' tensors; those of the eager decoder, from which they were made; the head."""

    weights: dict[str, Tensor]
    prepared: dict[str, Tensor]
    passes: tuple[Passes, Passes]
    head: HeadWeight


def make_model(precision: Precision = "bf16", device: str = "cpu") -> TinyModel:
    a = ARCHITECTURE
    generator = torch.Generator().manual_seed(0)
    shapes = {name: x.shape for name, x in PackedDecoder(a, 20).state_dict().items()}
    weights = {
        name: (torch.rand(x, generator=generator) + 0.5)
        if "norm" in name
        else torch.randn(x, generator=generator) * (x[-1] ** -0.5)
        for name, x in shapes.items()
    }
    weights = {name: x.to(device, torch.bfloat16) for name, x in weights.items()}
    weights["inv_freq"] = torch.tensor(INV_FREQ, device=device)
    scales = None
    if precision == "fp8":
        scales = calibrate(PackedDecoder.from_weights(a, weights, 20), [pack(PROMPTS)])
    plan = plan_beams(choose_plan(a, precision, arch=90, static=precision == "fp8"))
    positions = BOUNDS.tokens_per_sample + STEPS
    prepared = prepare_weights(weights, a, plan, max_seqlen=positions, input_scales=scales)
    prompt, step = (
        kind.from_weights(a, prepared, plan, BOUNDS, positions)
        for kind in (CudaPromptDecoder, CudaStepDecoder)
    )
    head = torch.randn(VOCAB, a.hidden_size, generator=generator).to(device, torch.bfloat16) / 4
    narrow = quantise_weight(head) if precision == "fp8" else ()
    passes: Any = tuple(lambda given, each=each: [each(*given)] for each in (prompt, step))
    return TinyModel(weights, prepared, passes, HeadWeight(head, *narrow))


def make_beams(model: TinyModel, lanes: int = 2) -> EagerBeams:
    device = model.head.weight.device
    pool = NoPool(
        Path("none/model.pt2"), model.prepared, BOUNDS, vocab_size=VOCAB, device=device, lanes=lanes
    )
    EagerBeams.passes = model.passes
    try:
        return EagerBeams(pool, Path("none"), BEAM, model.head, dataclasses.asdict(ARCHITECTURE), BOUNDS)
    except BaseException:
        pool.close()
        raise


def captured(
    beams: GraphBeamLanes, prompts: Sequence[list[int]], widths: list[int], plan: SearchPlan = PLAN,
    legal: LegalTensors | None = None,
) -> Frontier:  # fmt: skip
    """From a graph."""
    before = beams.fallbacks
    found = beams.pool.executor.submit(beams.search, pack(prompts), widths, plan, legal).result(60)
    assert beams.fallbacks == before
    return found


def plain(
    beams: GraphBeamLanes, prompts: Sequence[list[int]], widths: list[int], plan: SearchPlan = PLAN,
    legal: LegalTensors | None = None,
) -> Frontier:  # fmt: skip
    """Operation by operation."""
    given = (beams, pack(prompts), widths, plan, legal)
    return beams.pool.executor.submit(BeamLanes.search, *given).result(60)


def same(one: Frontier, other: Frontier) -> None:
    """Bit for bit."""
    for name, x in vars(one).items():
        y = vars(other)[name]
        assert (x is None) == (y is None), name
        assert x is None or (torch.equal(x, y) and x.dtype == y.dtype), name


def items(first: int, count: int) -> LegalTensors:
    """`count` sequences, or fewer, whose first tokens are the five from `first` on."""
    drawn = torch.randint(VOCAB, (count, STEPS + 1), generator=torch.Generator().manual_seed(first))
    drawn[:, 0] = first + drawn[:, 0] % 5
    trie, _ = compile_trie(drawn.int().numpy(), VOCAB)
    return trie.tensors()
