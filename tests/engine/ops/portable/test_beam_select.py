"""beam_select on a CPU: what it does a few rows at a time must not show."""

from __future__ import annotations

import torch

from engine.ops.portable.beam_select import beam_select

COLUMNS = 100_000  # two rows at a time, and one is left


def test_norms_of_a_few_rows_at_a_time_are_those_of_all_at_once() -> None:
    logits = torch.randn(1, 5, COLUMNS, generator=torch.Generator().manual_seed(3)) * 8
    best = beam_select(logits, torch.zeros(1, 5), 7)
    assert torch.equal(best.norms, logits.logsumexp(-1))
    every = (logits - best.norms[..., None]).flatten().sort(descending=True, stable=True)
    assert best.scores[0].tolist() == every.values[:7].tolist()
    assert (best.parents * COLUMNS + best.columns)[0].tolist() == every.indices[:7].tolist()
    assert best.failed.tolist() == [False]


def test_a_request_fails_for_one_logit_of_minus_infinity_whose_norm_is_finite() -> None:
    logits = torch.zeros(3, 3, COLUMNS)
    logits[1, 2, 77] = -torch.inf
    best = beam_select(logits, torch.zeros(3, 3), 2)
    assert bool(best.norms.isfinite().all())
    assert best.failed.tolist() == [False, True, False]
