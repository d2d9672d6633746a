"""Lanes of graphs, acted out on the CPU: results by batch and head, fallbacks counted, errors at load and in
use."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest
import torch
from torch import Tensor

from engine.packed import BatchBounds, pack
from engine.prefixes import ConstantPrefix, Prefixes, Rules
from engine.runtime.graph_lanes import GraphLanePool
from engine.runtime.native import Runner
from table_lanes import VOCAB, WEIGHTS, TablePool, TableRunner

BOUNDS = BatchBounds(40, 200, 100)


def make_pool(lanes: int = 2, kind: type[GraphLanePool] = TablePool) -> GraphLanePool:
    return kind(
        Path("none/model.pt2"),
        WEIGHTS,
        BOUNDS,
        vocab_size=VOCAB,
        device=torch.device("cpu"),
        lanes=lanes,
        threads=1,
    )


def double(hidden: Tensor) -> tuple[Tensor, ...]:
    return (hidden[:, :1] * 2, hidden.argmax(-1))


@pytest.mark.usefixtures("acted_cuda")
def test_results_are_those_of_the_batch_in_every_bucket() -> None:
    pool = make_pool()
    pool.prepare(double)
    for lengths in ([1], [3, 1], [60] * 3, [1] * 40, [5] * 40, [100, 100]):
        samples = [[(7 * i + j) % 50 for j in range(length)] for i, length in enumerate(lengths)]
        scores, best = pool.executor.submit(pool.run, pack(samples), double).result()
        assert scores[:, 0].tolist() == [2.0 * sample[-1] for sample in samples]
        assert scores.dtype == torch.float32
        assert best.shape == (len(samples),)
    assert pool.fallbacks == 0
    pool.close()


@pytest.mark.usefixtures("acted_cuda")
def test_heads_prepared_by_two_threads_at_once() -> None:
    pool = make_pool()
    heads = [lambda hidden, i=i: (hidden * i,) for i in range(6)]
    threads = [Thread(target=pool.prepare, args=(head,)) for head in heads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert pool.executor.submit(pool.run, pack([[3]]), heads[2]).result()[0].tolist() == [[6.0] * 4]
    assert pool.fallbacks == 0
    pool.close()


@pytest.mark.usefixtures("acted_cuda")
def test_results_outlive_the_next_batch_of_the_same_lane() -> None:
    pool = make_pool(lanes=1)
    pool.prepare(double)
    first = pool.executor.submit(pool.run, pack([[1, 2]]), double).result()
    pool.executor.submit(pool.run, pack([[1, 9]]), double).result()
    assert first[0].tolist() == [[4.0]]
    pool.close()


@pytest.mark.usefixtures("acted_cuda")
def test_a_head_that_was_not_prepared_counts_as_a_fallback() -> None:
    pool = make_pool(lanes=1)
    hidden = pool.executor.submit(pool.forward, pack([[1, 2], [3]])).result()
    assert hidden.tolist() == [[2.0] * 4, [3.0] * 4]
    assert pool.fallbacks == 1
    pool.close()


@pytest.mark.usefixtures("acted_cuda")
def test_what_loading_took_and_what_a_bucket_costs() -> None:
    pool = make_pool()
    report = pool.load_report
    assert report.graphs == 2 * len(pool.measure_cost().buckets.all())
    assert report.weights_bytes == 4 * 4 + 50 * 4 * 2
    assert len(report.lane_bytes) == 2
    assert pool.cost.predict_ms(200) > 0
    assert pool.cost.points[-1][0] == 200
    assert pool.fallbacks == 0
    pool.close()


@pytest.mark.usefixtures("acted_cuda")
def test_a_lane_that_cannot_open_fails_the_load() -> None:
    class Broken(GraphLanePool):
        def open_runner(self) -> Runner:
            raise RuntimeError("no such package")

    with pytest.raises(RuntimeError, match="no such package"):
        make_pool(lanes=3, kind=Broken)


@pytest.mark.usefixtures("acted_cuda")
def test_over_the_bounds_and_off_the_lane() -> None:
    pool = make_pool(lanes=1)
    with pytest.raises(ValueError, match="tokens_per_sample = 150"):
        pool.executor.submit(pool.run, pack([[1] * 150]), double).result()
    with pytest.raises(RuntimeError, match="not a lane's thread"):
        pool.run(pack([[1]]), double)
    pool.close()


class PrefixRunner(TableRunner):
    """hidden[s] = table[last token of s] + its parent's first token + what its constant rows add up to."""

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        ids, positions, borders, prefixes, constant = inputs
        (hidden,) = super().run([ids, positions, borders])
        parent, count = prefixes.long().unbind(-1)
        first = torch.where(parent < 0, 0, ids[borders[parent.clamp_min(0)].long()])
        sums = torch.cat([torch.zeros(1), constant[0, 0, :, 0, 0].cumsum(0)])
        return [hidden + (first + sums[count])[:, None].bfloat16()]


class PrefixPool(GraphLanePool):
    def open_runner(self) -> Runner:
        return PrefixRunner()


@pytest.mark.usefixtures("acted_cuda")
def test_prefixes_reach_the_graph_and_a_lane_holds_the_constant_it_ran_last() -> None:
    pool = PrefixPool(
        Path("none/model.pt2"), WEIGHTS, BOUNDS,
        vocab_size=VOCAB, device=torch.device("cpu"), lanes=1, no_constant=torch.zeros(1, 2, 2, 1, 1),
    )  # fmt: skip
    assert pool.takes_prefixes
    assert (pool.most_segments, pool.most_constant) == (40, 99)
    rules = Rules(1, 1, 1)
    ones, twos = (ConstantPrefix((7, 8, 9), torch.full((1, 2, 3, 1, 1), value)) for value in (1.0, 2.0))
    request = [(7, 8, 9, 20, 1), (7, 8, 9, 20, 2)]  # three constant tokens, then one that they share
    for constant, total in ((ones, 3.0), (twos, 6.0), (ones, 3.0)):
        packed, _ = Prefixes(constant, rules, pool.most_segments).pack([request, [(5,)]])
        hidden = pool.executor.submit(pool.forward, packed).result()
        assert hidden[:, 0].tolist() == [1 + 20 + total, 2 + 20 + total, 5]
    plain = pool.executor.submit(pool.forward, pack([[3]])).result()
    assert plain[:, 0].tolist() == [3.0]
    pool.close()


@pytest.mark.usefixtures("acted_cuda")
def test_costs_are_those_of_buckets_that_batches_can_fill() -> None:
    pool = TablePool(
        Path("none/model.pt2"), WEIGHTS, BatchBounds(2, 600, 200),
        vocab_size=VOCAB, device=torch.device("cpu"), lanes=2,
    )  # fmt: skip
    pool.share()  # two samples of 200 tokens at most
    assert pool.cost.points[0][0] == 64
    assert pool.cost.points[-1][0] == pool.cost.buckets.choose(400, 2).tokens
    assert max(each.tokens for each in pool.load_report.sharing) <= 416
    assert pool.cost.predict_ms(600) > 0
    pool.close()
