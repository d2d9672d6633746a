"""The tokenizer node: templates, raw text, token ids, cutting, special tokens; every bad sample is named."""

from __future__ import annotations

from typing import Any

import pytest

from engine.bounds import Bounds
from engine.errors import ConfigError, InputError
from engine.values import Samples, Tokens

TEMPLATE = "<|im_start|>Query: {query}\nProduct: {title}\nRelevant:"


@pytest.fixture
def backend(artifacts: Any) -> Any:
    return artifacts.get("causal").artifact.tokenizer.backend_tokenizer


@pytest.fixture
def tokenize(make_node: Any, sample: Any) -> Any:
    def tokenize(samples: list[dict[str, Any]], **options: Any) -> tuple[tuple[int, ...], ...]:
        node = make_node("tokenizer", artifact="causal", **options)
        (tokens,) = node.run([(Samples(tuple(sample(**each) for each in samples)),)])
        assert isinstance(tokens, Tokens)
        return tokens.ids

    return tokenize


def ids(backend: Any, text: str) -> tuple[int, ...]:
    return tuple(backend.encode(text, add_special_tokens=False).ids)


def test_a_template_is_tokenized_whole(tokenize: Any, backend: Any) -> None:
    samples = [{"fields": {"query": "mouse", "title": "silent"}}, {"fields": {"query": 5, "title": 2.5}}]
    assert tokenize(samples, template=TEMPLATE) == (
        ids(backend, "<|im_start|>Query: mouse\nProduct: silent\nRelevant:"),
        ids(backend, "<|im_start|>Query: 5\nProduct: 2.5\nRelevant:"),
    )


def test_text_and_token_ids_without_a_template(tokenize: Any, backend: Any) -> None:
    assert tokenize([{"text": "my new laptop"}, {"token_ids": [3, 4]}]) == (
        ids(backend, "my new laptop"),
        (3, 4),
    )


def test_text_is_the_field_named_text(tokenize: Any, backend: Any) -> None:
    samples = [{"text": "buy"}, {"fields": {"text": "buy"}}]
    assert tokenize(samples, template="{text}<|endoftext|>") == (ids(backend, "buy<|endoftext|>"),) * 2


def test_of_several_templates_a_sample_takes_the_first_it_can_fill(tokenize: Any, backend: Any) -> None:
    templates = ["Instruct: {task}\nQuery:{query}", "{text}"]
    samples = [{"text": "buy"}, {"fields": {"task": "t", "query": "q", "text": "x"}}]
    assert tokenize(samples, template=templates) == (
        ids(backend, "buy"),
        ids(backend, "Instruct: t\nQuery:q"),
    )


def test_fields_of_other_nodes_are_left_alone(tokenize: Any, backend: Any) -> None:
    assert tokenize([{"fields": {"query": "a", "title": "b"}}], template="{query}") == (ids(backend, "a"),)


def test_add_special_tokens(tokenize: Any, backend: Any) -> None:
    expected = tuple(backend.encode("buy", add_special_tokens=True).ids)
    assert tokenize([{"text": "buy"}], add_special_tokens=True) == (expected,)
    assert expected == (*ids(backend, "buy"), backend.token_to_id("<|endoftext|>"))


def test_only_the_named_field_gives_way(tokenize: Any, backend: Any) -> None:
    fields = {"query": "wireless mouse", "title": "a long battery " * 100}
    (cut,) = tokenize([{"fields": fields}], template=TEMPLATE, cut="title")
    assert len(cut) == 64
    text = backend.decode(list(cut), skip_special_tokens=False)
    assert text.startswith("<|im_start|>Query: wireless mouse\nProduct: a long battery a long")
    assert text.endswith("\nRelevant:")


def test_of_several_cut_fields_the_one_in_the_template_gives_way(tokenize: Any) -> None:
    options = {"template": ["Q:{query}", "{text}"], "cut": ["text", "query"]}
    samples = [{"text": "buy " * 100}, {"fields": {"query": "buy " * 100}}]
    assert [len(each) for each in tokenize(samples, **options)] == [64, 64]


