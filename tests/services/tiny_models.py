"""Fixtures `tiny_causal`, `tiny_beam`, `tiny_classifier`: random Qwen3 checkpoints and their CPU artifacts.

Built once, fifteen seconds each (`tiny_beam`, which can search, takes three times that), and kept like
SmolLM2's. All share a tokenizer made like Qwen's (its splitting, its special tokens, an <|endoftext|> that
its post-processing appends), trained on a few words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

WORDS = "yes no buy compare the wireless mouse with a silent click and a long battery for my new laptop " * 3
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<think>", "</think>"]  # added, but not marked special, as in Qwen3
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class TinyModel:
    """`checkpoint` is what transformers loads, `artifact` what boundgen made of it."""

    checkpoint: Path
    artifact: Path


@pytest.fixture(scope="session")
def tiny_causal(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Qwen3ForCausalLM, head_dim unlike hidden/heads, tied."""
    from transformers import Qwen3ForCausalLM

    return _build(tmp_path_factory, "tiny-causal", Qwen3ForCausalLM, {})


@pytest.fixture(scope="session")
def tiny_beam(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Qwen3ForCausalLM, not tied; 100 beams of up to 5 tokens."""
    from transformers import Qwen3ForCausalLM

    from engine.beam.bounds import BeamBounds

    beam = BeamBounds(width=100, steps=4, prompts=8)
    return _build(tmp_path_factory, "tiny-beam", Qwen3ForCausalLM, {"tie_word_embeddings": False}, beam)


@pytest.fixture(scope="session")
def tiny_classifier(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Qwen3ForSequenceClassification with three labels."""
    from transformers import Qwen3ForSequenceClassification

    labels = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
    return _build(tmp_path_factory, "tiny-classifier", Qwen3ForSequenceClassification, labels)


def qwen_tokenizer(*, append_end: bool) -> Any:
    """The backend tokenizer; `append_end` as Qwen3-Embedding's, without as Qwen3-Reranker's."""
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=420, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator([WORDS, "yes\nno\n" * 3], trainer)
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    if append_end:
        end = (SPECIALS[0], tokenizer.token_to_id(SPECIALS[0]))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {SPECIALS[0]}", special_tokens=[end]
        )
    return tokenizer


def _build(
    folders: pytest.TempPathFactory, name: str, model_class: Any, more: Mapping[str, Any], beam: Any = None
) -> TinyModel:
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3Config

    from engine.packed import BatchBounds
    from tools.artifact_cache import Wanted, cached_artifact

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=qwen_tokenizer(append_end=True), pad_token=SPECIALS[0], padding_side="left"
    )
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        initializer_range=0.2,  # wide, so that scores differ between samples
        pad_token_id=tokenizer.pad_token_id,
        **({"tie_word_embeddings": True} | more),
    )
    torch.manual_seed(11)
    checkpoint = folders.mktemp(name)
    model_class(config).eval().save_pretrained(checkpoint)
    tokenizer.save_pretrained(str(checkpoint))
    bounds = BatchBounds(samples=32, tokens=2048, tokens_per_sample=512)
    return TinyModel(checkpoint, cached_artifact(Wanted(checkpoint, name, "cpu", None, bounds, beam=beam)))
