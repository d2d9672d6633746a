"""Labels must be single tokens: what is said when they are not."""

from __future__ import annotations

import pytest

from engine.errors import ConfigError
from engine.heads.label_scores import label_tokens
from tiny_models import qwen_tokenizer

TOKENIZER = qwen_tokenizer(append_end=True)


def test_single_tokens_in_the_order_of_the_labels() -> None:
    found = label_tokens(TOKENIZER, {"n": "no", "y": "yes", "end": "<|im_end|>"})
    assert [TOKENIZER.id_to_token(number) for number in found] == ["no", "yes", "<|im_end|>"]


@pytest.mark.parametrize(
    ("labels", "key", "words"),
    [
        ({"a": "yes no"}, "labels.a", "this is 2 ('yes' ' no')"),
        ({"a": ""}, "labels.a", "this is 0 (none)"),
        ({"a": "mouse"}, "labels.a", "or write ' mouse', which is one"),
        ({"a": "yes", "b": "yes"}, "labels.b", "is the token of 'a' too"),
    ],
)
def test_mistakes_are_named(labels: dict[str, str], key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        label_tokens(TOKENIZER, labels)
    assert caught.value.key == key
    assert words in str(caught.value)
