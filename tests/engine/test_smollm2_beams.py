"""SmolLM2-135M searched through its compiled packages, against a plain float32 search over transformers.

The rule: both find the same set of sequences, with scores within TOLERANCE and in the same order; two of them
may change places only where their plain scores are closer than CLOSE. Only where the plain search itself
dropped a candidate closer than CLOSE to the last one that it kept may the sets differ: such a prompt is
undecided, what both found is compared, and there may be few of them.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.artifact import Artifact
from engine.beam.search import SearchPlan
from engine.build.plain_beams import PlainBeams, search_plainly
from engine.packed import pack
from engine.runtime.beam_lanes import BeamLanes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

TEXT = Path(__file__).parents[2] / "LICENSE"
TOLERANCE = 1e-3
# A score of either search is up to 1.5e-4 from float64's, so a smaller difference may have either sign. In
# all 300 searches three pairs were seen to change places, at most 6.4e-6 apart, and no set differed.
CLOSE = 1e-4
UNDECIDED = 0.03  # of the prompts
STEPS, LONGEST = 4, 60  # LONGEST: tokens of a prompt
# BOUNDGEN_LARGE=1 takes a quarter of an hour on a core. Width -> prompts.
ALL = "BOUNDGEN_LARGE" in os.environ
CASES = {1: 100, 4: 100, 100: 100} if ALL else {1: 8, 4: 8, 100: 2}
RUN_S = 900


@dataclass(frozen=True)
class Outcome:
    """One prompt's sequences beside the plain ones."""

    same: bool  # the set
    moved: int  # ranks that hold another sequence
    error: float  # the greatest of a score of a sequence found by both
    apart: float  # the greatest difference between the plain scores of two sequences at one rank
    cut: float


@pytest.fixture(scope="module")
def artifact(smollm2_artifact: Path) -> Artifact:
    return Artifact.open(smollm2_artifact)


@pytest.fixture(scope="module")
def beams(artifact: Artifact) -> Iterator[BeamLanes]:
    lanes = artifact.open_lanes(1, torch.get_num_threads())
    yield artifact.open_beams(lanes)
    lanes.close()


@pytest.fixture(scope="module")
def reference(smollm2_gguf: Path) -> Any:
    from engine.models.checkpoint import load_checkpoint

    return load_checkpoint(smollm2_gguf, max_tokens=512).reference


def draw_prompts(artifact: Artifact, count: int) -> list[list[int]]:
    """Passages of a real text, 3 to LONGEST tokens."""
    rng, words = random.Random(1), artifact.tokenizer.encode(TEXT.read_text())
    lengths = [rng.randint(3, LONGEST) for _ in range(count)]
    starts = [rng.randrange(len(words) - length) for length in lengths]
    return [words[start : start + length] for start, length in zip(starts, lengths, strict=True)]


def compare(tokens: list[tuple[int, ...]], scores: list[float], plain: PlainBeams) -> Outcome:
    known = dict(zip(plain.tokens, plain.scores, strict=True))
    assert len(set(tokens)) == len(tokens) == len(known)
    ranks = list(zip(tokens, scores, plain.tokens, plain.scores, strict=True))
    return Outcome(
        same=set(tokens) == set(known),
        moved=sum(mine != theirs for mine, _, theirs, _ in ranks),
        error=max(abs(score - known[mine]) for mine, score, _, _ in ranks if mine in known),
        apart=max(abs(known[mine] - score) for mine, _, _, score in ranks if mine in known),
        cut=plain.cut,
    )


@pytest.mark.parametrize("width", CASES)
def test_equals_a_plain_search(width: int, artifact: Artifact, beams: BeamLanes, reference: Any) -> None:
    prompts, outcomes = draw_prompts(artifact, CASES[width]), []
    for start in range(0, len(prompts), beams.bounds.prompts):
        some = prompts[start : start + beams.bounds.prompts]
        job = beams.pool.executor.submit(beams.search, pack(some), [width] * len(some), SearchPlan(STEPS))
        found = job.result(RUN_S)
        for sample, prompt in enumerate(some):
            tokens = list(map(tuple, found.tokens[sample, :width].tolist()))
            plain = search_plainly(reference, prompt, width, STEPS)
            outcomes.append(compare(tokens, found.scores[sample, :width].tolist(), plain))
    sys.stdout.write(report(width, outcomes) + "\n")  # pytest -s shows it
    for outcome in outcomes:
        assert outcome.error < TOLERANCE, outcome
        if outcome.same:
            assert outcome.apart < CLOSE, outcome
        else:
            assert outcome.cut < CLOSE, outcome
    assert sum(not outcome.same for outcome in outcomes) <= UNDECIDED * len(outcomes)


def report(width: int, outcomes: list[Outcome]) -> str:
    """A line about all, and one for each prompt that is not exactly the same."""
    exact = sum(outcome.same and not outcome.moved for outcome in outcomes)
    sets, error = sum(outcome.same for outcome in outcomes), max(outcome.error for outcome in outcomes)
    odd = [f"  {i}: {outcome}" for i, outcome in enumerate(outcomes) if outcome.moved or outcome.cut < CLOSE]
    head = f"width {width}: {len(outcomes)} prompts, {exact} exact, {sets} the same set, error {error:.1e}"
    return "\n".join((head, *odd))
