"""Captured searches acted out on the CPU: equal to those launched operation by operation, whatever a batch is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.beam.bounds import BeamBounds
from engine.beam.frontier import Frontier
from engine.beam.head_weight import HeadWeight
from engine.beam.legal import LegalTensors
from engine.beam.search import SearchPlan
from engine.beam.trie import compile_trie
from engine.models.architecture import Architecture, Rope
from engine.models.cuda_beam import CudaPromptDecoder, CudaStepDecoder
from engine.models.cuda_weights import prepare_weights
from engine.models.decoder import PackedDecoder
from engine.models.plan import choose_plan
from engine.ops.portable.linear import quantise_weight
from engine.packed import BatchBounds, pack
from engine.runtime.beam_buckets import SearchSizes
from engine.runtime.beam_graphs import GraphBeamLanes
from engine.runtime.beam_lanes import BeamLanes, Passes
from engine.runtime.graph_lanes import GraphLanePool
from engine.runtime.legal_slots import StaleLegalError
from engine.runtime.native import Runner

VOCAB, STEPS, WIDTH = 60, 3, 6
BOUNDS = BatchBounds(samples=8, tokens=64, tokens_per_sample=20)
BEAM = BeamBounds(width=WIDTH, steps=STEPS, prompts=4)
SIZES = SearchSizes(WIDTH, BEAM.prompts, BOUNDS.tokens_per_sample, BOUNDS.tokens)
PLAN = SearchPlan(STEPS)
PROMPTS = [[5, 6, 7], [1], [42] * 20, [9, 8, 7, 6, 5]]


class NoRunner:
    def constant_names(self) -> list[str]:
        return []

    def use_constants(self, constants: object) -> None:
        pass

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        return [torch.zeros(len(inputs[2]) - 1, 32, dtype=torch.bfloat16)]


class NoPool(GraphLanePool):
    """Lanes whose forward does nothing."""

    def open_runner(self) -> Runner:
        return NoRunner()


class EagerBeams(GraphBeamLanes):
    """Decoders in place of their packages."""

    passes: tuple[Passes, Passes]

    def _open_passes(self) -> tuple[Passes, Passes]:
        return self.passes


def make_beams(narrow: bool = False) -> EagerBeams:
    inv_freq = tuple((1e-4 ** (torch.arange(0, 16, 2) / 16)).tolist())
    a = Architecture(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4, num_kv_heads=2,
        head_dim=16, norm_eps=1e-6, rope=Rope("default", inv_freq, 1.0), qk_norm=True,
    )  # fmt: skip
    torch.manual_seed(0)
    weights = {
        name: (torch.rand(x.shape) + 0.5 if "norm" in name else torch.randn(x.shape) / 3).bfloat16()
        for name, x in PackedDecoder(a, 20).state_dict().items()
    } | {"inv_freq": torch.tensor(inv_freq)}
    plan = choose_plan(a, "bf16", arch=90, static=False)
    positions = BOUNDS.tokens_per_sample + STEPS
    prepared = prepare_weights(weights, a, plan, max_seqlen=positions)
    prompt, step = (
        kind.from_weights(a, prepared, plan, BOUNDS, positions) for kind in (CudaPromptDecoder, CudaStepDecoder)
    )
    head = torch.randn(64 if narrow else VOCAB, 32).bfloat16()
    pool = NoPool(
        Path("none/model.pt2"), prepared, BOUNDS, vocab_size=VOCAB, device=torch.device("cpu"), lanes=2
    )
    EagerBeams.passes = tuple(lambda given, each=each: [each(*given)] for each in (prompt, step))
    more = quantise_weight(head) if narrow else ()
    return EagerBeams(pool, Path("none"), BEAM, HeadWeight(head, *more), dataclasses.asdict(a), BOUNDS)


@pytest.fixture
def beams(acted_cuda: None) -> Iterator[EagerBeams]:
    del acted_cuda
    made = make_beams()
    yield made
    made.pool.close()


def captured(beams: EagerBeams, prompts: Sequence[list[int]], widths: list[int], *more: Any) -> Frontier:
    before = beams.fallbacks
    plan, *legal = more or (PLAN,)
    found = beams.pool.executor.submit(beams.search, pack(prompts), widths, plan, *legal).result(60)
    assert beams.fallbacks == before
    return found


def plain(beams: EagerBeams, prompts: Sequence[list[int]], widths: list[int], *more: Any) -> Frontier:
    given = more or (PLAN,)
    return beams.pool.executor.submit(BeamLanes.search, beams, pack(prompts), widths, *given).result(60)


def same(one: Frontier, other: Frontier) -> None:
    for name, x in vars(one).items():
        assert (x is None) == (vars(other)[name] is None), name
        assert x is None or (torch.equal(x, vars(other)[name]) and x.dtype == vars(other)[name].dtype), name


def test_every_batch_is_what_its_operations_give(beams: EagerBeams) -> None:
    beams.prepare(PLAN, SIZES)
    for count in (4, 1, 3, 2):
        for widths in ([WIDTH] * count, [1] * count, [WIDTH - i for i in range(count)]):
            for _ in range(2):  # on both lanes
                same(captured(beams, PROMPTS[:count], widths), plain(beams, PROMPTS[:count], widths))


def test_end_tokens_and_slices(beams: EagerBeams) -> None:
    plan = SearchPlan(2, tuple(range(0, 60, 3)), ((0, 60), (10, 55), (5, 48)))
    beams.prepare(plan, SIZES)
    beams.prepare(PLAN, SIZES)
    found = captured(beams, PROMPTS, [WIDTH] * 4, plan)
    same(found, plain(beams, PROMPTS, [WIDTH] * 4, plan))
    assert found.closed is not None
    assert bool(found.closed.any())
    same(captured(beams, PROMPTS, [WIDTH] * 4), plain(beams, PROMPTS, [WIDTH] * 4))


def test_what_was_not_prepared_is_counted_and_answered(beams: EagerBeams) -> None:
    beams.prepare(PLAN, SIZES)
    found = beams.pool.executor.submit(beams.search, pack(PROMPTS), [3] * 4, SearchPlan(1)).result(60)
    same(found, plain(beams, PROMPTS, [3] * 4, SearchPlan(1)))
    assert beams.fallbacks == 1


def test_a_failed_prompt_fails_alone(beams: EagerBeams) -> None:
    """A token whose embedding is NaN, which no beam may take."""
    plan = SearchPlan(STEPS, None, ((12, 60),) * (STEPS + 1))
    beams.prepare(plan, SIZES)
    (table,) = (x for name, x in beams.pool._weights.items() if name == "embed_tokens.weight")
    kept = table[11].clone()
    table[11] = torch.nan
    found = captured(beams, [PROMPTS[0], [3, 11, 2], PROMPTS[2]], [WIDTH] * 3, plan)
    table[11] = kept
    assert found.failed.tolist() == [False, True, False]
    good = captured(beams, [PROMPTS[0], [3, 12, 2], PROMPTS[2]], [WIDTH] * 3, plan)
    for sample in (0, 2):
        assert torch.equal(found.tokens[sample], good.tokens[sample])


def items(first: int, count: int) -> LegalTensors:
    drawn = torch.randint(VOCAB, (count, STEPS + 1), generator=torch.Generator().manual_seed(first))
    drawn[:, 0] = first + drawn[:, 0] % 5
    trie, _ = compile_trie(drawn.int().numpy(), VOCAB)
    return trie.tensors()


def test_items_are_swapped_between_two_batches(beams: EagerBeams) -> None:
    slots = beams.make_slots()
    versions = [items(first, count) for first, count in ((0, 50), (10, 50), (20, 40), (30, 5000))]
    served = slots.place(versions[0], None)
    beams.prepare(PLAN, SIZES, slots)
    old = served
    for number, version in enumerate(versions):
        if number:
            old, served = served, slots.place(version, served)
        assert served.slot == number % 2
        found = captured(beams, PROMPTS, [WIDTH] * 4, PLAN, served)
        same(found, plain(beams, PROMPTS, [WIDTH] * 4, PLAN, version))
        assert set(found.tokens[..., 0].flatten().tolist()) <= set(range(10 * number, 10 * number + 5))
    slots.place(versions[0], served)
    with pytest.raises(StaleLegalError):
        captured(beams, PROMPTS, [WIDTH] * 4, PLAN, old)
    same(captured(beams, PROMPTS, [4] * 4, PLAN, served), plain(beams, PROMPTS, [4] * 4, PLAN, versions[-1]))


@pytest.mark.usefixtures("acted_cuda")
def test_a_head_in_8_bits() -> None:
    beams = make_beams(narrow=True)
    for slices in (None, ((0, 60), (3, 17), (16, 64), (59, 64))):
        plan = SearchPlan(STEPS, None, slices)
        beams.prepare(plan, SIZES)
        found = captured(beams, PROMPTS[:2], [WIDTH] * 2, plan)
        same(found, plain(beams, PROMPTS[:2], [WIDTH] * 2, plan))
        beams._head = HeadWeight(beams._head.narrow.float().bfloat16() * beams._head.narrow_scale.bfloat16())
        wide = plain(beams, PROMPTS[:2], [WIDTH] * 2, plan)
        assert float((found.scores - wide.scores).abs().max()) < 0.5
        beams.pool.close()
        beams = make_beams(narrow=True)
    beams.pool.close()
