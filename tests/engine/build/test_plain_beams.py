"""The plain search behind a cache, against sequences that are read whole."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.build.plain_beams import search_plainly
from engine.models.checkpoint import Checkpoint, load_checkpoint
from tiny_checkpoints import VOCAB, save_checkpoint

PROMPT = [5, 9, 200, 17, 5, 44, 3]
WIDTH, STEPS, TOLERANCE = 40, 4, 1e-4


@pytest.fixture(scope="module", params=("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder: Path = tmp_path_factory.mktemp(request.param)
    return load_checkpoint(save_checkpoint(folder, request.param), max_tokens=64)


def read_whole(checkpoint: Checkpoint, sequences: Tensor) -> Tensor:
    """sequences[N, L] after PROMPT -> log-probabilities [N, L + 1, VOCAB] of what follows each prefix."""
    prompts = torch.tensor(PROMPT).expand(len(sequences), -1)
    with torch.inference_mode():
        logits = checkpoint.reference(torch.cat((prompts, sequences), 1), use_cache=False).logits
    return logits[:, len(PROMPT) - 1 :].double().log_softmax(-1)


def test_a_score_is_that_of_the_sequence_read_whole(checkpoint: Checkpoint) -> None:
    found = search_plainly(checkpoint.reference, PROMPT, WIDTH, STEPS)
    sequences = torch.tensor(found.tokens)
    assert sequences.shape == (WIDTH, STEPS + 1)
    assert len(set(found.tokens)) == WIDTH
    each = read_whole(checkpoint, sequences)[:, :-1].gather(2, sequences[..., None])[..., 0]
    scores = torch.tensor(found.scores, dtype=torch.float64)
    torch.testing.assert_close(scores, each.sum(1), atol=TOLERANCE, rtol=0)
    assert found.scores == sorted(found.scores, reverse=True)


def test_as_wide_as_the_vocabulary_it_finds_the_best_of_all_pairs(checkpoint: Checkpoint) -> None:
    """All of them read whole; the cut is the distance to the best that was left out."""
    found = search_plainly(checkpoint.reference, PROMPT, VOCAB, 1)
    each = read_whole(checkpoint, torch.arange(VOCAB)[:, None])
    pairs = (each[0, 0][:, None] + each[:, 1]).flatten().sort(descending=True)
    best, left_out = pairs.values[:VOCAB], pairs.values[VOCAB]
    torch.testing.assert_close(torch.tensor(found.scores, dtype=torch.float64), best, atol=TOLERANCE, rtol=0)
    assert found.cut == pytest.approx(float(best[-1] - left_out), abs=TOLERANCE)
    if found.gap > TOLERANCE:
        assert found.tokens == [(int(i) // VOCAB, int(i) % VOCAB) for i in pairs.indices[:VOCAB]]


def test_of_equal_scores_the_first_parent_and_token_come_first(checkpoint: Checkpoint) -> None:
    model = copy.deepcopy(checkpoint.reference)
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    found = search_plainly(model, PROMPT, 3, 2)
    assert found.tokens == [(0, 0, 0), (0, 0, 1), (0, 0, 2)]
    assert found.scores == pytest.approx([-3 * math.log(VOCAB)] * 3)
    assert found.gap == found.cut == 0
