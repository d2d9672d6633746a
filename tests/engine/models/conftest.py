"""Compares a packed decoder with transformers on one checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.models.checkpoint import Checkpoint, load_checkpoint
from engine.models.decoder import PackedDecoder
from engine.packed import pack
from tiny_checkpoints import VOCAB

MAX_TOKENS = 96
LENGTHS = (1, 2, MAX_TOKENS, 31, 1, 17)


@pytest.fixture(scope="session")
def samples() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in LENGTHS]


@pytest.fixture
def hidden_states(samples: list[list[int]]) -> Callable[[Path], tuple[Checkpoint, Tensor, Tensor]]:
    """path -> the checkpoint, our hidden states of all samples packed, transformers' one at a time."""

    def compute(path: Path, **options: Any) -> tuple[Checkpoint, Tensor, Tensor]:
        checkpoint = load_checkpoint(path, max_tokens=MAX_TOKENS, **options)
        decoder = PackedDecoder.from_weights(checkpoint.architecture, checkpoint.weights, MAX_TOKENS)
        packed = pack(samples)
        with torch.inference_mode():
            ours = decoder(packed.input_ids, packed.positions, packed.cu_seqlens)
            base = checkpoint.reference.base_model
            theirs = [base(torch.tensor([ids])).last_hidden_state[0, -1] for ids in samples]
        return checkpoint, ours, torch.stack(theirs)

    return compute
