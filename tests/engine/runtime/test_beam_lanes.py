"""Searches through the compiled packages, on lanes: against transformers, alone and with neighbours."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.artifact import Artifact
from engine.beam.frontier import Frontier
from engine.beam.search import SearchPlan
from engine.build.plain_beams import search_plainly
from engine.errors import ConfigError
from engine.packed import pack
from engine.runtime.beam_lanes import BeamLanes
from engine.runtime.lanes import LanePool

Find = Callable[..., Frontier]
TOLERANCE = 1e-3
NUM_LANES = 2


@pytest.fixture(scope="module")
def artifact(tiny_beam: Any) -> Artifact:
    return Artifact.open(tiny_beam.artifact)


@pytest.fixture(scope="module")
def lanes(artifact: Artifact) -> Iterator[LanePool]:
    pool = artifact.open_lanes(NUM_LANES)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def beams(artifact: Artifact, lanes: LanePool) -> BeamLanes:
    return artifact.open_beams(lanes)


@pytest.fixture(scope="module")
def reference(tiny_beam: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_beam.checkpoint, dtype=torch.float32).eval()


@pytest.fixture
def find(beams: BeamLanes) -> Find:
    def search(prompts: Sequence[list[int]], widths: Sequence[int], steps: int = 4, **more: Any) -> Frontier:
        plan = SearchPlan(steps, **more)
        return beams.pool.executor.submit(beams.search, pack(prompts), widths, plan).result()

    return search


def draw_prompts(count: int, longest: int = 60, seed: int = 1) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(3, 320, (n,), generator=generator).tolist() for n in lengths]


def check(found: Frontier, sample: int, width: int, reference: Any, prompt: list[int], steps: int) -> bool:
    """Scores by rank; sequences too, unless two candidates were too close for float32. True if compared."""
    plain = search_plainly(reference, prompt, width, steps)
    scores = found.scores[sample, :width]
    torch.testing.assert_close(scores, torch.tensor(plain.scores), atol=TOLERANCE, rtol=0)
    tokens = list(map(tuple, found.tokens[sample, :width].tolist()))
    if plain.gap > 1e-4:
        assert tokens == plain.tokens
    return plain.gap > 1e-4


def test_hundred_prompts(find: Find, reference: Any) -> None:
    prompts, compared = draw_prompts(100), 0
    for start in range(0, 100, 8):
        some = prompts[start : start + 8]
        found = find(some, [4] * len(some), 3)
        for sample, prompt in enumerate(some):
            compared += check(found, sample, 4, reference, prompt, 3)
    assert compared > 60


def test_width_one_and_hundred_side_by_side(find: Find, reference: Any) -> None:
    prompts, widths = draw_prompts(4, 30, seed=2), [1, 100, 3, 1]
    found = find(prompts, widths, 4)
    for sample, (prompt, width) in enumerate(zip(prompts, widths, strict=True)):
        check(found, sample, width, reference, prompt, 4)
        assert bool((found.scores[sample, width:] == -torch.inf).all())


def test_one_prompt_of_width_one(find: Find, reference: Any) -> None:
    assert check(find([[5, 6, 7]], [1], 4), 0, 1, reference, [5, 6, 7], 4)


def test_neighbours_do_not_matter(find: Find) -> None:
    prompts = draw_prompts(8, 50, seed=3)
    together = find(prompts, [10] * 8, 3)
    for sample, prompt in enumerate(prompts):
        alone = find([prompt], [10], 3)
        torch.testing.assert_close(alone.scores[0], together.scores[sample], atol=1e-4, rtol=0)
        assert alone.tokens[0].tolist() == together.tokens[sample].tolist()


def test_again_with_memory_of_another_batch(find: Find) -> None:
    """The suffixes' buffer is not cleared between batches."""
    prompts = draw_prompts(3, 20, seed=4)
    first = find(prompts, [20] * 3, 4)
    find(draw_prompts(8, 60, seed=5), [100] * 8, 4)
    again = find(prompts, [20] * 3, 4)
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.scores, again.scores)


def test_both_lanes_at_once(beams: BeamLanes) -> None:
    prompts, barrier = draw_prompts(4, 40, seed=6), threading.Barrier(NUM_LANES)

    def work() -> Frontier:
        barrier.wait(30)
        return beams.search(pack(prompts), [50] * 4, SearchPlan(4))

    one, other = (job.result() for job in [beams.pool.executor.submit(work) for _ in range(NUM_LANES)])
    assert torch.equal(one.tokens, other.tokens)


@pytest.mark.parametrize(
    ("prompts", "widths", "steps", "said"),
    [
        ([[1]] * 9, [2] * 9, 4, "beam.prompts = 9: over the artifact's 8"),
        ([[1]], [101], 4, "beam.width = 101: over the artifact's 100"),
        ([[1]], [4], 5, "beam.steps = 5: over the artifact's 4"),
        ([[1]], [0], 4, "one a prompt, at least 1"),
        ([[1], [2]], [3], 4, "one a prompt, at least 1"),
        ([[1], [423_000]], [3, 3], 4, "not in the vocabulary"),
    ],
)
def test_over_the_bounds(find: Find, prompts: Any, widths: list[int], steps: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        find(prompts, widths, steps)


def test_only_on_a_lane(beams: BeamLanes) -> None:
    with pytest.raises(RuntimeError, match="not a lane's thread"):
        beams.search(pack([[1]]), [2], SearchPlan(1))


def test_an_artifact_without_beams_says_how_to_get_them(tiny_causal: Any, lanes: LanePool) -> None:
    with pytest.raises(ConfigError, match="built without beams; build it with --beam-width"):
        Artifact.open(tiny_causal.artifact).open_beams(lanes)


def test_manifest(artifact: Artifact) -> None:
    beam = artifact.manifest.beam
    assert beam is not None
    assert (beam.bounds.width, beam.bounds.steps, beam.bounds.prompts) == (100, 4, 8)
    assert beam.parity.max_abs_error < 1e-4
    assert beam.parity.same_sequences == 1
