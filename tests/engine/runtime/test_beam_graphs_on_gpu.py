"""Captured searches on a device: against their operations, and a search over the eager decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
import torch
from torch import Tensor

from eager_beams import (
    ARCHITECTURE,
    PLAN,
    PROMPTS,
    SIZES,
    STEPS,
    WIDTH,
    EagerBeams,
    TinyModel,
    captured,
    items,
    make_beams,
    make_model,
    plain,
    same,
)
from engine.beam.search import SearchPlan
from engine.models.decoder import PackedDecoder
from engine.packed import pack
from engine.runtime.legal_slots import StaleLegalError

pytestmark = pytest.mark.gpu
# Of a sum of four log-probabilities: from float32 (0.1 and 0.4 are seen), from other batches' products.
TOLERANCE, BATCHED = {"bf16": 0.25, "fp8": 1.0}, {"bf16": 0.15, "fp8": 0.6}


@pytest.fixture(scope="module", params=["bf16", "fp8"])
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(precision: str) -> TinyModel:
    return make_model(precision, "cuda")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def beams(model: TinyModel) -> Iterator[EagerBeams]:
    made = make_beams(model)
    made.prepare(PLAN, SIZES)
    yield made
    made.pool.close()


def search_wholly(model: TinyModel, prompt: list[int], width: int) -> tuple[Tensor, list[tuple[int, ...]]]:
    """Every sequence computed whole by the eager decoder in float32: scores and sequences, best first."""
    weights = {name: x.float() for name, x in model.weights.items()}
    decoder = PackedDecoder.from_weights(ARCHITECTURE, weights, 64)
    scores, sequences = torch.zeros(1, device="cuda"), [tuple(prompt)]
    with torch.inference_mode():
        for _ in range(STEPS + 1):
            packed = pack(sequences)
            hidden = decoder(*(x.cuda() for x in (packed.input_ids, packed.positions, packed.cu_seqlens)))
            logits = hidden[: len(sequences)] @ model.head.weight.float().t()
            candidates = (logits.log_softmax(-1) + scores[:, None]).flatten()
            best = candidates.sort(descending=True, stable=True)
            scores, picked = best.values[:width], best.indices[:width].tolist()
            sequences = [(*sequences[i // logits.shape[1]], i % logits.shape[1]) for i in picked]
    return scores.cpu(), [sequence[len(prompt) :] for sequence in sequences]


def test_graphs_give_what_their_operations_give(beams: EagerBeams, precision: str) -> None:
    """Every count of prompts and widths; the same bits, again and again, on both lanes."""
    for count in (4, 1, 3, 2):
        for widths in ([WIDTH] * count, [1] * count, [WIDTH - i for i in range(count)]):
            found = captured(beams, PROMPTS[:count], widths)
            for _ in range(4):
                same(captured(beams, PROMPTS[:count], widths), found)
            scores = plain(beams, PROMPTS[:count], widths).scores
            torch.testing.assert_close(scores, found.scores, atol=BATCHED[precision], rtol=0)


def test_scores_and_sequences_are_those_of_a_plain_search(
    beams: EagerBeams, model: TinyModel, precision: str
) -> None:
    found, near = captured(beams, PROMPTS, [WIDTH] * 4), 0
    for sample, prompt in enumerate(PROMPTS):
        scores, sequences = search_wholly(model, prompt, WIDTH)
        torch.testing.assert_close(found.scores[sample], scores, atol=TOLERANCE[precision], rtol=0)
        near += len(set(sequences) & set(map(tuple, found.tokens[sample].tolist())))
    assert near >= (0.8 if precision == "bf16" else 0.5) * 4 * WIDTH


def test_width_one_is_greedy(beams: EagerBeams, model: TinyModel, precision: str) -> None:
    found = captured(beams, PROMPTS, [1] * 4)
    for sample, prompt in enumerate(PROMPTS):
        scores, _ = search_wholly(model, prompt, 1)
        assert float(found.scores[sample, 0] - scores[0]) == pytest.approx(0, abs=TOLERANCE[precision])
        assert bool((found.scores[sample, 1:] == -torch.inf).all())


def test_neighbours_do_not_matter_within_a_bucket(beams: EagerBeams) -> None:
    others: Sequence[list[int]] = [[7] * 3, [60], [1, 2, 3] * 6 + [4, 5], [0] * 5]
    found = captured(beams, PROMPTS, [WIDTH] * 4)
    for sample in range(4):
        batch = [*others[:sample], PROMPTS[sample], *others[sample + 1 :]]
        mixed = captured(beams, batch, [WIDTH] * 4)
        assert torch.equal(mixed.scores[sample], found.scores[sample])
        assert torch.equal(mixed.tokens[sample], found.tokens[sample])


def test_nan_fails_one_request_alone() -> None:
    model = make_model("bf16", "cuda")
    model.prepared["embed_tokens.weight"][11] = torch.nan
    beams, plan = make_beams(model, 1), SearchPlan(STEPS, None, ((12, 60),) * (STEPS + 1))
    with closing(beams.pool):
        beams.prepare(plan, SIZES)
        found = captured(beams, [PROMPTS[0], [3, 11, 2], PROMPTS[2]], [WIDTH] * 3, plan)
        good = captured(beams, [PROMPTS[0], [3, 12, 2], PROMPTS[2]], [WIDTH] * 3, plan)
    assert found.failed.tolist() == [False, True, False]
    for sample in (0, 2):
        assert torch.equal(found.tokens[sample], good.tokens[sample])
        assert torch.equal(found.scores[sample], good.scores[sample])


def test_items_are_swapped_between_two_replays(beams: EagerBeams) -> None:
    slots = beams.make_slots()
    versions = [items(first, count) for first, count in ((0, 50), (10, 50), (20, 40), (30, 5000))]
    old = served = slots.place(versions[0], None)
    beams.prepare(PLAN, SIZES, slots)
    for number, version in enumerate(versions):
        if number:
            old, served = served, slots.place(version, served)
        found = captured(beams, PROMPTS, [WIDTH] * 4, PLAN, served)
        alive = found.tokens[..., 0][found.scores.isfinite()]
        assert set(alive.tolist()) <= set(range(10 * number, 10 * number + 5))
        same(captured(beams, PROMPTS, [WIDTH] * 4, PLAN, served), found)
    slots.place(versions[0], served)
    with pytest.raises(StaleLegalError):
        captured(beams, PROMPTS, [WIDTH] * 4, PLAN, old)


def test_end_tokens_and_slices(beams: EagerBeams, precision: str) -> None:
    plan = SearchPlan(2, tuple(range(0, 60, 3)), ((0, 60), (10, 55), (5, 48)))
    beams.prepare(plan, SIZES)
    found = captured(beams, PROMPTS, [WIDTH] * 4, plan)
    scores = plain(beams, PROMPTS, [WIDTH] * 4, plan).scores
    torch.testing.assert_close(scores, found.scores, atol=BATCHED[precision], rtol=0)
    assert found.closed is not None
    assert bool(found.closed.any())
