"""Lanes of real graphs: equal to the eager decoder, to single samples, to themselves; weights are shared."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.build.compilation import compile_package, export_decoder
from engine.build.compiler import require_compiler
from engine.build.native import build_native, default_cache
from engine.models.architecture import Architecture, Rope
from engine.models.cuda_decoder import CudaDecoder
from engine.models.cuda_weights import prepare_weights, restore_weights
from engine.models.decoder import PackedDecoder, no_constant
from engine.models.plan import Precision, choose_plan
from engine.packed import BatchBounds, pack
from engine.prefixes import SHARE_ALL, ConstantPrefix, Prefixes, Saved
from engine.runtime.graph_lanes import GraphLanePool
from engine.runtime.native import load_native
from random_decoders import random_weights

pytestmark = pytest.mark.gpu

BOUNDS = BatchBounds(64, 1024, 300)
WAIT_S = 120
LENGTHS = (1, 300, 60, 61, 1, 2, 130, 17)


def make_decoder(precision: Precision) -> tuple[CudaDecoder, dict[str, Tensor]]:
    inv_freq = tuple((1e-4 ** (torch.arange(0, 64, 2) / 64)).tolist())
    architecture = Architecture(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_layers=3, num_heads=6, num_kv_heads=2,
        head_dim=64, norm_eps=1e-6, rope=Rope("default", inv_freq, 1.0), qk_norm=True,
    )  # fmt: skip
    weights = {name: x.to("cuda") for name, x in random_weights(architecture, torch.bfloat16).items()}
    major, minor = torch.cuda.get_device_capability()
    plan = choose_plan(architecture, precision, arch=10 * major + minor, static=False)
    prepared = prepare_weights(weights, architecture, plan, max_seqlen=300)
    return CudaDecoder.from_weights(architecture, prepared, plan, BOUNDS), prepared


class Compiled:
    """A package, its weights, and the decoder it was compiled from."""

    def __init__(self, folder: Path, precision: Precision) -> None:
        load_native(build_native(require_compiler(), default_cache()))
        self.decoder, self.weights = make_decoder(precision)
        self.package = folder / f"{precision}.pt2"
        cuda = torch.device("cuda")
        self.no_constant = no_constant(self.decoder.architecture, torch.bfloat16, cuda)
        compile_package(export_decoder(self.decoder, BOUNDS, cuda, self.no_constant), self.package)

    def open(self, lanes: int) -> GraphLanePool:
        return GraphLanePool(
            self.package, self.weights, BOUNDS,
            vocab_size=512, device=torch.device("cuda"), lanes=lanes, no_constant=self.no_constant,
        )  # fmt: skip

    def constant_prefix(self, ids: tuple[int, ...]) -> ConstantPrefix:
        """As an artifact computes it."""
        architecture = self.decoder.architecture
        weights = restore_weights(self.weights, architecture)
        eager = PackedDecoder.from_weights(architecture, weights, len(ids))
        with torch.inference_mode():
            keys_values = eager.keys_values(torch.tensor(ids, device="cuda"))
        torch.cuda.synchronize()
        return ConstantPrefix(ids, keys_values)


@pytest.fixture(scope="module", params=["bf16", "fp8"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(tmp_path_factory.mktemp("package"), request.param)


@pytest.fixture(scope="module")
def pool(compiled: Compiled) -> Iterator[GraphLanePool]:
    pool = compiled.open(4)
    yield pool
    pool.close()


def draw(seed: int, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 512, (n,), generator=generator).tolist() for n in lengths]


def forward(pool: GraphLanePool, samples: list[list[int]]) -> Tensor:
    return pool.executor.submit(pool.forward, pack(samples)).result(WAIT_S)


def error(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


def test_graphs_equal_the_eager_decoder(compiled: Compiled, pool: GraphLanePool) -> None:
    for lengths in (LENGTHS, (1,), (300, 300, 300), (1,) * 64):
        packed = pack(draw(1, lengths))
        inputs = (x.cuda() for x in (packed.input_ids, packed.positions, packed.cu_seqlens))
        with torch.inference_mode():
            want = compiled.decoder(*inputs)[: packed.num_samples].float().cpu()
        assert error(forward(pool, draw(1, lengths)), want) < 0.02


def test_packed_equals_single(pool: GraphLanePool) -> None:
    samples = draw(2)
    single = torch.cat([forward(pool, [sample]) for sample in samples])
    assert error(forward(pool, samples), single) < 0.05


def test_prefixes_give_what_whole_samples_give(compiled: Compiled, pool: GraphLanePool) -> None:
    """Two constant prefixes in turns on every lane, requests with and without one of their own."""
    first, second, shared = (tuple(draw(seed, (40,))[0]) for seed in (5, 6, 7))
    for ids in (first, second, first):
        prefixes = Prefixes(compiled.constant_prefix(ids), SHARE_ALL, pool.most_segments)
        requests = [
            [(*ids, *shared, *own) for own in draw(8, (1, 30, 2))],
            [(9,), (9, 9)],
            [(*ids, 3), (*ids[:20], 4)],
        ]
        packed, saved = prefixes.pack(requests)
        assert saved[0] == Saved(3 * 40, 2 * 40)
        whole = forward(pool, [list(sample) for request in requests for sample in request])
        jobs = [pool.executor.submit(pool.forward, packed) for _ in range(2 * pool.num_lanes)]
        for job in jobs:
            assert error(job.result(WAIT_S), whole) < 0.1
    assert pool.takes_prefixes


def test_a_prepared_head_runs_captured(pool: GraphLanePool) -> None:
    def head(hidden: Tensor) -> tuple[Tensor, ...]:
        return (hidden[:, :3] * 2, hidden.argmax(-1))

    pool.prepare(head)
    before, hidden = pool.fallbacks, forward(pool, draw(3))
    doubled, best = pool.executor.submit(pool.run, pack(draw(3)), head).result(WAIT_S)
    assert torch.equal(doubled, hidden[:, :3] * 2)
    assert torch.equal(best, hidden.argmax(-1))
    assert pool.fallbacks == before + 1  # of `forward` alone


def test_all_lanes_read_the_same_weights(compiled: Compiled, pool: GraphLanePool) -> None:
    """A weight doubled in place doubles what every lane of every pool answers; and back."""
    more = compiled.open(2)
    pools = [pool] * 8 + [more] * 4  # lanes take work in turn
    before = [forward(each, draw(4)) for each in pools]
    compiled.weights["norm.weight"].mul_(2)
    after = [forward(each, draw(4)) for each in pools]
    compiled.weights["norm.weight"].div_(2)
    more.close()
    for old, new in zip(before, after, strict=True):
        assert torch.equal(new, old * 2)


def test_cost_grows_with_tokens(pool: GraphLanePool) -> None:
    cost = pool.measure_cost()
    assert cost.predict_ms(1024) > cost.predict_ms(64) > 0


def run_mixed(pool: GraphLanePool, seconds: float) -> int:
    """Random sizes on all lanes at once; each result has the bits that the batch has alone."""
    generator = torch.Generator().manual_seed(5)
    batches = [
        draw(seed, tuple(torch.randint(1, 300, (3,), generator=generator).tolist())) for seed in range(24)
    ]
    alone = [forward(pool, batch) for batch in batches]
    stop, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < stop:
        jobs = [pool.executor.submit(pool.forward, pack(batch)) for batch in batches]
        assert all(torch.equal(job.result(WAIT_S), want) for job, want in zip(jobs, alone, strict=True))
        rounds += 1
    return rounds


def test_four_lanes_at_mixed_sizes(pool: GraphLanePool) -> None:
    assert run_mixed(pool, 1.0) > 0


@pytest.mark.slow
def test_four_lanes_for_a_minute(pool: GraphLanePool) -> None:
    assert run_mixed(pool, 60.0) > 0
