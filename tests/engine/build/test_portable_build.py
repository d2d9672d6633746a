"""int8 on a GPU that the hopper kernels are not for, acted out on the CPU: from the build to a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import engine.artifact
import engine.build.package
from engine.artifact import Artifact
from engine.build import BuildSpec, build_artifact
from engine.manifest import PACKAGE, WEIGHTS
from engine.models.checkpoint import load_checkpoint
from engine.models.cuda_decoder import CudaDecoder
from engine.models.plan import Plan
from engine.models.weights import OF_NO_DECODER
from engine.packed import BatchBounds, pack
from engine.prefixes import SHARE_ALL, Prefixes
from engine.runtime.lanes import LanePool
from engine.runtime.native import open_runner
from hopper_models import QUERIES, answer_queries, save_tiny

BOUNDS = BatchBounds(samples=32, tokens=1024, tokens_per_sample=128)
SAMPLES = [[1, 2, 3], [4] * 50, [5], [6, 7]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("portable")
    checkpoint = save_tiny(folder / "checkpoint", "int8", hidden_size=192)
    spec = BuildSpec(checkpoint, folder / "out", "tiny", device="cpu", dtype="bfloat16", bounds=BOUNDS)
    object.__setattr__(spec, "precision", "int8")  # a spec refuses it without a device
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
        patch.setattr(engine.build.package, "GraphLanePool", LanePool)
        return checkpoint, build_artifact(spec, lambda stage: None)


@pytest.fixture
def cpu_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.artifact, "GraphLanePool", LanePool)


def test_the_artifact_is_int8_on_the_portable_path(built: tuple[Path, Path]) -> None:
    manifest = Artifact.open(built[1]).manifest
    assert manifest.plan is not None
    plan = Plan.from_manifest(manifest.plan)
    assert plan.runs() == [("portable", range(len(plan.layers)))]
    assert [note for note in plan.notes if "bf16" in note] == []
    stored = load_file(built[1] / WEIGHTS)
    modules = ("attention.qkv", "output", "gate_up", "down")
    assert {stored[f"layers.2.{name}.weight"].dtype for name in modules} == {torch.int8}
    assert manifest.parity.mean_abs_error < 0.15
    layers = {name for name in stored if name.startswith("layers.")}
    unread = {name for name in layers if name.endswith("_norm.weight") and "attention." not in name}
    assert layers - set(open_runner(built[1] / PACKAGE, -1).constant_names()) <= unread


@pytest.mark.usefixtures("cpu_lanes")
def test_the_package_computes_what_its_decoder_does(built: tuple[Path, Path]) -> None:
    checkpoint, path = built
    artifact = Artifact.open(path)
    assert artifact.manifest.plan is not None
    weights = {name: x for name, x in load_file(path / WEIGHTS).items() if name not in OF_NO_DECODER}
    architecture = load_checkpoint(checkpoint, max_tokens=128).architecture
    plan = Plan.from_manifest(artifact.manifest.plan)
    decoder = CudaDecoder.from_weights(architecture, weights, plan, BOUNDS)
    packed = pack(SAMPLES)
    shared = Prefixes(None, SHARE_ALL).pack([[tuple(sample)] * 2 for sample in SAMPLES])[0]
    pool = artifact.open_lanes(1)

    def forward(given: Any) -> Tensor:
        out: Tensor = pool.executor.submit(pool.forward, given).result(60).float()
        return out

    try:
        found, twice = forward(packed), forward(shared)
    finally:
        pool.close()
    with torch.inference_mode():
        want = decoder(packed.input_ids, packed.positions, packed.cu_seqlens)[: packed.num_samples].float()
    assert float((found - want).norm() / want.norm()) < 0.02
    assert float((twice[::2] - want).norm() / want.norm()) < 0.1  # another way through the softmax


@pytest.mark.usefixtures("cpu_lanes")
def test_a_pipeline_answers(built: tuple[Path, Path], sample: Any) -> None:
    assert len(answer_queries(built[1], "cpu", sample, lanes=2)) == 3 * len(QUERIES)
