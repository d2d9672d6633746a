"""The attention's cases are what they are called: sizes, sharing, and how many keys are seen."""

from __future__ import annotations

import pytest

from tools.bench.attention_cases import Case, make_cases


@pytest.mark.parametrize("tokens", [1024, 2048, 4096])
def test_cases_fill_the_batch_with_prompts(tokens: int) -> None:
    cases = make_cases(tokens)
    for name, case in cases.items():
        assert len(case.before or case.lengths) == len(case.lengths)
        assert sum(case.lengths) <= max(tokens, 1354), name
        assert sum(case.lengths) > 0.6 * tokens, name
        for (parent, constant), length in zip(case.before or [], case.lengths, strict=False):
            shared = case.lengths[parent] if parent >= 0 else 0
            assert length + shared + constant == 150 or (parent, constant) == (-1, 0)


def test_pairs_are_those_of_whole_prompts_less_what_is_not_computed() -> None:
    whole, prefix = Case([150] * 2), 64 * 65 // 2
    assert whole.pairs == 150 * 151
    assert Case([86, 86, 64], [(2, 0), (2, 0), (-1, 0)]).pairs == whole.pairs - prefix
    assert Case([86, 86], [(-1, 64)] * 2).pairs == whole.pairs - 2 * prefix
