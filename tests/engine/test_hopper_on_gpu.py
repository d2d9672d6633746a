"""The hopper path on the device that it is for: build, artifact, lanes and pipeline, in every precision.

Run on an H100 or H200 with nvcc: `pytest -m gpu tests/engine/test_hopper_on_gpu.py`; see
engine/ops/hopper/README.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.artifact import Artifact
from engine.build import BuildSpec, build_artifact
from engine.models.checkpoint import load_checkpoint
from engine.models.decoder import PackedDecoder
from engine.packed import BatchBounds, PackedBatch, pack
from engine.prefixes import SHARE_ALL, Prefixes, Saved
from engine.runtime.bucket_inputs import BucketInputs
from engine.runtime.buckets import Bucket, make_buckets
from engine.runtime.graph_lanes import GraphLanePool
from engine.runtime.sharing import small_sizes
from hopper_models import LONG_TEMPLATE, QUERIES, answer_all, answer_queries, save_tiny

pytestmark = pytest.mark.gpu

BOUNDS = BatchBounds(samples=64, tokens=2048, tokens_per_sample=512)
LENGTHS = (1, 512, 60, 64, 65, 1, 2, 300, 17, 128)
COMBINATIONS = [(kind, precision) for kind in ("norm", "bias") for precision in ("bf16", "fp8")]
COMBINATIONS.append(("int8", "int8"))
HIDDEN_TOLERANCE = {
    "bf16": 0.05,
    "fp8": 0.3,
    "int8": 0.15,
}  # relative, against float32; the oracles keep half of it
PROBABILITY_TOLERANCE = {"bf16": 0.03, "fp8": 0.2, "int8": 0.1}
# Against whole samples; a constant prefix is computed with 16-bit activations
PREFIX_TOLERANCE = {"bf16": 0.1, "fp8": 0.3, "int8": 0.2}
WAIT_S = 120
HALF = 66  # multiprocessors
VOCABULARY = 200_000  # so that the weights are large beside what lanes compute in


@dataclass(frozen=True)
class Built:
    kind: str
    precision: str
    checkpoint: Path
    artifact: Artifact


@pytest.fixture(scope="module", params=COMBINATIONS, ids="-".join)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the hopper path is for compute capability 9.0")
    kind, precision = request.param
    folder = tmp_path_factory.mktemp(f"{kind}-{precision}")
    checkpoint = save_tiny(folder / "checkpoint", kind, VOCABULARY)
    stages: list[str] = []
    spec = BuildSpec(checkpoint, folder / "out", "tiny", device="cuda", bounds=BOUNDS, precision=precision)
    artifact = Artifact.open(build_artifact(spec, stages.append), device="cuda")
    plan = artifact.manifest.plan
    assert plan is not None
    if plan["library"] is None:
        pytest.fail(f"portable path: {plan['notes']}")
    assert {layer["path"] for layer in plan["layers"]} == {"hopper"}
    return Built(kind, precision, checkpoint, artifact)


@pytest.fixture(scope="module")
def pool(built: Built) -> Iterator[GraphLanePool]:
    """Four lanes that have half-chip graphs of all small buckets, whether or not they measured faster."""
    pool = built.artifact.open_lanes(4)
    assert isinstance(pool, GraphLanePool)
    chosen = pool.load_report
    assert len(chosen.sharing) == 6
    assert all(min(each.alone_ms, each.together_ms, each.halved_ms) > 0 for each in chosen.sharing)
    pool._capture_shared(small_sizes(pool.cost.buckets), HALF)
    yield pool
    pool.close()


@pytest.fixture
def poison() -> Callable[[], None]:
    """Leaves NaN bit patterns in the memory that the next allocations get."""

    def fill() -> None:
        held = [
            torch.full((1 << n,), 0xFF, dtype=torch.uint8, device="cuda")
            for n in range(9, 27)
            for _ in range(4)
        ]
        torch.cuda.synchronize()
        del held

    return fill


def draw(built: Built, seed: int, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    vocab_size = built.artifact.manifest.architecture["vocab_size"]
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def forward(pool: GraphLanePool, packed: PackedBatch) -> Tensor:
    return pool.executor.submit(pool.forward, packed).result(WAIT_S)


def given(built: Built, packed: PackedBatch, inputs: BucketInputs) -> list[Tensor]:
    """What the package takes."""
    constant = built.artifact.no_constant if packed.constant is None else packed.constant
    return [inputs.input_ids, inputs.positions, inputs.cu_seqlens, inputs.prefixes, constant]


def run_directly(built: Built, pool: GraphLanePool, packed: PackedBatch, bucket: Bucket) -> Tensor:
    """The package itself, without a graph, on a stream of its own."""
    memory = torch.zeros(BucketInputs.num_bytes(bucket), dtype=torch.uint8)
    BucketInputs.over(memory, bucket).fill(packed)
    inputs = BucketInputs.over(memory.cuda(), bucket)
    runner, stream = pool.open_runner(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream), torch.no_grad():
        out = runner.run(given(built, packed, inputs))[0]
    stream.synchronize()
    return out[: packed.num_samples].float().cpu()


def error(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


def test_parity_was_within_tolerance(built: Built) -> None:
    parity = built.artifact.manifest.parity
    assert parity.mean_abs_error <= parity.mean_abs_tolerance


@pytest.mark.parametrize("lengths", [LENGTHS, (1,), (512,) * 4, (1,) * 64, (65, 63)])
def test_lanes_equal_the_eager_model(built: Built, pool: GraphLanePool, lengths: tuple[int, ...]) -> None:
    checkpoint = load_checkpoint(built.checkpoint, max_tokens=BOUNDS.tokens_per_sample)
    decoder = PackedDecoder.from_weights(
        checkpoint.architecture, checkpoint.weights, BOUNDS.tokens_per_sample
    )
    packed = pack(draw(built, 1, lengths))
    with torch.inference_mode():
        want = decoder(packed.input_ids, packed.positions, packed.cu_seqlens)[: packed.num_samples]
    assert error(forward(pool, packed), want) < HIDDEN_TOLERANCE[built.precision]


def test_a_pipeline_answers_as_transformers_does(built: Built, sample: Any) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(built.checkpoint, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(built.checkpoint)
    labels = [tokenizer.encode("yes")[0], tokenizer.encode("no")[0]]
    rows = answer_queries(built.artifact.path, "cuda", sample, lanes=2)
    for index, query in enumerate(QUERIES):
        ids = torch.tensor([tokenizer.encode(f"buy {query}")])
        with torch.inference_mode():
            wanted = float(model(ids).logits[0, -1, labels].softmax(-1)[0])
        for row in rows[3 * index : 3 * index + 3]:
            found = row["scores"]["yes"]
            assert found == pytest.approx(wanted, abs=PROBABILITY_TOLERANCE[built.precision])


def test_packed_equals_single(built: Built, pool: GraphLanePool) -> None:
    samples = draw(built, 2)
    single = torch.cat([forward(pool, pack([sample])) for sample in samples])
    assert error(forward(pool, pack(samples)), single) < 0.05


def test_a_replay_has_the_bits_of_a_direct_run(
    built: Built, pool: GraphLanePool, poison: Callable[[], None]
) -> None:
    """Also where fresh memory holds NaN: every value that is read was written before."""
    buckets = make_buckets(BOUNDS)
    for lengths in (LENGTHS, (1, 2), (512, 512, 512), (33,) * 20, (1,) * 64):
        packed = pack(draw(built, 3, lengths))
        replayed = forward(pool, packed)
        assert torch.isfinite(replayed).all()
        bucket = buckets.choose(packed.num_tokens, packed.num_samples)
        if bucket not in buckets.all():
            continue  # a lane takes a larger one
        for _ in range(2):
            poison()
            assert torch.equal(run_directly(built, pool, packed, bucket), replayed)


def share(built: Built, constant: int, shared: int, seed: int = 7) -> tuple[PackedBatch, PackedBatch]:
    """Three requests that begin with a constant prefix or share more, and the same samples whole."""
    first, second, *own = draw(built, seed, (constant, shared, 1, 70, 9, 2, 33, 5))
    requests = [
        [(*first, *second, *each) for each in own[:3]],
        [(*second, *each) for each in own[3:5]],
        [(*first, *own[5]), (5,), (*first[: constant // 2], 6)],
    ]
    prefix = built.artifact.constant_prefix(tuple(first))
    packed, saved = Prefixes(prefix, SHARE_ALL).pack(requests)
    assert saved[0] == Saved(3 * constant, 2 * shared)
    return packed, pack([list(sample) for request in requests for sample in request])


@pytest.mark.parametrize("shared", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("constant", [1, 63, 64, 65, 200])
def test_prefixes_give_what_whole_samples_give(
    built: Built, pool: GraphLanePool, constant: int, shared: int
) -> None:
    """And the same bits on every lane, whatever constant prefix it held before."""
    packed, whole = share(built, constant, shared)
    found = [pool.executor.submit(pool.forward, packed) for _ in range(2 * pool.num_lanes)]
    other, _ = share(built, 20, 30, seed=8)
    for job in [pool.executor.submit(pool.forward, other) for _ in range(pool.num_lanes)]:
        job.result(WAIT_S)
    found += [pool.executor.submit(pool.forward, packed) for _ in range(2 * pool.num_lanes)]
    first, *more = [job.result(WAIT_S) for job in found]
    assert all(torch.equal(each, first) for each in more)
    assert error(first, forward(pool, whole)) < PREFIX_TOLERANCE[built.precision]


def test_a_replay_with_prefixes_has_the_bits_of_a_direct_run(
    built: Built, pool: GraphLanePool, poison: Callable[[], None]
) -> None:
    packed, _ = share(built, 70, 130)
    bucket = make_buckets(BOUNDS).choose(packed.num_tokens, packed.num_segments)
    assert bucket in make_buckets(BOUNDS).all()
    replayed = forward(pool, packed)
    for _ in range(2):
        poison()
        assert torch.equal(run_directly(built, pool, packed, bucket), replayed)


def test_a_pipeline_with_prefixes_answers_as_without(built: Built, sample: Any) -> None:
    shared, whole = (
        answer_all(built.artifact.path, "cuda", sample, 2, LONG_TEMPLATE, prefixes)
        for prefixes in ("auto", "off")
    )
    assert all(answer.saved.constant >= 3 * 8 for answer in shared)
    assert any(answer.saved.request for answer in shared)
    tolerance = PROBABILITY_TOLERANCE[built.precision]
    for one, other in zip(shared, whole, strict=True):
        for left, right in zip(one.rows, other.rows, strict=True):
            assert left["scores"] == pytest.approx(right["scores"], abs=tolerance)


def test_padding_may_hold_anything(built: Built, pool: GraphLanePool) -> None:
    """The same bucket after other batches, and with nonsense in the padding's rows."""
    packed = pack(draw(built, 4, (200, 100, 40)))
    bucket = make_buckets(BOUNDS).choose(packed.num_tokens, packed.num_samples)
    assert bucket.tokens > packed.num_tokens
    want = forward(pool, packed)
    odd = torch.randint(0, 100, (bucket.tokens - packed.num_tokens,))
    memory = torch.zeros(BucketInputs.num_bytes(bucket), dtype=torch.uint8)
    inputs = BucketInputs.over(memory, bucket)
    inputs.fill(packed)
    inputs.input_ids[packed.num_tokens :] = odd
    inputs.positions[packed.num_tokens :] = odd
    on_device = BucketInputs.over(memory.cuda(), bucket)
    with torch.no_grad():
        found = pool.open_runner().run(given(built, packed, on_device))[0]
    assert torch.equal(found[: packed.num_samples].float().cpu(), want)


