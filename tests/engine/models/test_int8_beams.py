"""The two passes of a search with int8 in them, on the CPU: near the eager ones, by the operations meant."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.beam.bounds import BeamBounds
from engine.build.cuda_beam_package import _export_prompts, _export_step, plan_beams
from engine.build.integers import round_decoder
from engine.models.architecture import Architecture
from engine.models.beam_decoder import PromptDecoder, StepDecoder
from engine.models.cuda_beam import CudaPromptDecoder, CudaStepDecoder
from engine.models.cuda_weights import UNROTATE, prepare_weights
from engine.models.plan import MATRICES, Plan, choose_plan, restrict_plan
from engine.packed import BatchBounds, PackedBatch, pack
from engine.quant.schemes import Form
from engine.quant.texts import Text
from random_decoders import make_architecture, random_weights

BOUNDS = BatchBounds(8, 256, 64)
SAMPLES = [[5, 9, 2], [7] * 40, [1], list(range(30))]
WIDTH, SLOTS = 3, 4
POSITIONS = BOUNDS.tokens_per_sample + SLOTS
BF16 = dict.fromkeys(MATRICES, "bf16")
INT8 = BF16 | {"gate_up": "int8_exact", "down": "int8_exact"}
STILL = BF16 | {"gate_up": "e4m3_static", "down": "int8_exact"}
PLANS: dict[str, tuple[Form, list[dict[str, str]]]] = {
    "all": ("stream", [INT8, INT8, INT8]),
    "mixed": ("stream", [INT8, BF16, INT8 | {"down": "bf16"}]),
    "still": ("heads", [STILL, BF16, STILL | {"gate_up": "bf16"}]),
}
ARCHITECTURES = {
    "fused": make_architecture(hidden_size=192, intermediate_size=256, qk_norm=True),
    "apart": make_architecture(
        hidden_size=160, intermediate_size=384, qkv_bias=True, output_bias=True, mlp_bias=True
    ),
}
Passes = tuple[CudaPromptDecoder, CudaStepDecoder]


def make(a: Architecture, weights: dict[str, Tensor], name: str) -> tuple[Plan, Passes]:
    form, layers = PLANS[name]
    plan = plan_beams(restrict_plan(choose_plan(a, "int8", arch=90, static=True), layers))
    texts = [Text(tuple(sample)) for sample in SAMPLES]
    made = round_decoder(a, weights, plan, texts, trusted=True, say=lambda _: None, form=form)
    prepared = prepare_weights(made.weights, a, made.plan, max_seqlen=POSITIONS, rounded=made.layers)
    prepared |= {name: prepared[name].bfloat16() for name in ("embed_tokens.weight", "norm.weight")}
    prepared |= {UNROTATE: made.unrotate}
    return made.plan, (
        CudaPromptDecoder.from_weights(a, prepared, made.plan, BOUNDS, POSITIONS),
        CudaStepDecoder.from_weights(a, prepared, made.plan, BOUNDS, POSITIONS),
    )


def error(got: Tensor, want: Tensor) -> float:
    return float((got.float() - want).norm() / want.norm())


def compare(a: Architecture, passes: Passes, eager: tuple[PromptDecoder, StepDecoder]) -> list[float]:
    """How far hidden states are off, of the prompts and of each step. Rotated values are not comparable."""
    packed = pack(SAMPLES)
    inputs = (packed.input_ids, packed.positions, packed.cu_seqlens)
    rows, cached = len(SAMPLES) * WIDTH, (a.num_kv_heads, a.head_dim)
    ours = torch.full((2, a.num_layers, 1, len(packed.input_ids), *cached), torch.nan).bfloat16()
    theirs = torch.full((2, a.num_layers, SLOTS, rows, *cached), torch.nan)
    suffix, ancestors = theirs.bfloat16(), torch.full((SLOTS, rows), -1)
    want, keys, values = eager[0](*inputs)
    errors = [error(passes[0](*inputs, *ours), want), error(ours[0, :, 0], keys)]
    for slot in range(SLOTS):
        given = (torch.randint(0, 64, (rows,)), _lengths(packed) + slot, packed.cu_seqlens)
        hidden = passes[1](*given, *ours, *suffix, ancestors, torch.tensor([slot]))
        want, *new = eager[1](*given, keys, values, *theirs, ancestors)
        theirs[0, :, slot], theirs[1, :, slot] = new
        errors.append(error(hidden, want))
        ancestors[slot] = torch.arange(rows)
    return errors


def _lengths(packed: PackedBatch) -> Tensor:
    return (packed.cu_seqlens[1:] - packed.cu_seqlens[:-1]).long().repeat_interleave(WIDTH)


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("name", PLANS)
def test_near_the_eager_passes(name: str, kind: str) -> None:
    a = ARCHITECTURES[kind]
    weights = random_weights(a)
    plan, passes = make(a, weights, name)
    assert plan.rotated
    assert {layer.fused_gate_up for layer in plan.layers} == {kind == "fused"}
    with torch.inference_mode():
        eager = PromptDecoder.from_weights(a, weights, 64), StepDecoder.from_weights(a, weights, 64)
        assert max(compare(a, passes, eager)) < (0.06 if name != "still" else 0.1)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_what_is_exported_are_the_int8_operations(kind: str) -> None:
    a = ARCHITECTURES[kind]
    _, (prompt, step) = make(a, random_weights(a), "all")
    for exported in (
        _export_prompts(prompt, BOUNDS, torch.device("cpu")),
        _export_step(step, BOUNDS, BeamBounds(4, 2, 4), torch.device("cpu")),
    ):
        called = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
        counts = {name: sum(f"boundgen.{name}." in each for each in called) for name in (
            "linear_int8", "linear_e4m3", "gate_up", "silu_mul",
        )}  # fmt: skip
        down, fused = a.num_layers, kind == "fused"
        assert counts == {
            "linear_int8": down if fused else 2 * down, "linear_e4m3": 0,
            "gate_up": down if fused else 0, "silu_mul": 0 if fused else down,
        }  # fmt: skip


def test_where_no_matrix_of_a_search_can_be_in_int8_nothing_is_rotated() -> None:
    a = make_architecture(hidden_size=192, intermediate_size=200)
    plan = plan_beams(choose_plan(a, "int8", arch=90, static=True))
    assert not plan.rotated
    assert not plan.quantises
    assert plan.notes[-1] == "beams: neither gate_up nor down can be in int8; every matrix stays bf16"
