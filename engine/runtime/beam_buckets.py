"""Buckets of a search on CUDA: requests x prompt tokens x width, each a captured graph.

A step's products have requests * width rows, cut into tiles: sizes are those that fill the last tile best, so
that a bucket is not slower than the work in it (width 100: 5, 10, 15, 20 requests). Tokens of prompts are
measured by all rows of a search, tokens + requests * width * steps: from one size to the next they add the
same share of those. So where steps are most of the work, there are few sizes, and many where prompts are.

How fine they are is a matter of graphs, each of which takes its time to capture: PADDING, or more than that
where there would be over MOST_GRAPHS.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from engine.packed import MIN_SAMPLES

TILE_ROWS = 256  # what cuBLASLt's larger tiles take at once
GROWTH, NARROW_GROWTH = (
    1.15,
    1.3,
)  # of requests, from one size to the next, at the whole width and at a narrow one
PADDING, NARROW_PADDING = 0.02, 0.1  # of a search's rows, the most that tokens of padding are
COARSER = 1.1  # times as much padding, until graphs are few enough
MOST_GRAPHS = 600  # of one pipeline and lane; twice as many over items, which have two places
SMALLEST_PROMPT = 16
TOKEN_STEP = 16  # rows of a prompts' pass, in whole steps: what the library's 8-bit products are made for
NARROW = 4  # a request that asks for a quarter of the width is served by graphs of that width
LEAST_NARROW = 8


@dataclass(frozen=True, order=True)
class BeamBucket:
    """`tokens` are those of all prompts, padding's included."""

    prompts: int
    width: int
    tokens: int

    @property
    def segments(self) -> int:
        """Of the prompts' pass: a compiled package treats one as special."""
        return max(self.prompts, MIN_SAMPLES)

    def __str__(self) -> str:
        return f"{self.prompts} prompts of {self.width} beams, {self.tokens} tokens"

    def cost(self) -> tuple[int, int, int]:
        """The smaller, the sooner its graph ends: rows of every step come before tokens of one pass."""
        return self.width, self.prompts, self.tokens


@dataclass(frozen=True)
class SearchSizes:
    """The most that a pipeline's batches hold; what buckets are made for. `steps`: of one search."""

    width: int
    prompts: int
    tokens_per_prompt: int
    tokens: int
    steps: int = 1


class BeamBuckets:
    """Which there are, and which one a batch takes."""

    def __init__(self, buckets: Sequence[BeamBucket]) -> None:
        """At least one; the largest first is the order to capture them in."""
        self.all = tuple(sorted(set(buckets), reverse=True))
        self._widths = sorted({bucket.width for bucket in self.all})
        self._prompts = {w: sorted({b.prompts for b in self.all if b.width == w}) for w in self._widths}
        self._tokens: dict[tuple[int, int], list[int]] = {}
        for bucket in reversed(self.all):
            self._tokens.setdefault((bucket.width, bucket.prompts), []).append(bucket.tokens)

    def choose(self, prompts: int, tokens: int, width: int) -> BeamBucket | None:
        """The smallest that holds a batch, every further prompt of it taking a token; None over them all."""
        for wide in self._widths[bisect_left(self._widths, width) :]:
            sizes = self._prompts[wide]
            for count in sizes[bisect_left(sizes, prompts) :]:
                needed = tokens + max(count, MIN_SAMPLES) - prompts
                fitting = self._tokens[wide, count]
                at = bisect_left(fitting, needed)
                if at < len(fitting):
                    return BeamBucket(count, wide, fitting[at])
        return None


def make_beam_buckets(sizes: SearchSizes) -> BeamBuckets:
    """Buckets that hold every batch within `sizes`, as fine as MOST_GRAPHS allow."""
    coarse = 1.0
    while len(made := _make(sizes, coarse)) > MOST_GRAPHS:
        coarse *= COARSER
    return BeamBuckets(made)


def _make(sizes: SearchSizes, coarse: float) -> list[BeamBucket]:
    made = []
    for width in width_sizes(sizes.width):
        whole = width >= sizes.width
        growth, padding = (GROWTH, PADDING) if whole else (NARROW_GROWTH, NARROW_PADDING)
        for prompts in prompt_sizes(width, sizes.prompts, growth):
            rows = prompts * width * sizes.steps
            tokens = token_sizes(prompts, sizes, rows, coarse * padding)
            made += [BeamBucket(prompts, width, each) for each in tokens]
    return made


def width_sizes(width: int) -> tuple[int, ...]:
    """Two beams at least, as a compiled package treats one row as special."""
    narrow = -(-width // NARROW)
    return (max(2, width),) if narrow < LEAST_NARROW else (narrow, width)


def prompt_sizes(width: int, most: int, growth: float = GROWTH) -> tuple[int, ...]:
    """Ascending from 1 to `most`, each the best filled within reach of the one before."""

    def filled(count: int) -> float:
        rows = count * width
        return rows / (-(-rows // TILE_ROWS) * TILE_ROWS)

    sizes = [1]
    while sizes[-1] < most:
        reach = range(sizes[-1] + 1, min(most, max(sizes[-1] + 1, int(sizes[-1] * growth))) + 1)
        sizes.append(max(reach, key=lambda count: (filled(count), count)))
    return tuple(sizes)


def token_sizes(prompts: int, sizes: SearchSizes, rows: int, padding: float) -> tuple[int, ...]:
    """Of all prompts together, ascending; the last holds any batch of so many. From one to the next they add
    `padding` of the tokens and the steps' `rows`, or a whole step."""
    extra = max(prompts, MIN_SAMPLES)
    most = whole_steps(min(sizes.tokens, prompts * sizes.tokens_per_prompt) + extra)
    found, tokens = [], whole_steps(prompts * SMALLEST_PROMPT + extra)
    while tokens < most:
        found.append(tokens)
        step = int(padding * (tokens + rows)) // TOKEN_STEP * TOKEN_STEP
        tokens += max(step, TOKEN_STEP)
    return (*found, most)


def whole_steps(tokens: int) -> int:
    """`tokens` and those of padding that a bucket adds to them."""
    return -(-tokens // TOKEN_STEP) * TOKEN_STEP
