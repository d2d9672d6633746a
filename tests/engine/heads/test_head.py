"""Logits over the vocabulary in bfloat16: kept in float32 where the device can."""

from __future__ import annotations

import pytest
import torch

from engine.heads.head import class_log_norm, vocabulary_logits


def test_float32_is_exact_matmul() -> None:
    hidden, weight = torch.randn(3, 8), torch.randn(20, 8)
    torch.testing.assert_close(vocabulary_logits(hidden, weight), hidden @ weight.T)


@pytest.mark.gpu
def test_bfloat16_on_cuda_is_not_rounded_at_the_end() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(17, 64, dtype=torch.bfloat16) * 4, torch.randn(501, 64, dtype=torch.bfloat16)
    logits = vocabulary_logits(hidden.cuda(), weight.cuda()).cpu()
    assert logits.dtype is torch.float32
    torch.testing.assert_close(logits, hidden.float() @ weight.float().T, atol=1e-4, rtol=1e-5)


def test_class_log_norm() -> None:
    logits = torch.tensor([[1.0, 2.0], [0.0, -3.0]])
    torch.testing.assert_close(class_log_norm(logits), logits.logsumexp(-1))
    one = torch.tensor([[0.5], [-40.0]])
    torch.testing.assert_close(one[:, 0] - class_log_norm(one), torch.nn.functional.logsigmoid(one[:, 0]))
