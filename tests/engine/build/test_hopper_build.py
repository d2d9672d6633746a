"""A build for an H200 acted out on the CPU: the same plan, weights, graph and package, oracles for kernels.

Only what asks for a device is replaced: its capability, its lanes of graphs, and the compiled kernels.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import engine.artifact
import engine.build.cuda_package
import engine.build.package
from engine.artifact import Artifact
from engine.build import BuildSpec, build_artifact
from engine.errors import ArtifactError
from engine.manifest import PACKAGE, WEIGHTS, sealed
from engine.models.plan import HopperKernels
from engine.ops.hopper import compiler, library, stack, tiles
from engine.ops.hopper.sm_limit import sm_limit
from engine.packed import BatchBounds, pack
from engine.runtime.lanes import LanePool
from engine.runtime.native import open_runner
from hopper_models import DIGEST, LONG_TEMPLATE, QUERIES, answer_all, answer_queries, fake_library, save_tiny

BOUNDS = BatchBounds(samples=32, tokens=1024, tokens_per_sample=128)
TOLERANCE = {"bf16": 0.03, "fp8": 0.2, "int8": 0.1}  # of a probability


@dataclass(frozen=True)
class Built:
    checkpoint: Path
    artifact: Path
    precision: str
    stages: list[str]


def make_spec(checkpoint: Path, out: Path, precision: str, **more: Any) -> BuildSpec:
    spec = BuildSpec(checkpoint, out, "tiny", device="cpu", dtype="bfloat16", bounds=BOUNDS, **more)
    object.__setattr__(spec, "precision", precision)  # a spec refuses it without a device
    return spec


def act_device(patch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    patch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    patch.setattr(engine.build.package, "GraphLanePool", LanePool)


@pytest.fixture(scope="module", params=["bf16", "fp8", "int8"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp(request.param)
    kind = {"fp8": "norm", "bf16": "bias", "int8": "int8"}[request.param]
    checkpoint = save_tiny(folder / "checkpoint", kind)
    compiled, stages = fake_library(folder), list[str]()
    with pytest.MonkeyPatch.context() as patch:
        act_device(patch, (9, 0))
        patch.setattr(
            engine.build.cuda_package,
            "compile_kernels",
            lambda _: (HopperKernels(library.load(compiled)), compiled),
        )
        out = build_artifact(make_spec(checkpoint, folder / "out", request.param), stages.append)
    return Built(checkpoint, out, request.param, stages)


@pytest.fixture
def cpu_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.artifact, "GraphLanePool", LanePool)


def test_the_artifact_holds_kernels_and_prepared_weights(built: Built) -> None:
    manifest = Artifact.open(built.artifact).manifest
    assert manifest.plan is not None
    assert {layer["path"] for layer in manifest.plan["layers"]} == {"hopper"}
    assert manifest.plan["notes"] == []
    assert library.file_name(manifest.plan["library"]) in manifest.files
    weights = load_file(built.artifact / "weights.safetensors")
    narrow = {"fp8": torch.float8_e4m3fn, "bf16": torch.bfloat16, "int8": torch.int8}[built.precision]
    assert {weights[f"layers.2.{name}"].dtype for name in ("qkv", "o", "gate_up", "down")} == {narrow}
    assert not any(name.endswith(("gate_up.weight", "attention_norm.weight")) for name in weights)
    assert ("calibrating" in built.stages) == (built.precision != "bf16")
    assert manifest.plan["rotated"] == (built.precision == "int8")
    assert ("lm_head.weight" in weights) == (built.precision == "int8")  # not rotated, as the table is
    assert "compiling the kernels" in built.stages


def test_the_package_reads_all_its_tensors_from_memory(built: Built) -> None:
    """None was written into its code, to be filled in anew by each run."""
    runner = open_runner(built.artifact / PACKAGE, -1)
    stored = {name for name in load_file(built.artifact / WEIGHTS) if name.startswith("layers.")}
    within = {name for name in stored if name.endswith("input_scales")} - {"layers.0.input_scales"}
    assert stored - set(runner.constant_names()) == within  # a run asks for its first layer's alone


def test_parity_with_transformers_was_measured(built: Built) -> None:
    parity = Artifact.open(built.artifact).manifest.parity
    assert parity.reference.startswith("transformers")
    assert parity.mean_abs_error < {"bf16": 0.1, "fp8": 0.3, "int8": 0.15}[built.precision]


@pytest.mark.usefixtures("cpu_lanes")
def test_a_pipeline_answers_as_transformers_does(built: Built, sample: Any) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(built.checkpoint, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(built.checkpoint)
    labels = [tokenizer.encode("yes")[0], tokenizer.encode("no")[0]]
    rows = answer_queries(built.artifact, "cpu", sample, lanes=2)

    for index, query in enumerate(QUERIES):
        ids = torch.tensor([tokenizer.encode(f"buy {query}")])
        with torch.inference_mode():
            scores = model(ids).logits[0, -1, labels].softmax(-1)
        for row in rows[3 * index : 3 * index + 3]:
            assert row["scores"]["yes"] == pytest.approx(float(scores[0]), abs=TOLERANCE[built.precision])


@pytest.mark.usefixtures("cpu_lanes")
def test_a_compiled_package_keeps_to_the_limit_of_its_thread(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a capture relies on: the package calls the op on the thread that runs it."""
    blocks: list[int] = []
    plan = stack.plan
    monkeypatch.setattr(stack, "plan", lambda *given: (blocks.append(given[5]), plan(*given))[1])
    pool = Artifact.open(built.artifact).open_lanes(1)
    packed = pack([[1, 2, 3], [4]])

    def limited() -> torch.Tensor:
        with sm_limit(66):
            return pool.forward(packed)

    blocks.clear()
    whole, half = (pool.executor.submit(run).result(60) for run in (lambda: pool.forward(packed), limited))
    pool.close()
    assert blocks == [stack.BLOCKS_PER_SM * tiles.NUM_SMS, stack.BLOCKS_PER_SM * 66]
    assert torch.equal(whole, half)


