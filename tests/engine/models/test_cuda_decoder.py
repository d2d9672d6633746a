"""The CUDA decoder on the CPU: bf16 equals the eager decoder, 8 bits stay near it, packed equals single,
exports."""

from __future__ import annotations

import pytest
import torch

from engine.build.calibration import calibrate
from engine.build.compilation import export_decoder
from engine.models.architecture import Architecture, Rope
from engine.models.cuda_decoder import CudaDecoder
from engine.models.cuda_weights import prepare_weights, restore_weights
from engine.models.decoder import PackedDecoder, no_constant
from engine.models.plan import Plan, choose_plan
from engine.packed import BatchBounds, PackedBatch, pack
from engine.prefixes import ConstantPrefix, Prefixes, Rules
from random_decoders import random_weights

BOUNDS = BatchBounds(8, 256, 64)
SAMPLES = [[5, 9, 2], [7] * 40, [1], list(range(30))]


def make_architecture(qk_norm: bool = True, bias: bool = False, heads: int = 4) -> Architecture:
    inv_freq = tuple((1.0 / 10000 ** (torch.arange(0, 64, 2) / 64)).tolist())
    return Architecture(
        vocab_size=64, hidden_size=128, intermediate_size=256, num_layers=3, num_heads=heads, num_kv_heads=2,
        head_dim=64, norm_eps=1e-6, rope=Rope("default", inv_freq, 1.0), qk_norm=qk_norm, qkv_bias=bias,
    )  # fmt: skip


def make_eager(architecture: Architecture, weights: dict[str, torch.Tensor]) -> PackedDecoder:
    wide = {name: weight.float() for name, weight in weights.items()}
    return PackedDecoder.from_weights(architecture, wide, 64)


def make_cuda(architecture: Architecture, weights: dict[str, torch.Tensor], plan: Plan) -> CudaDecoder:
    scales = calibrate(make_eager(architecture, weights), [pack(SAMPLES)])
    prepared = prepare_weights(weights, architecture, plan, max_seqlen=64, input_scales=scales)
    return CudaDecoder.from_weights(architecture, prepared, plan, BOUNDS)


def run(decoder: torch.nn.Module, samples: list[list[int]]) -> torch.Tensor:
    packed = pack(samples)
    with torch.inference_mode():
        out: torch.Tensor = decoder(packed.input_ids, packed.positions, packed.cu_seqlens)
    return out[: packed.num_samples].float()


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize(
    ("architecture", "precision", "static", "tolerance"),
    [
        (make_architecture(), "bf16", False, 0.02),
        (make_architecture(qk_norm=False, bias=True, heads=6), "bf16", False, 0.02),
        (make_architecture(), "fp8", False, 0.1),
        (make_architecture(), "fp8", True, 0.15),
    ],
)
def test_near_the_eager_decoder(
    architecture: Architecture, precision: str, static: bool, tolerance: float
) -> None:
    weights = random_weights(architecture, torch.bfloat16)
    plan = choose_plan(architecture, precision, arch=90, static=static)
    got = run(make_cuda(architecture, weights, plan), SAMPLES)
    assert error(got, run(make_eager(architecture, weights), SAMPLES)) < tolerance


def test_packed_equals_single() -> None:
    architecture = make_architecture()
    decoder = make_cuda(
        architecture,
        random_weights(architecture, torch.bfloat16),
        choose_plan(architecture, "fp8", arch=90, static=True),
    )
    packed = run(decoder, SAMPLES)
    single = torch.cat([run(decoder, [sample]) for sample in SAMPLES])
    assert error(packed, single) < 0.02


def test_padding_changes_nothing() -> None:
    architecture = make_architecture()
    decoder = make_cuda(
        architecture,
        random_weights(architecture, torch.bfloat16),
        choose_plan(architecture, "bf16", arch=90, static=False),
    )
    packed = pack(SAMPLES)
    ids = torch.cat([packed.input_ids, torch.full((22,), 3)])
    positions = torch.cat([packed.positions, torch.zeros(22, dtype=torch.int64)])
    borders = torch.cat([packed.cu_seqlens, packed.cu_seqlens[-1:].repeat(4)])
    with torch.inference_mode():
        padded = decoder(ids, positions, borders)[: len(SAMPLES)].float()
    assert torch.equal(padded, run(decoder, SAMPLES))


