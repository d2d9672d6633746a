"""Builds and runs on CUDA: compiled bfloat16 against our eager model on the CPU; lanes side by side."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.artifact import Artifact
from engine.build import BuildSpec, build_artifact
from engine.build.compiler import require_compiler
from engine.build.native import build_native, default_cache
from engine.errors import ArtifactError
from engine.models.checkpoint import load_checkpoint
from engine.models.decoder import PackedDecoder
from engine.ops import reference
from engine.ops.packed_attention import packed_attention
from engine.packed import BatchBounds, pack
from engine.prefixes import Prefixes, Rules, Saved
from engine.runtime.lanes import LanePool
from engine.runtime.native import load_native
from tiny_checkpoints import save_checkpoint

pytestmark = pytest.mark.gpu

MAX_TOKENS = 512
BOUNDS = BatchBounds(samples=32, tokens=4096, tokens_per_sample=MAX_TOKENS)
LENGTHS = (1, 512, 60, 61, 1, 2, 300, 17)
WAIT_S = 120
HIDDEN_TOLERANCE = 0.05  # mean, of normed values around 1: bfloat16 through every layer
SMOLLM2_SHAPE: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "initializer_range": 0.04,
    "max_position_embeddings": 8192,
}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tiny-qwen3": ("Qwen3ForCausalLM", {"head_dim": 16}, {}),
    "tiny-float32": ("Qwen2ForCausalLM", {"head_dim": 16}, {"dtype": "float32"}),
    "tiny-odd-heads": ("LlamaForCausalLM", {"head_dim": 12, "attention_bias": True}, {}),
    "smollm2-shape": ("LlamaForCausalLM", SMOLLM2_SHAPE, {}),
}


@dataclass(frozen=True)
class Built:
    checkpoint: Path
    artifact: Artifact


@pytest.fixture(scope="module", params=CASES)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    model_class, options, spec = CASES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    checkpoint = save_checkpoint(folder / "checkpoint", model_class, **options)
    out = build_artifact(
        BuildSpec(checkpoint, folder / "out", request.param, device="cuda", bounds=BOUNDS, **spec)
    )
    return Built(checkpoint, Artifact.open(out, device="cuda"))


@pytest.fixture(scope="module")
def lanes(built: Built) -> Iterator[LanePool]:
    pool = built.artifact.open_lanes(2)
    yield pool
    pool.close()


def draw(vocab_size: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in LENGTHS]


def eager(built: Built, samples: list[list[int]]) -> Tensor:
    checkpoint = load_checkpoint(built.checkpoint, max_tokens=MAX_TOKENS)
    decoder = PackedDecoder.from_weights(checkpoint.architecture, checkpoint.weights, MAX_TOKENS)
    packed = pack(samples)
    with torch.inference_mode():
        hidden: Tensor = decoder(packed.input_ids, packed.positions, packed.cu_seqlens)
    return hidden


def test_compiled_equals_eager_on_the_cpu(built: Built, lanes: LanePool) -> None:
    samples = draw(built.artifact.manifest.architecture["vocab_size"], 0)
    found = lanes.executor.submit(lanes.forward, pack(samples)).result(WAIT_S)
    expected = eager(built, samples)
    assert found.device.type == "cpu"
    assert found.dtype == torch.float32
    error = (found - expected).abs()
    assert error.mean() < (1e-3 if built.artifact.manifest.dtype == "float32" else HIDDEN_TOLERANCE)


def test_manifest(built: Built) -> None:
    manifest = built.artifact.manifest
    major, minor = torch.cuda.get_device_capability()
    assert (manifest.device, manifest.device_arch) == ("cuda", f"sm_{major}{minor}")
    assert manifest.parity.mean_abs_error <= manifest.parity.mean_abs_tolerance
    with pytest.raises(ArtifactError, match="device = 'cuda', but 'cpu' is asked for"):
        Artifact.open(built.artifact.path, device="cpu")


def test_two_lanes_at_once(built: Built, lanes: LanePool) -> None:
    """Different batches, many times, on both lanes: each result is what the batch alone gives."""
    vocab_size = built.artifact.manifest.architecture["vocab_size"]
    batches = [pack(draw(vocab_size, seed)) for seed in range(4)]
    alone = [lanes.executor.submit(lanes.forward, batch).result(WAIT_S) for batch in batches]
    jobs = [(i % 4, lanes.executor.submit(lanes.forward, batches[i % 4])) for i in range(40)]
    for i, job in jobs:
        assert torch.equal(job.result(WAIT_S), alone[i])


def test_every_lane_has_its_own_stream(lanes: LanePool) -> None:
    barrier = threading.Barrier(2)
    streams: set[int] = set()

    def head(hidden: Tensor) -> tuple[Tensor, ...]:
        streams.add(torch.cuda.current_stream().cuda_stream)
        return (hidden.argmax(-1),)

    def run() -> tuple[Tensor, ...]:
        barrier.wait(WAIT_S)
        return lanes.run(pack([[1, 2], [3]]), head)

    for job in [lanes.executor.submit(run) for _ in range(2)]:
        assert job.result(WAIT_S)[0].device.type == "cpu"
    assert len(streams) == 2
    assert torch.cuda.default_stream().cuda_stream not in streams


def test_lanes_share_the_weights(built: Built) -> None:
    size = (built.artifact.path / "weights.safetensors").stat().st_size
    pools = [built.artifact.open_lanes(1)]
    before = torch.cuda.mem_get_info()[0]
    pools.append(built.artifact.open_lanes(3))
    grown = before - torch.cuda.mem_get_info()[0]
    for pool in pools:
        pool.close()
    # Each runner's activations, kernels and cuBLAS workspace; a copy of the larger weights would not fit in.
    assert grown < size / 4 + 400e6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 12, 64, 128, 7])
def test_attention(head_dim: int, dtype: torch.dtype) -> None:
    load_native(build_native(require_compiler(), default_cache()))
    generator = torch.Generator().manual_seed(0)
    lengths = [1, 130, 7, 512, 33]
    q, k, v = (
        torch.randn(sum(lengths), heads, head_dim, generator=generator).to("cuda", dtype)
        for heads in (6, 2, 2)
    )
    cu_seqlens = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
    expected = reference.packed_attention(q.float(), k.float(), v.float(), cu_seqlens)
    out = packed_attention(q, k, v, cu_seqlens, MAX_TOKENS)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 12, 64, 128])
def test_attention_to_prefixes(head_dim: int, dtype: torch.dtype) -> None:
    load_native(build_native(require_compiler(), default_cache()))
    generator = torch.Generator().manual_seed(0)
    lengths = [1, 130, 7, 33, 64, 2]
    before = [[4, 20], [4, 20], [5, 0], [-1, 9], [-1, 20], [-1, 0]]
    prefixes = torch.tensor(before, dtype=torch.int32, device="cuda")

    def draw_rows(count: int, heads: int) -> Tensor:
        return torch.randn(count, heads, head_dim, generator=generator).to("cuda", dtype)

    q, k, v = (draw_rows(sum(lengths), heads) for heads in (6, 2, 2))
    constant = (draw_rows(20, 2), draw_rows(20, 2))
    cu_seqlens = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
    wide = (x.float() for x in (q, k, v))
    expected = reference.packed_attention(
        *wide, cu_seqlens, prefixes, (constant[0].float(), constant[1].float())
    )
    out = packed_attention(q, k, v, cu_seqlens, MAX_TOKENS, prefixes, constant)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)


def test_prefixes_give_what_whole_samples_give(built: Built, lanes: LanePool) -> None:
    if not lanes.takes_prefixes:
        pytest.skip("this plan's kernels take no prefixes")
    vocab_size = built.artifact.manifest.architecture["vocab_size"]
    start = tuple(i % vocab_size for i in range(3, 23))
    shared = (*start, *(i % vocab_size for i in range(30, 50)))
    requests = [
        [(*shared, i % vocab_size, 2) for i in range(5)],
        [(5,) * 30, (6,)],
        [(*start, 1)],
    ]
    constant = built.artifact.constant_prefix(start)
    packed, saved = Prefixes(constant, Rules(1, 1, 1), lanes.most_segments).pack(requests)
    assert saved[0] == Saved(100, 80)
    found = lanes.executor.submit(lanes.forward, packed).result(WAIT_S)
    whole = pack([sample for request in requests for sample in request])
    expected = lanes.executor.submit(lanes.forward, whole).result(WAIT_S)
    error = (found - expected).abs()
    assert error.mean() < (1e-3 if built.artifact.manifest.dtype == "float32" else HIDDEN_TOLERANCE)