def test_all_lanes_read_the_same_weights(built: Built) -> None:
    """Three more lanes take less memory than one copy of the weights; a weight changed in place changes them
    all."""
    first = built.artifact.open_lanes(1)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    more = built.artifact.open_lanes(3)
    torch.cuda.synchronize()
    grown = torch.cuda.memory_allocated() - before
    assert isinstance(more, GraphLanePool)
    packed = pack(draw(built, 5))
    pools = [first] + [more] * 6  # lanes take work in turn
    single = [forward(each, packed) for each in pools]
    norm = built.artifact._weights["norm.weight"]
    norm.mul_(2)
    doubled = [forward(each, packed) for each in pools]
    norm.div_(2)
    size = more.load_report.weights_bytes
    first.close()
    more.close()
    assert all(torch.equal(new, old * 2) for new, old in zip(doubled, single, strict=True))
    assert grown < size, f"{grown / 1e6:.0f} MB for three lanes, weights {size / 1e6:.0f} MB"


def test_a_prepared_head_never_falls_back(built: Built, pool: GraphLanePool) -> None:
    rows = built.artifact.head_weight
    assert rows is not None
    labels = rows[:2].t().contiguous()

    def head(hidden: Tensor) -> tuple[Tensor, ...]:
        return (hidden @ labels,)

    pool.prepare(head)
    before = pool.fallbacks
    (scores,) = pool.executor.submit(pool.run, pack(draw(built, 6)), head).result(WAIT_S)
    assert torch.isfinite(scores).all()
    assert pool.fallbacks == before


