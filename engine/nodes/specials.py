"""Special tokens written as text: honoured in the pipeline's template, not in what a request brings.

Otherwise a product title with `<|im_end|>` in it could end the prompt and speak for the system. Guarded are
the tokens that the tokenizer marks special and its added tokens that look like tags (`</think>`). One found
in a value gives way to a space: removing it could join its neighbours into another. Immutable; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Tokenizer

_TAG = re.compile(r"[<\[]\S+[>\]]")


class SpecialTokens:
    """The guarded tokens of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        guarded = {
            number: each.content
            for number, each in added.items()
            if each.special or _TAG.fullmatch(each.content)
        }
        self._ids = frozenset(guarded)
        longest_first = sorted(guarded.values(), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if guarded else None

    def find(self, text: str) -> str | None:
        """The first one in `text`."""
        match = self._pattern.search(text) if self._pattern else None
        return match.group() if match else None

    def remove(self, text: str) -> str:
        """`text` with each of them replaced by a space."""
        return self._pattern.sub(" ", text) if self._pattern else text

    def count(self, ids: Sequence[int]) -> int:
        """How many of them are among token ids."""
        return sum(map(self._ids.__contains__, ids))
