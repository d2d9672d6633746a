"""Products that the passes of a search leave to the norms: the same bits as products and norms apart."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor

from engine.beam.bounds import BeamBounds
from engine.build.calibration import calibrate
from engine.build.cuda_beam_package import _export_prompts, _export_step, plan_beams
from engine.models.architecture import Architecture
from engine.models.cuda_beam import CudaPromptDecoder, CudaStepDecoder
from engine.models.cuda_matrix import Matrix
from engine.models.cuda_weights import prepare_weights
from engine.models.decoder import PackedDecoder
from engine.models.plan import Precision, choose_plan
from engine.packed import BatchBounds, pack
from random_decoders import make_architecture, random_weights

BOUNDS = BatchBounds(8, 256, 64)
SAMPLES = [[5, 9, 2], [7] * 40, [1], list(range(30))]
WIDTH, SLOTS = 3, 2
Passes = tuple[CudaPromptDecoder, CudaStepDecoder]


def make(a: Architecture, precision: Precision) -> Passes:
    weights = random_weights(a, torch.bfloat16)
    scales = calibrate(PackedDecoder.from_weights(a, weights, 64), [pack(SAMPLES)])
    plan = plan_beams(choose_plan(a, precision, arch=90, static=True))
    prepared = prepare_weights(weights, a, plan, max_seqlen=64 + SLOTS, input_scales=scales)
    return (
        CudaPromptDecoder.from_weights(a, prepared, plan, BOUNDS, 64 + SLOTS),
        CudaStepDecoder.from_weights(a, prepared, plan, BOUNDS, 64 + SLOTS),
    )


def run(a: Architecture, passes: Passes) -> list[Tensor]:
    """What both return and keep."""
    packed, rows, cached = pack(SAMPLES), len(SAMPLES) * WIDTH, (a.num_kv_heads, a.head_dim)
    inputs = (packed.input_ids, packed.positions, packed.cu_seqlens)
    kept = torch.zeros(2, a.num_layers, 1, len(packed.input_ids), *cached).bfloat16()
    suffix = torch.zeros(2, a.num_layers, SLOTS, rows, *cached).bfloat16()
    lengths = (packed.cu_seqlens[1:] - packed.cu_seqlens[:-1]).long().repeat_interleave(WIDTH)
    given = torch.arange(rows), lengths, packed.cu_seqlens
    ancestors = torch.full((SLOTS, rows), -1)
    with torch.inference_mode():
        prompt = passes[0](*inputs, *kept)
        step = passes[1](*given, *kept, *suffix, ancestors, torch.tensor([0]))
    return [prompt, step, kept, suffix]


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("bias", [False, True])
def test_equal_products_apart(precision: str, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    a = make_architecture(intermediate_size=256, hidden_size=128, output_bias=bias)
    passes = make(a, cast(Precision, precision))
    late = run(a, passes)
    monkeypatch.setattr(Matrix, "add_later", Matrix.add)
    assert all(map(torch.equal, late, run(a, passes)))


@pytest.mark.parametrize("bias", [False, True])
def test_every_product_without_bias_is_left_to_a_norm(bias: bool) -> None:
    a = make_architecture(intermediate_size=256, hidden_size=128, output_bias=bias)
    prompt, step = make(a, "fp8")
    cpu, layers = torch.device("cpu"), a.num_layers
    for exported in (
        _export_prompts(prompt, BOUNDS, cpu),
        _export_step(step, BOUNDS, BeamBounds(4, SLOTS, 4), cpu),
    ):
        called = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
        counts = {name: sum(f"boundgen.{name}." in each for each in called) for name in (
            "product_add_norm", "add_rms_norm", "linear_e4m3",
        )}  # fmt: skip
        assert counts == {
            "product_add_norm": layers if bias else 2 * layers,
            "add_rms_norm": 1 + layers if bias else 1,  # the first takes embeddings
            "linear_e4m3": 0,
        }
