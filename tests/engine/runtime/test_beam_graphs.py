"""Captured searches acted out on the CPU: what the same operations give one by one, whatever a batch is."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
import torch

from eager_beams import (
    PLAN,
    PROMPTS,
    SIZES,
    STEPS,
    VOCAB,
    WIDTH,
    OpenBeams,
    captured,
    items,
    make_model,
    plain,
    same,
)
from eager_beams import EagerBeams as Beams
from engine.beam.head_weight import HeadWeight
from engine.beam.kept_cache import KeptCache
from engine.beam.search import SearchPlan
from engine.beam.selection import RawLogits
from engine.packed import pack
from engine.runtime.beam_buckets import BeamBucket, BeamBuckets, make_beam_buckets
from engine.runtime.legal_slots import StaleLegalError

FEW = BeamBuckets([BeamBucket(4, WIDTH, 68), BeamBucket(2, WIDTH, 30)])  # acting a capture out takes its time


def test_every_batch_is_what_its_operations_give(beams: Beams) -> None:
    beams.prepare(PLAN, SIZES)
    launches = beams.pool.launch_report.launches
    for count in (4, 1, 3, 2):
        for widths in ([WIDTH] * count, [1] * count, [WIDTH - i for i in range(count)]):
            for _ in range(2):  # on both lanes
                same(captured(beams, PROMPTS[:count], widths), plain(beams, PROMPTS[:count], widths))
    assert beams.num_graphs == 2 * len(make_beam_buckets(SIZES).all)
    assert beams.pool.launch_report.launches - launches == 4 * 3 * 2


def test_end_tokens_and_slices(beams: Beams) -> None:
    plan = SearchPlan(2, tuple(range(0, 60, 3)), ((0, 60), (10, 55), (5, 48)))
    beams.prepare(plan, SIZES, None, FEW)
    beams.prepare(PLAN, SIZES, None, FEW)
    found = captured(beams, PROMPTS, [WIDTH] * 4, plan)
    same(found, plain(beams, PROMPTS, [WIDTH] * 4, plan))
    assert found.closed is not None
    assert bool(found.closed.any())
    same(captured(beams, PROMPTS, [WIDTH] * 4), plain(beams, PROMPTS, [WIDTH] * 4))


def test_what_was_not_prepared_is_counted_and_answered(beams: Beams) -> None:
    beams.prepare(PLAN, SIZES, None, FEW)
    found = beams.pool.executor.submit(beams.search, pack(PROMPTS), [3] * 4, SearchPlan(1)).result(60)
    same(found, plain(beams, PROMPTS, [3] * 4, SearchPlan(1)))
    assert beams.fallbacks == 1
    beams.pool.on_every_lane(lambda: beams.search(pack(PROMPTS), [3] * 4, SearchPlan(1)))
    assert beams.fallbacks == 3
    assert sorted(lane.eager_searches for lane in beams._lanes) == [1, 2]  # none counts for another thread
    with pytest.raises(ValueError, match=r"beam.prompts = 5: over the artifact's 4"):
        captured(beams, [[1]] * 5, [3] * 5)


def test_a_batch_takes_the_smallest_graph_whoever_asked_for_it(beams: Beams) -> None:
    """Two pipelines of one plan: short prompts, many at once, and long ones, a few."""
    short, long = BeamBuckets([BeamBucket(4, WIDTH, 68)]), BeamBuckets([BeamBucket(2, WIDTH, 30)])
    for buckets in (short, long):
        beams.prepare(PLAN, SIZES, None, buckets)
    key = beams.key(pack(PROMPTS[:2]), [WIDTH] * 2, PLAN, None)
    assert key is not None
    assert key.bucket == BeamBucket(2, WIDTH, 30)


def test_a_batch_without_a_graph_is_not_held(beams: Beams) -> None:
    beams.prepare(PLAN, SIZES, None, FEW)
    for lane in beams._lanes:
        lane._graphs.clear()
    for prompts, said in (
        ([[1]] * 5, "5 prompts, 5 tokens: no graph holds them"),
        (PROMPTS, "4 prompts of 6 beams, 68 tokens: was not captured"),
    ):
        job = beams.pool.executor.submit(beams.hold, pack(prompts), [WIDTH] * len(prompts), PLAN)
        with pytest.raises(ValueError, match=said):
            job.result(60)


def test_a_failed_prompt_fails_alone(open_beams: OpenBeams) -> None:
    """A token whose embedding is NaN, which no beam may take."""
    model = make_model()
    model.prepared["embed_tokens.weight"][11] = torch.nan
    beams, plan = open_beams(model, 1), SearchPlan(STEPS, None, ((12, 60),) * (STEPS + 1))
    beams.prepare(plan, SIZES, None, FEW)
    found = captured(beams, [PROMPTS[0], [3, 11, 2], PROMPTS[2]], [WIDTH] * 3, plan)
    assert found.failed.tolist() == [False, True, False]
    good = captured(beams, [PROMPTS[0], [3, 12, 2], PROMPTS[2]], [WIDTH] * 3, plan)
    for sample in (0, 2):
        assert torch.equal(found.tokens[sample], good.tokens[sample])


def test_items_are_swapped_between_two_batches(beams: Beams) -> None:
    slots = beams.make_slots()
    versions = [items(first, count) for first, count in ((0, 50), (10, 50), (20, 40), (30, 5000))]
    old = served = slots.place(versions[0], None)
    beams.prepare(PLAN, SIZES, slots, FEW)
    for number, version in enumerate(versions):
        if number:
            old, served = served, slots.place(version, served)
        assert served.slot == number % 2
        found = captured(beams, PROMPTS, [WIDTH] * 4, PLAN, served)
        same(found, plain(beams, PROMPTS, [WIDTH] * 4, PLAN, version))
        assert set(found.tokens[..., 0].flatten().tolist()) <= set(range(10 * number, 10 * number + 5))
    slots.place(versions[0], served)
    with pytest.raises(StaleLegalError):
        captured(beams, PROMPTS, [WIDTH] * 4, PLAN, old)
    same(captured(beams, PROMPTS, [4] * 4, PLAN, served), plain(beams, PROMPTS, [4] * 4, PLAN, versions[-1]))
    for _ in range(2):
        beams.release(slots)
        assert beams.num_graphs == 0


def test_8_bits(open_beams: OpenBeams) -> None:
    """Slices that begin and end within what a product takes at once."""
    model = make_model("fp8")
    beams = open_beams(model, 1)
    assert model.head.narrow is not None
    assert model.head.narrow_scale is not None
    wide = HeadWeight((model.head.narrow.float() * model.head.narrow_scale).bfloat16())
    for slices in (None, ((0, 60), (3, 17), (16, VOCAB), (59, 64))):
        plan = SearchPlan(STEPS, None, slices)
        beams.prepare(plan, SIZES, None, FEW)
        found = captured(beams, PROMPTS[:2], [WIDTH] * 2, plan)
        same(found, plain(beams, PROMPTS[:2], [WIDTH] * 2, plan))
        hidden = torch.randn(5, model.head.weight.shape[1]).bfloat16()
        for position in range(STEPS + 1):
            raw, want = (head.of(plan).logits(hidden[None], position) for head in (model.head, wide))
            assert isinstance(raw, RawLogits)
            assert isinstance(want, torch.Tensor)
            assert raw.values.shape == want.shape
            assert float((raw.values * raw.scales[..., None] - want).norm() / want.norm()) < 0.05


def test_steps_are_run_once_before_captures_that_differ_in_tokens(
    beams: Beams, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: Counter[str] = Counter()
    for name in ("prompt", "step"):
        real = getattr(KeptCache, name)

        def run(*given: Any, name: str = name, real: Any = real) -> Any:
            ran[name] += 1
            return real(*given)

        monkeypatch.setattr(KeptCache, name, run)
    slots = beams.make_slots()
    old = slots.place(items(0, 50), None)
    beams.prepare(PLAN, SIZES, slots, BeamBuckets([BeamBucket(2, WIDTH, tokens) for tokens in (30, 46)]))
    lanes, places, graphs = 2, 2, 2
    assert ran == {"prompt": lanes * places * graphs * 2, "step": lanes * places * STEPS * (graphs + 1)}
    ran.clear()
    slots.place(items(0, 5000), old)  # another place, of other sizes
    assert ran == {"prompt": lanes * graphs * 2, "step": lanes * STEPS * graphs * 2}


def test_a_graph_has_no_small_operations(open_beams: OpenBeams) -> None:
    """Each would be a kernel of its own, some 2 us of a lone request's 5,000."""
    model = make_model("fp8")
    empty = torch.zeros(64, model.head.weight.shape[1]).bfloat16()
    passes = (lambda given: [empty[: len(given[2]) - 1]], lambda given: [empty[: len(given[0])]])
    beams = open_beams(dataclasses.replace(model, passes=passes), 1)
    beams.prepare(PLAN, SIZES, None, FEW)
    key = beams.key(pack(PROMPTS), [WIDTH] * 4, PLAN, None)
    assert key is not None
    graph: Any = beams.pool.executor.submit(lambda: beams.this_lane.find(key)).result().graph
    calls = Counter(str(func).split(".")[1] for func, *_ in graph._notes.calls if not func.is_view)
    once = dict.fromkeys(("zeros", "beam_positions", "cat"), 1)
    expansion = dict.fromkeys(
        ("quantise_rows", "linear_e4m3", "beam_select", "beam_rescore", "beam_follow"), STEPS + 1
    )
    assert calls == once | expansion | {"beam_advance": STEPS}
