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
from engine.manifest import WEIGHTS
from engine.models.checkpoint import load_checkpoint
from engine.models.cuda_decoder import CudaDecoder
from engine.models.decoder import PackedDecoder
from engine.models.plan import Plan
from engine.models.weights import OF_NO_DECODER
from engine.packed import BatchBounds, PackedBatch, pack
from hopper_models import QUERIES, answer_queries, save_tiny

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


def run(decoder: torch.nn.Module, packed: PackedBatch) -> Tensor:
    with torch.inference_mode():
        out: Tensor = decoder(packed.input_ids, packed.positions, packed.cu_seqlens)
    return out[: packed.num_samples].float()


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
