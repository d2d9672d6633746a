"""int8 artifacts of the portable path on a device: against the same tensors through the CPU oracles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.artifact import Artifact
from engine.build import BuildSpec, build_artifact
from engine.build.integers import round_decoder
from engine.manifest import WEIGHTS
from engine.models.checkpoint import load_checkpoint
from engine.models.cuda_decoder import CudaDecoder
from engine.models.cuda_weights import UNROTATE, prepare_weights
from engine.models.decoder import PackedDecoder
from engine.models.plan import Plan, choose_plan, restrict_plan
from engine.models.weights import OF_NO_DECODER
from engine.packed import BatchBounds, PackedBatch, pack
from engine.quant.texts import Text
from hopper_models import QUERIES, answer_queries, save_tiny
from random_decoders import make_architecture, random_weights

pytestmark = pytest.mark.gpu

BOUNDS = BatchBounds(samples=64, tokens=2048, tokens_per_sample=512)
LENGTHS = (1, 512, 60, 64, 65, 1, 2, 300, 17, 128)
WAIT_S = 120
WIDTHS: dict[str, dict[str, Any]] = {
    "fused": {"hidden_size": 192},
    "apart": {"hidden_size": 160, "attention_bias": True},  # a hidden size that the fused gate does not take
}


def build(folder: Path, **sizes: Any) -> tuple[Path, Path]:
    checkpoint = save_tiny(folder / "checkpoint", "int8", **sizes)
    spec = BuildSpec(
        checkpoint, folder / "out", "tiny", device="cuda", bounds=BOUNDS, precision="int8", kernels="portable"
    )
    return checkpoint, build_artifact(spec, lambda stage: None)


def run(decoder: torch.nn.Module, packed: PackedBatch, device: str = "cpu") -> Tensor:
    inputs = (each.to(device) for each in (packed.input_ids, packed.positions, packed.cu_seqlens))
    with torch.inference_mode():
        out: Tensor = decoder(*inputs)
    return out[: packed.num_samples].float().cpu()


@pytest.mark.parametrize("kind", WIDTHS)
def test_an_artifact_is_its_oracles_decoder(kind: str, tmp_path: Path, sample: Any) -> None:
    checkpoint, path = build(tmp_path, **WIDTHS[kind])
    artifact = Artifact.open(path, device="cuda")
    assert artifact.manifest.plan is not None
    plan = Plan.from_manifest(artifact.manifest.plan)
    assert plan.runs() == [("portable", range(len(plan.layers)))]
    assert all(layer.elements() == dict.fromkeys(layer.elements(), torch.int8) for layer in plan.layers)
    source = load_checkpoint(checkpoint, max_tokens=512)
    stored = load_file(path / WEIGHTS)
    weights = {name: tensor for name, tensor in stored.items() if name not in OF_NO_DECODER}
    oracles = CudaDecoder.from_weights(source.architecture, weights, plan, BOUNDS)
    generator = torch.Generator().manual_seed(0)
    size = source.architecture.vocab_size
    packed = pack([torch.randint(0, size, (n,), generator=generator).tolist() for n in LENGTHS])
    pool = artifact.open_lanes(2)
    try:
        found = pool.executor.submit(pool.forward, packed).result(WAIT_S)
        again = pool.executor.submit(pool.forward, packed).result(WAIT_S)
    finally:
        pool.close()
    assert torch.equal(found, again)
    want = run(oracles, packed)
    plain = run(PackedDecoder.from_weights(source.architecture, source.weights, 512), packed)
    assert float((found - want).norm() / want.norm()) < 0.06  # integers on the border fall either way
    assert float((found - plain).norm() / plain.norm()) < 0.15
    assert len(answer_queries(path, "cuda", sample, lanes=2)) == 3 * len(QUERIES)


@pytest.mark.parametrize("static", [True, False])
def test_types_mix_within_a_layer(static: bool) -> None:
    """Every pair of types that one operation joins, without a package."""
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no e4m3 tensor cores")
    layers = [
        {"qkv": "e4m3_static", "output": "int8", "gate_up": "e4m3_static", "down": "int8"},
        {"qkv": "int8", "output": "e4m3_static", "gate_up": "int8", "down": "e4m3_static"},
        {"qkv": "bf16", "output": "int8", "gate_up": "bf16", "down": "int8"},
        {"qkv": "int8", "output": "bf16", "gate_up": "int8", "down": "bf16"},
    ]
    architecture = make_architecture(hidden_size=192, intermediate_size=256, qk_norm=True, num_layers=4)
    generator = torch.Generator().manual_seed(0)
    samples = [torch.randint(0, 64, (n,), generator=generator).tolist() for n in (3, 60, 1, 200)]
    texts = [Text(tuple(sample)) for sample in samples]
    plan = restrict_plan(choose_plan(architecture, "int8", arch=90, static=static), layers)
    made = round_decoder(
        architecture, random_weights(architecture), plan, texts, trusted=True, say=lambda _: None
    )
    prepared = prepare_weights(made.weights, architecture, made.plan, max_seqlen=512, rounded=made.layers)
    prepared |= {name: prepared[name].bfloat16() for name in ("embed_tokens.weight", "norm.weight")}
    prepared |= {UNROTATE: made.unrotate}
    packed = pack(samples)
    on_device = {name: tensor.cuda() for name, tensor in prepared.items()}
    found, want = (
        run(CudaDecoder.from_weights(architecture, tensors, made.plan, BOUNDS), packed, device)
        for tensors, device in ((on_device, "cuda"), (prepared, "cpu"))
    )
    assert float((found - want).norm() / want.norm()) < 0.05
