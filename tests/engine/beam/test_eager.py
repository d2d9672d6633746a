"""The search over eager decoders of every family against a plain search over transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.beam.cache import BeamCache, CacheShape
from engine.beam.frontier import Frontier, Rules
from engine.beam.search import Head, search
from engine.build.plain_beams import search_plainly
from engine.models.beam_decoder import PromptDecoder, StepDecoder
from engine.models.checkpoint import Checkpoint, load_checkpoint
from engine.packed import pack
from tiny_checkpoints import VOCAB, save_checkpoint

MAX_TOKENS, SLOTS, ROWS = 40, 4, 400
FAMILIES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
LENGTHS = (7, 1, 40, 23)


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder: Path = tmp_path_factory.mktemp(request.param)
    return load_checkpoint(save_checkpoint(folder, request.param), max_tokens=MAX_TOKENS + SLOTS)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in LENGTHS]


def run(
    checkpoint: Checkpoint, prompts: list[list[int]], width: int, steps: int, device: str = "cpu", **more: Any
) -> Frontier:
    on = torch.device(device)
    a = checkpoint.architecture
    weights = {name: x.to(on) for name, x in checkpoint.weights.items()}
    passes = [kind.from_weights(a, weights, MAX_TOKENS) for kind in (PromptDecoder, StepDecoder)]
    prompt, step = (lambda inputs, each=each: list(each(*inputs)) for each in passes)
    shape = CacheShape(a.num_layers, SLOTS, ROWS, a.num_kv_heads, a.head_dim)
    cache = BeamCache(prompt, step, shape, torch.float32, on)
    assert checkpoint.lm_head is not None
    widths = torch.tensor(more.pop("widths", [width] * len(prompts)), device=on)
    with torch.inference_mode():
        cache.load(pack(prompts), width)
        found = search(cache, Head(checkpoint.lm_head.to(on)), Rules(width, widths, None, None), steps)
    columns: dict[str, Any] = {name: None if x is None else x.cpu() for name, x in vars(found).items()}
    return Frontier(**columns)


@pytest.mark.parametrize(("width", "steps"), [(2, 3), (5, 4), (100, 2)])
def test_equals_a_plain_search(
    checkpoint: Checkpoint, prompts: list[list[int]], width: int, steps: int
) -> None:
    found = run(checkpoint, prompts, width, steps)
    exact = 0
    for i, prompt in enumerate(prompts):
        plain = search_plainly(checkpoint.reference, prompt, width, steps)
        torch.testing.assert_close(found.scores[i], torch.tensor(plain.scores), atol=1e-3, rtol=0)
        if plain.gap > 1e-5:  # nothing to decide by the last bit
            assert list(map(tuple, found.tokens[i].tolist())) == plain.tokens
            exact += 1
    assert exact >= 2 or width == 100


def test_width_one_in_a_batch_is_greedy(checkpoint: Checkpoint, prompts: list[list[int]]) -> None:
    found = run(checkpoint, prompts, 3, 4, widths=[1, 3, 1, 2])
    for i in (0, 2):
        greedy = search_plainly(checkpoint.reference, prompts[i], 1, 4)
        assert tuple(found.tokens[i, 0].tolist()) == greedy.tokens[0]
        assert found.scores[i, 1:].tolist() == [-torch.inf] * 2


def test_one_prompt_alone(checkpoint: Checkpoint, prompts: list[list[int]]) -> None:
    """`pack` adds a sample of its own to one prompt: it has no beams."""
    alone, together = run(checkpoint, prompts[:1], 6, 3), run(checkpoint, prompts, 6, 3)
    torch.testing.assert_close(alone.scores[0], together.scores[0])
    assert alone.tokens[0].tolist() == together.tokens[0].tolist()


def test_poison_in_one_prompt(checkpoint: Checkpoint, prompts: list[list[int]]) -> None:
    """A token whose embedding is NaN: its prompt fails, and its neighbours find what they found."""
    clean = run(checkpoint, prompts, 4, 3)
    embedding = checkpoint.weights["embed_tokens.weight"]
    kept = embedding[1].clone()
    try:
        embedding[1] = torch.nan
        lm_head = checkpoint.lm_head
        assert lm_head is not None
        if lm_head is embedding:
            pytest.skip("tied: every logit would be NaN")
        found = run(checkpoint, [prompts[0], [5, 1, 6], *prompts[2:]], 4, 3)
    finally:
        embedding[1] = kept
    assert found.failed.tolist() == [False, True, False, False]
    for i in (0, 2, 3):
        assert found.tokens[i].tolist() == clean.tokens[i].tolist()


@pytest.mark.gpu
def test_the_same_code_on_a_device(checkpoint: Checkpoint, prompts: list[list[int]]) -> None:
    """Plain torch, no kernels of our own: what they will be compared with."""
    here, there = run(checkpoint, prompts, 10, 3), run(checkpoint, prompts, 10, 3, "cuda")
    torch.testing.assert_close(there.scores, here.scores, atol=1e-3, rtol=0)
    same = (there.tokens == here.tokens).all(-1).float().mean()
    assert float(same) > 0.9  # the rest: two beams whose scores differ in the last bit