def test_one_exported_graph_serves_any_sizes() -> None:
    architecture = make_architecture()
    decoder = make_cuda(
        architecture,
        random_weights(architecture, torch.bfloat16),
        choose_plan(architecture, "fp8", arch=90, static=True),
    )
    exported = export_decoder(decoder, BOUNDS, torch.device("cpu")).module()
    for samples in (SAMPLES, [[1, 2]], [[3] * 64] * 4):
        assert torch.equal(run(exported, samples), run(decoder, samples))


def test_a_plan_says_what_it_cannot_serve() -> None:
    plan = choose_plan(make_architecture(), "fp8", arch=80, static=True)
    assert not plan.quantises
    assert "sm_80" in plan.notes[0]
    assert Plan.from_manifest(plan.to_manifest()) == plan


INSTRUCTION, CONSTANT = tuple(range(20)), tuple(range(40, 60))
REQUESTS = [
    [(*CONSTANT, *INSTRUCTION, 3), (*CONSTANT, *INSTRUCTION, 5, 6, 7)],
    [(9, 9)],
    [(*CONSTANT, 1), (*CONSTANT[:12], 2)],
    [(*INSTRUCTION, 4)] * 2,
]


def constant_prefix(architecture: Architecture, weights: dict[str, torch.Tensor]) -> ConstantPrefix:
    decoder = PackedDecoder.from_weights(architecture, weights, 64)
    with torch.inference_mode():
        return ConstantPrefix(CONSTANT, decoder.keys_values(torch.tensor(CONSTANT)))


def run_packed(decoder: torch.nn.Module, packed: PackedBatch) -> torch.Tensor:
    assert packed.prefixes is not None
    with torch.inference_mode():
        out: torch.Tensor = decoder(
            packed.input_ids, packed.positions, packed.cu_seqlens, packed.prefixes, packed.constant
        )
    return out[: packed.num_samples].float()


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.02), ("fp8", 0.1)])
def test_prefixes(precision: str, tolerance: float) -> None:
    """Near the same decoder without them, and no further from the unquantised one."""
    architecture = make_architecture()
    weights = random_weights(architecture, torch.bfloat16)
    plan = choose_plan(architecture, precision, arch=90, static=False)
    decoder = make_cuda(architecture, weights, plan)
    restored = restore_weights(prepare_weights(weights, architecture, plan, max_seqlen=64), architecture)
    packed, saved = Prefixes(constant_prefix(architecture, restored), Rules(1, 1, 1)).pack(REQUESTS)
    assert [(each.constant > 0, each.request > 0) for each in saved] == [
        (True, True), (False, False), (True, False), (False, True),
    ]  # fmt: skip
    samples = [list(sample) for request in REQUESTS for sample in request]
    got = run_packed(decoder, packed)
    whole, exact = run(decoder, samples), run(make_eager(architecture, weights), samples)
    assert error(got, whole) < tolerance
    assert error(got, exact) < 1.15 * error(whole, exact) + 0.002
    exported = export_decoder(
        decoder, BOUNDS, torch.device("cpu"), no_constant(architecture, torch.bfloat16, torch.device("cpu"))
    ).module()
    assert torch.equal(run_packed(exported, packed), got)


def test_restored_weights_are_the_quantised_ones() -> None:
    architecture = make_architecture()
    weights = random_weights(architecture, torch.bfloat16)
    for precision, tolerance in (("bf16", 0.0), ("fp8", 0.04)):
        plan = choose_plan(architecture, precision, arch=90, static=False)
        restored = restore_weights(prepare_weights(weights, architecture, plan, max_seqlen=64), architecture)
        assert set(restored) == set(weights)
        for name, weight in weights.items():
            assert error(restored[name].float(), weight.float()) <= tolerance
