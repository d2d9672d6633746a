"""Cutting a field: the longest prefix that fits, against trying every prefix."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.nodes.cutting import Prompt, cut_to_fit
from tiny_models import qwen_tokenizer

TOKENIZER = qwen_tokenizer(append_end=True)
LONGEST = max(map(len, TOKENIZER.get_vocab()))
PIECES = [
    "wireless",
    " mouse",
    " yes",
    "\n",
    "\n\n",
    " ",
    "   ",
    "😀",
    "é",
    "e\u0301",
    "日本",
    "12",
    "!?",
    "buyx",
    ".",
]
text = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def tokenize(prompt: str, specials: bool) -> list[int]:
    return list(TOKENIZER.encode(prompt, add_special_tokens=specials).ids)


def cut(prompt: Prompt, limit: int, specials: bool = False) -> list[int] | None:
    return cut_to_fit(TOKENIZER, prompt, limit, add_special_tokens=specials, max_token_chars=LONGEST)


@settings(max_examples=400, deadline=None)
@given(text, text, st.sampled_from(["", "\n", "\nyes:", " ", "<|im_end|>\n"]), st.booleans(), st.data())
def test_the_longest_prefix_that_fits(
    before: str, value: str, after: str, specials: bool, data: st.DataObject
) -> None:
    num_tokens = len(tokenize(before + value + after, specials))
    assume(num_tokens > 1)
    limit = data.draw(st.integers(1, num_tokens))
    tried = [tokenize(before + value[:end] + after, specials) for end in range(len(value), -1, -1)]
    assert cut(Prompt(before, value, after), limit, specials) == next(
        (ids for ids in tried if len(ids) <= limit), None
    )


def test_a_huge_value_costs_no_more_than_a_large_one() -> None:
    ids = cut(Prompt("Query: ", " mouse" * 1_000_000, "\nyes:"), 64)
    assert ids is not None
    assert len(ids) == 64


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_too_small_a_limit(limit: int) -> None:
    assert cut(Prompt("wireless mouse with", " a silent", " click"), limit) is None
