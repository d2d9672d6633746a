"""The tokens that every prompt of a template starts with, on a tokenizer that merges across borders."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.nodes.leading import leading_tokens
from engine.nodes.template import Template
from engine.prefixes import common_length
from tiny_models import qwen_tokenizer

INSTRUCTION = "<|im_start|>the wireless mouse with a silent click and a long battery\n"


@pytest.fixture(scope="module")
def backend() -> Any:
    return qwen_tokenizer(append_end=True)


def leading(backend: Any, *templates: str, specials: bool = False) -> list[int]:
    parsed = [Template.parse(each) for each in templates]
    return list(leading_tokens(backend, parsed, add_special_tokens=specials))


def ids(backend: Any, text: str) -> list[int]:
    return list(backend.encode(text, add_special_tokens=False).ids)


def test_the_template_up_to_its_first_field(backend: Any) -> None:
    found = leading(backend, INSTRUCTION + "<|im_end|>{query} for {title}")
    assert found == ids(backend, INSTRUCTION + "<|im_end|>")


@pytest.mark.parametrize("template", ["{query}", "{query} for my laptop", " {query}"])
def test_a_template_that_starts_with_a_field_has_none(backend: Any, template: str) -> None:
    assert leading(backend, template) == []


def test_a_token_that_merges_with_what_follows_is_not_in_it(backend: Any) -> None:
    """The border is inside a word, or at a line end that joins others."""
    assert ids(backend, "the mou") != ids(backend, "the mouse")[:-1]
    assert leading(backend, "for the mou{query}") == ids(backend, "for the")
    assert leading(backend, "for the mouse.\n{query}")[: len(ids(backend, "for the mouse"))] == ids(
        backend, "for the mouse"
    )


def test_of_several_templates_what_they_share(backend: Any) -> None:
    found = leading(backend, INSTRUCTION + "yes {query}", INSTRUCTION + "no {title}")
    assert 0 < len(found) <= len(ids(backend, INSTRUCTION))
    assert found == ids(backend, INSTRUCTION)[: len(found)]


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=12))
def test_nearly_all_of_it_is_there_whatever_follows(backend: Any, text: str) -> None:
    found = leading(backend, INSTRUCTION + "{query}<|im_end|>")
    prompt = ids(backend, INSTRUCTION + text + "<|im_end|>")
    assert common_length(found, prompt) >= len(found) - 1
