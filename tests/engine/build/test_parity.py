"""The measurement that every build ends with: it passes what is right and fails what is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.build.parity import measure_parity
from engine.build.probes import probe_samples
from engine.errors import ArtifactError
from engine.models.checkpoint import Checkpoint, load_checkpoint
from engine.models.decoder import PackedDecoder, no_constant
from engine.packed import BatchBounds, PackedBatch
from tiny_checkpoints import save_checkpoint

BOUNDS = BatchBounds(samples=4, tokens=128, tokens_per_sample=64)
CLASSES = {
    "LlamaForCausalLM": "log-probability",
    "Qwen2ForSequenceClassification": "score",
    "Qwen3Model": "hidden state",
}
Forward = Callable[[PackedBatch], Tensor]


@pytest.fixture(params=CLASSES)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    path = save_checkpoint(tmp_path / "m", request.param, head_dim=8, pad_token_id=0)
    return load_checkpoint(path, max_tokens=64)


@pytest.fixture
def forward(checkpoint: Checkpoint) -> Forward:
    decoder = PackedDecoder.from_weights(checkpoint.architecture, checkpoint.weights, 64)

    def run(packed: PackedBatch) -> Tensor:
        assert packed.num_samples <= BOUNDS.samples
        assert packed.num_tokens <= BOUNDS.tokens
        given = (packed.input_ids, packed.positions, packed.cu_seqlens)
        if packed.prefixes is not None:
            dtype, device = torch.float32, torch.device("cpu")
            given += (packed.prefixes, no_constant(checkpoint.architecture, dtype, device))
        with torch.inference_mode():
            return decoder(*given)[: packed.num_samples]

    return run


def test_right_result(checkpoint: Checkpoint, forward: Forward) -> None:
    parity = measure_parity(checkpoint, forward, BOUNDS, "float32")
    assert parity.quantity == CLASSES[type(checkpoint.reference).__name__]
    assert parity.max_abs_error < 1e-3
    assert parity.top1_agreement in (1.0, None)
    assert parity.tokens <= 2048


def test_prefixes_are_measured_too(checkpoint: Checkpoint, forward: Forward) -> None:
    assert measure_parity(checkpoint, forward, BOUNDS, "float32", prefixes=True).max_abs_error < 1e-3

    def spoil(packed: PackedBatch) -> Tensor:
        return forward(packed) * (1.0 if packed.prefixes is None else 1.01)

    measure_parity(checkpoint, spoil, BOUNDS, "float32")
    with pytest.raises(ArtifactError, match="parity"):
        measure_parity(checkpoint, spoil, BOUNDS, "float32", prefixes=True)


@pytest.mark.parametrize("spoil", [lambda h: h * 1.01, lambda h: h.roll(1, 0), lambda h: h * float("nan")])
def test_wrong_result(checkpoint: Checkpoint, forward: Forward, spoil: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ArtifactError, match=r"parity: .* differs from transformers by up to"):
        measure_parity(checkpoint, lambda packed: spoil(forward(packed)), BOUNDS, "float32")


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 300, 4096])
def test_probes(max_tokens: int) -> None:
    samples = probe_samples(None, 50, max_tokens, frozenset({0}))
    assert samples == probe_samples(None, 50, max_tokens, frozenset({0}))
    lengths = [len(sample) for sample in samples]
    assert min(lengths) == 1
    assert max(lengths) <= max_tokens
    assert sum(lengths) <= 2048
    assert all(0 < token < 50 for sample in samples for token in sample)
