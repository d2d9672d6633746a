"""Cut one field of a prompt so that the whole prompt has at most `limit` tokens, keeping all that fits.

The answer is the longest prefix of the field, in characters, whose prompt fits. The number of tokens does not
grow evenly with the prefix: a cut word may take more tokens than the whole, and may merge with what is next.
So the token borders of the uncut prompt give a first guess, every prefix up to a few tokens beyond it is
counted in a short window around the cut, and what the window promises is checked on the whole prompt.
Pure functions over a tokenizers.Tokenizer, which they only read; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

LOOK_AHEAD_TOKENS = 4  # beyond the guess: how far a longer prefix may still need fewer tokens
WINDOW_TOKENS = 16  # context before the cut that decides how the text at the cut is split
USUAL_TOKEN_CHARS = 8  # twice the mean of English: a first try at what of a long value to look at
WINDOW_CHARS = 64  # the same, after the cut


@dataclass(frozen=True)
class Prompt:
    """A prompt whose `value` may be shortened from its end."""

    before: str
    value: str
    after: str

    def cut(self, num_chars: int) -> str:
        return self.before + self.value[:num_chars] + self.after


def cut_to_fit(
    tokenizer: Tokenizer, prompt: Prompt, limit: int, *, add_special_tokens: bool, max_token_chars: int
) -> list[int] | None:
    """Token ids of the prompt with the longest value that fits; None if it does not fit even without.

    `max_token_chars` bounds the characters of one token: nothing longer than `limit` such tokens can fit, so
    a huge value costs no more than a large one.
    """
    for token_chars in (min(USUAL_TOKEN_CHARS, max_token_chars), max_token_chars):
        clipped = Prompt(prompt.before, prompt.value[: limit * token_chars], prompt.after)
        whole = tokenizer.encode(clipped.cut(len(clipped.value)), add_special_tokens=add_special_tokens)
        if len(whole.ids) > limit + WINDOW_TOKENS:
            break  # what lies beyond cannot fit
    prompt = clipped
    if len(whole.ids) <= limit:
        return list(whole.ids)
    stops = _token_stops(whole.offsets, prompt)

    def count(num_chars: int) -> list[int]:
        text = prompt.cut(num_chars)
        return list(tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)

    guess = index = max(0, len(stops) - 1 - (len(whole.ids) - limit))
    ids = count(stops[index])
    while len(ids) > limit and index > 0:
        index = max(0, index - (len(ids) - limit))
        ids = count(stops[index])
    slack = max(0, limit - len(ids))
    last = min(len(stops) - 1, max(guess, index + slack) + LOOK_AHEAD_TOKENS)
    window_start = _window_start(whole.offsets, len(prompt.before) + stops[index])
    for num_chars in _promising(
        tokenizer, prompt, window_start, (stops[index], stops[last]), limit - len(ids)
    ):
        longer = count(num_chars)
        if len(longer) <= limit:
            return longer
    return ids if len(ids) <= limit else None


def _token_stops(offsets: list[tuple[int, int]], prompt: Prompt) -> list[int]:
    """Where tokens end inside the value, counted from its start; with 0 and its end."""
    first, end = len(prompt.before), len(prompt.before) + len(prompt.value)
    return sorted({0, end - first, *(stop - first for _, stop in offsets if first < stop < end)})


def _window_start(offsets: list[tuple[int, int]], cut: int) -> int:
    """The start of the token WINDOW_TOKENS before the character `cut`."""
    starts = [start for start, stop in offsets if stop <= cut and stop > start]
    return starts[-WINDOW_TOKENS] if len(starts) >= WINDOW_TOKENS else 0


def _promising(
    tokenizer: Tokenizer, prompt: Prompt, window_start: int, between: tuple[int, int], room: int
) -> list[int]:
    """Lengths in (between[0], between[1]], longest first, that by the window add at most `room` tokens."""
    lengths = list(range(between[0], between[1] + 1))
    head, tail = (prompt.before + prompt.value)[window_start:], prompt.after[:WINDOW_CHARS]
    first = len(prompt.before) - window_start
    texts = [head[: first + num_chars] + tail for num_chars in lengths]
    counts = [len(each.ids) for each in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    grown = zip(lengths[1:], counts[1:], strict=True)
    return [num_chars for num_chars, num_tokens in grown if num_tokens - counts[0] <= room][::-1]