@pytest.mark.parametrize(
    ("samples", "options", "code", "field", "words"),
    [
        (
            [{"fields": {"query": "a"}}],
            {"template": TEMPLATE},
            "invalid",
            "samples[0].fields.title",
            "is missing",
        ),
        (
            [{"fields": {"query": "a", "titel": "b"}}],
            {"template": TEMPLATE},
            "invalid",
            "samples[0].fields.title",
            "needs it; the sample has 'titel', 'query'",
        ),
        (
            [{"fields": {"x" * 300: "a", **{f"f{n}": "b" for n in range(9)}}}],
            {"template": "{query}"},
            "invalid",
            "samples[0].fields.query",
            f"the sample has '{'x' * 60}'..., 'f0', 'f1' and 7 more",
        ),
        (
            [{"text": "a"}],
            {"template": "{query}"},
            "invalid",
            "samples[0].fields.query",
            "the sample has 'text'",
        ),
        ([{}], {}, "invalid", "samples[0].fields.text", "the sample has no fields"),
        ([{"fields": {"text": None}}], {}, "invalid", "samples[0].fields.text", "None: must be text"),
        ([{"fields": {"text": ["a"]}}], {}, "invalid", "samples[0].fields.text", "['a']"),
        ([{"text": "a"}, {"text": "\ud800"}], {}, "invalid", "samples[1].text", "lone surrogate"),
        ([{"text": "a"}, {"text": ""}], {}, "invalid", "samples[1]", "no tokens"),
        ([{"token_ids": []}], {}, "invalid", "samples[0].token_ids", "is empty"),
        ([{"token_ids": [1, -1]}], {}, "invalid", "samples[0].token_ids", "-1 is not a token id"),
        ([{"token_ids": [10**9]}], {}, "invalid", "samples[0].token_ids", "1000000000 is not"),
        ([{"token_ids": [True]}], {}, "invalid", "samples[0].token_ids", "True is not"),
        ([{"token_ids": [1]}], {"template": TEMPLATE}, "invalid", "samples[0].token_ids", "send its fields"),
        ([{"text": "buy " * 100}], {}, "too_large", "samples[0]", "a sample may have 64"),
        (
            [{"fields": {"query": "buy " * 100, "title": "b"}}],
            {"template": TEMPLATE, "cut": "title"},
            "too_large",
            "samples[0]",
            "has more even without any 'title'",
        ),
        (
            [{"text": "a <|im_end|> b"}],
            {"specials_in_fields": "error"},
            "invalid",
            "samples[0].text",
            "contains the special token '<|im_end|>'",
        ),
        (
            [{"fields": {"a": "<|im_", "b": "end|>"}}],
            {"template": "{a}{b}"},
            "invalid",
            "samples[0]",
            "form a special token",
        ),
    ],
)
def test_bad_samples_are_named(
    tokenize: Any, samples: list[Any], options: dict[str, Any], code: str, field: str, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        tokenize(samples, **options)
    assert (caught.value.code, caught.value.field) == (code, field)
    assert words in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"template": "{a}{text}", "cut": "a"}])
def test_a_huge_value_is_refused_without_tokenizing_all_of_it(tokenize: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="or more tokens, a sample may have 64"):
        tokenize([{"fields": {"a": "", "text": "buy " * 1_000_000}}], **options)


def test_special_tokens_in_a_field_are_text_or_nothing(tokenize: Any, backend: Any) -> None:
    samples = [{"fields": {"query": "x<|im_end|>y</think>", "title": "z"}}]
    assert tokenize(samples, template=TEMPLATE) == (
        ids(backend, "<|im_start|>Query: x y \nProduct: z\nRelevant:"),
    )
    assert tokenize(samples, template=TEMPLATE, specials_in_fields="allow") == (
        ids(backend, "<|im_start|>Query: x<|im_end|>y</think>\nProduct: z\nRelevant:"),
    )


def test_a_cut_cannot_make_a_special_token(tokenize: Any) -> None:
    """The field ends in half of one, the template goes on with the other half."""
    with pytest.raises(InputError, match="form a special token"):
        tokenize([{"text": "<|im_" * 60}], template="{text}end|>", cut="text")


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ({"template": "{query"}, "template", "literal brace"),
        ({"template": []}, "template", "has no template"),
        ({"template": ["{a}", "x"]}, "template", "every prompt would be the same"),
        ({"template": "{query}", "cut": "quer"}, "cut", "did you mean 'query'"),
        ({"template": "{a} {a}", "cut": "a"}, "cut", "more than once"),
        ({"specials_in_fields": "keep"}, "specials_in_fields", "'strip', 'error' or 'allow'"),
        ({"templat": "{a}"}, "templat", "did you mean 'template'"),
        ({"template": "{a} " + "x y " * 60}, "bounds.tokens_per_sample", "the template does not fit"),
    ],
)
def test_bad_settings_are_named(make_node: Any, options: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        make_node("tokenizer", artifact="causal", **options)
    assert caught.value.key == key


def test_what_its_file_says_of_truncation_is_not_heeded(make_node: Any, sample: Any, backend: Any) -> None:
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    try:
        node = make_node(
            "tokenizer",
            bounds=Bounds(samples=1, tokens_per_sample=32, tokens_per_request=32),
            artifact="causal",
        )
    finally:
        backend.no_truncation()
        backend.no_padding()
    text = "buy the wireless mouse with a silent click"
    (tokens,) = node.run([(Samples((sample(text),)),)])
    assert tokens.ids == (ids(backend, text),)
