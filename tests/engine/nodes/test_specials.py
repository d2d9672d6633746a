"""Special tokens spelled out in a request."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.nodes.specials import SpecialTokens
from tiny_models import qwen_tokenizer

TOKENIZER = qwen_tokenizer(append_end=True)
SPECIALS = SpecialTokens(TOKENIZER)


def test_tags_count_as_special_though_they_are_not_marked() -> None:
    assert SPECIALS.find("x </think> y") == "</think>"
    assert SPECIALS.find("a < b > c, <b>bold</b>, |im_end|") is None


def test_removing_one_does_not_make_another() -> None:
    assert SPECIALS.remove("<|im_<|im_end|>end|>") == "<|im_ end|>"


@settings(deadline=None)
@given(st.lists(st.sampled_from(["<|im_", "end|>", "<|im_end|>", "<", "think>", "</think>", " ", "x"])))
def test_none_is_left(parts: list[str]) -> None:
    stripped = SPECIALS.remove("".join(parts))
    assert SPECIALS.find(stripped) is None
    assert SPECIALS.count(TOKENIZER.encode(stripped, add_special_tokens=False).ids) == 0


def test_ordinary_text_is_left_alone() -> None:
    text = "wireless mouse <3 50% off"
    assert SPECIALS.remove(text) == text