def launch_shared(pool: GraphLanePool, packed: PackedBatch) -> Tensor:
    """On half of the chip, though no other lane is at work."""

    def launch() -> Tensor:
        lane = pool._mine.graphs
        assert lane._find(packed) in lane._shared
        (hidden,) = lane.launch(packed, lambda hidden: (hidden,), shared=True)
        lane.wait()
        return hidden.clone()

    return pool.executor.submit(launch).result(WAIT_S)


@pytest.mark.parametrize("lengths", [LENGTHS, (1,), (512,) * 4, (512, 512, 300), (1,) * 64, (33,) * 20])
def test_half_of_the_chip_gives_the_same_bits(
    built: Built, pool: GraphLanePool, lengths: tuple[int, ...]
) -> None:
    packed = pack(draw(built, 7, lengths))
    want = forward(pool, packed)
    for _ in range(2 * pool.num_lanes):
        assert torch.equal(launch_shared(pool, packed), want)


def test_launches_hold_the_interpreter_for_a_moment(built: Built, pool: GraphLanePool) -> None:
    """The mean and the most are what the bench reports."""
    for seed in range(20):
        forward(pool, pack(draw(built, seed)))
    report = pool.launch_report
    assert report.launches >= 20
    assert 0 < report.python_mean_ms <= report.python_max_ms


def run_mixed(built: Built, pool: GraphLanePool, seconds: float) -> int:
    """Random sizes on all lanes at once, on half of the chip too; each result has the bits that the batch has
    alone."""
    generator = torch.Generator().manual_seed(5)
    batches = []
    for seed in range(24):
        count = int(torch.randint(1, 12, (1,), generator=generator))
        lengths = torch.randint(1, min(512, 2048 // count), (count,), generator=generator)
        batches.append(pack(draw(built, seed, tuple(lengths.tolist()))))
    alone = [forward(pool, batch) for batch in batches]
    stop, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < stop:
        jobs = [pool.executor.submit(pool.forward, batch) for batch in batches]
        assert all(torch.equal(job.result(WAIT_S), want) for job, want in zip(jobs, alone, strict=True))
        rounds += 1
    return rounds


def test_four_lanes_at_mixed_sizes(built: Built, pool: GraphLanePool) -> None:
    assert run_mixed(built, pool, 4.0) > 0


@pytest.mark.slow
def test_four_lanes_for_a_minute(built: Built, pool: GraphLanePool) -> None:
    assert run_mixed(built, pool, 60.0) > 0
