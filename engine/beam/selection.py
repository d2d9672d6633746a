"""Exact selection: the best `count` of all continuations of a request's beams, ties by (parent, column).

Every candidate gets one 64-bit key, so that all differ and no order of work can change the result:

    key = ordered(score) << 32 | (2³² - 1 - (parent * columns + column)),   the greatest first

Reading all keys is not needed. Columns are cut into chunks of 64; the best `count` candidates lie in the
`count` chunks whose (maximum, position) come first: a candidate elsewhere is preceded by the maximum of each
of those. That holds for any logits, so there is no buffer to overflow. Static shapes, no synchronisation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64
_LOW = 0xFFFFFFFF
_NEVER = float("-inf")


@dataclass(frozen=True)
class Rows:
    """What a candidate's score is made of, by beam [S, B]: (logit - norm) + score, float32.

    A `closed` beam has one continuation, column 0, which keeps its score; None: none is. A beam whose score
    is -inf is dead and so are its continuations, whatever its logits.
    """

    norms: Tensor
    scores: Tensor
    closed: Tensor | None


@dataclass(frozen=True)
class Pool:
    """How many continuations of a request are scored again, of which `width` remain: 328 for 100, 1,564 for
    512. tools/bench/RESULTS.md, "Ranks of beams", has why.

    Not more than there are chunks, if these are more than `few`: then selection would compare all candidates
    with each other. That is a first expansion's, whose last pairs hardly win, and of legal nodes with at most
    CHUNK edges every step's.
    """

    factor: int = 3
    least: int = 28
    few: int = 128

    def size(self, width: int, beams: int, columns: int) -> int:
        """Of a request that wants `width` continuations of `beams`; at least as many."""
        chunks = min(width, beams) * _ceil_div(columns, CHUNK)
        return min(self.factor * width + self.least, max(width, chunks, self.few))


@dataclass(frozen=True)
class Exact:
    """What exact logits are products of: hidden[S, B, H] and the head's rows [C, H]; and of which pairs."""

    hidden: Tensor
    rows: Tensor
    pool: Pool


@dataclass(frozen=True)
class RawLogits:
    """An 8-bit product as it comes: the logits are values[S, B, C] times scales[S, B]. `exact`: what the best
    ones are to be computed again from."""

    values: Tensor
    scales: Tensor  # float32
    exact: Exact | None = None


@dataclass(frozen=True)
class Selected:
    """[S, count] each, best first; -inf where there were no more candidates."""

    scores: Tensor  # float32
    parents: Tensor  # int64, the beam within the request
    columns: Tensor  # int64


def select(logits: Tensor, rows: Rows, count: int) -> Selected:
    """logits float32[S, B, C] of B beams a request; B * C below 2³¹. -inf is an impossible column."""
    num_beams, columns = logits.shape[1:]
    chunks = _ceil_div(max(columns, _ceil_div(count, num_beams)), CHUNK)
    padding = chunks * CHUNK - columns
    if padding:
        logits = F.pad(logits, (0, padding), value=_NEVER)
    chunked = logits.view(*logits.shape[:2], chunks, CHUNK)
    maxima = _adjust(chunked.amax(-1), rows, torch.arange(chunks, device=logits.device) == 0)
    best = best_first(maxima.flatten(1), min(count, num_beams * chunks)).index
    values = chunked.flatten(1, 2).gather(1, best.unsqueeze(-1).expand(-1, -1, CHUNK))
    places = best.unsqueeze(-1) * CHUNK + torch.arange(CHUNK, device=logits.device)
    parents = best // chunks
    closed = None if rows.closed is None else rows.closed.gather(1, parents)
    mine = Rows(rows.norms.gather(1, parents), rows.scores.gather(1, parents), closed)
    scored = _adjust(values, mine, places % (chunks * CHUNK) == 0)
    found = best_first(scored.flatten(1), count, places.flatten(1))
    column = (found.index % (chunks * CHUNK)).clamp_max(columns - 1)  # padding is dead, but a valid index
    return Selected(found.scores, found.index // (chunks * CHUNK), column)


@dataclass(frozen=True)
class Best:
    scores: Tensor
    index: Tensor


def best_first(scores: Tensor, count: int, index: Tensor | None = None) -> Best:
    """The `count` greatest of float32[S, N] by (score down, index up); `index` int64[S, N] < 2³², all
    different, is the position where it is left out."""
    if index is None:
        index = torch.arange(scores.shape[1], device=scores.device)
    bits = (scores + 0.0).view(torch.int32)  # -0.0 becomes 0.0: equal scores must have equal keys
    keys = (_flip(bits).long() << 32) | (_LOW - index)
    top = keys.topk(count, dim=1).values
    return Best(_flip((top >> 32).int()).view(torch.float32), _LOW - (top & _LOW))


def _adjust(values: Tensor, rows: Rows, is_first: Tensor) -> Tensor:
    """Scores of values[S, B, ...]; rounding is monotone, so a maximum's score is the maximal score.

    is_first: which of the last dimension hold column 0."""
    norms, scores = rows.norms.unsqueeze(-1), rows.scores.unsqueeze(-1)
    adjusted = (values - norms) + scores
    if rows.closed is not None:
        kept = torch.where(is_first, scores, _NEVER)
        adjusted = torch.where(rows.closed.unsqueeze(-1), kept, adjusted)
    return torch.where(scores == _NEVER, _NEVER, adjusted)  # also where a dead beam's logits are NaN


def _flip(bits: Tensor) -> Tensor:
    """int32 patterns of floats <-> integers in the same order; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