@pytest.mark.usefixtures("cpu_lanes")
def test_a_pipeline_computes_once_what_samples_share(built: Built, sample: Any) -> None:
    """Constant prefix of the template and request prefixes: the rows of whole prompts."""
    shared, whole = (
        answer_all(built.artifact, "cpu", sample, 1, LONG_TEMPLATE, prefixes) for prefixes in ("auto", "off")
    )
    constant = [answer.saved.constant for answer in shared]
    assert min(constant) >= 3 * 8
    assert any(answer.saved.request >= 2 * 8 for answer in shared)
    assert not any(answer.saved.constant or answer.saved.request for answer in whole)
    for one, other in zip(shared, whole, strict=True):
        for left, right in zip(one.rows, other.rows, strict=True):
            assert left["scores"] == pytest.approx(right["scores"], abs=TOLERANCE[built.precision])


def test_kernels_that_are_gone_or_others_are_refused(built: Built, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(built.artifact, tmp_path / "copy"))
    kernels = copy / library.file_name(DIGEST)
    kernels.write_bytes(kernels.read_bytes() + b"x")
    with pytest.raises(ArtifactError, match=f"hopper-{DIGEST}.so' is not the one that was built"):
        Artifact.open(copy)
    kernels.unlink()
    with pytest.raises(ArtifactError, match=f"hopper-{DIGEST}.so' is missing"):
        Artifact.open(copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    del manifest["files"][kernels.name]
    (copy / "manifest.json").write_text(json.dumps(sealed(manifest)))
    with pytest.raises(ArtifactError, match=f"no digest of 'hopper-{DIGEST}.so'"):
        Artifact.open(copy)


class StopError(Exception):
    pass


@pytest.mark.parametrize(
    ("capability", "more", "note"),
    [
        ((9, 0), {"kernels": "portable"}, "hopper kernels: not asked for; every layer"),
        ((9, 0), {}, "hopper kernels: no nvcc"),
        ((8, 9), {}, "compute capability is (8, 9)"),
        ((9, 0), {"scaling": "token"}, "scaled per token"),
    ],
)
def test_what_is_not_served_is_said_at_build(
    capability: tuple[int, int], more: dict[str, Any], note: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    act_device(monkeypatch, capability)
    monkeypatch.delenv("BOUNDGEN_HOPPER_LIBRARY", raising=False)
    monkeypatch.setenv("NVCC", "/nowhere/nvcc")
    monkeypatch.setattr(compiler.sysconfig, "get_paths", lambda: {"purelib": "/nowhere"})
    stages: list[str] = []

    def progress(stage: str) -> None:
        stages.append(stage)
        if stage == "exporting":
            raise StopError

    with pytest.raises(StopError):
        build_artifact(
            make_spec(save_tiny(tmp_path / "tiny", "norm"), tmp_path / "out", "fp8", **more), progress
        )
    (said,) = [stage for stage in stages if stage.startswith("plan: hopper kernels: ") or note in stage]
    assert note in said
