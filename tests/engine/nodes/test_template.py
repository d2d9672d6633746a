"""Prompt templates."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.nodes.template import Template


def test_fields_and_literal_braces() -> None:
    template = Template.parse('{{"query": "{query}", "title": "{title}"}}')
    assert template.fields == ("query", "title")
    assert template.render({"query": "q", "title": "{x}"}) == '{"query": "q", "title": "{x}"}'


@settings(deadline=None)
@given(st.text(), st.text(), st.text())
def test_literals_and_values_go_in_as_they_are(first: str, value: str, last: str) -> None:
    def escape(text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}")

    template = Template.parse(f"{escape(first)}{{a}}{escape(last)}")
    assert template.render({"a": value}) == first + value + last


def test_what_surrounds_a_field() -> None:
    template = Template.parse("1{a}2{b}3{a}4")
    assert template.render_around("b", {"a": "A", "b": "B"}) == ("1A2", "3A4")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Query:", "no {field}"),
        ("", "no {field}"),
        ("{", "a literal brace is written {{"),
        ("}", "a literal brace is written {{"),
        ("{}", "{} is not a plain field name"),
        ("{0}", "{0} is not a plain"),
        ("{a.b}", "{a.b} is not a plain"),
        ("{a[0]}", "is not a plain"),
        ("{a!r}", "is not a plain"),
        ("{a:>10}", "is not a plain"),
        ("{a b}", "is not a plain"),
        ('{"json": 1}', "is not a plain"),
    ],
)
def test_mistakes_are_told(text: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        Template.parse(text)
    assert words in str(caught.value)
