"""Rows for a reply out of the beams of a search. Pure functions over values; any thread.

Beams -> {"beams": [{"token_ids", "text", "score"}, ...]}, best first
  `tokens`: each beam has "tokens", the text of each of its token ids
  `texts: false`: neither text nor tokens, for ids that stand for no text
  of items: each beam has "item_ids", all items of its sequence, and the row "item_version"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import TypeAlias

from engine.nodes.rows import RowList
from engine.values import Beams, SampleBeams

Decode: TypeAlias = Callable[[Sequence[Sequence[int]]], list[str]]


@dataclass(frozen=True)
class BeamRows:
    """Called with the beams of one request. top_n: the most of a row, or the request's own, if lower."""

    top_n: int | None = None
    texts: bool = True
    tokens: bool = False

    def __call__(self, beams: Beams) -> RowList:
        return [self._row(beams, sample) for sample in beams.samples]

    def _row(self, beams: Beams, sample: SampleBeams) -> dict[str, object]:
        limits = [limit for limit in (self.top_n, beams.top_n) if limit is not None]
        count = min([len(sample.scores), *limits])
        lengths: list[int] = sample.lengths[:count].tolist()
        sequences = [
            ids[:length] for ids, length in zip(sample.token_ids[:count].tolist(), lengths, strict=True)
        ]
        rows: list[dict[str, object]] = [{"token_ids": ids} for ids in sequences]
        if beams.decode is not None and self.texts:
            _add(rows, "text", beams.decode(sequences))
            if self.tokens:
                _add(rows, "tokens", _token_texts(beams.decode, sequences))
        _add(rows, "score", sample.scores[:count].tolist())
        if beams.legal is None or sample.leaves is None:
            return {"beams": rows}
        _add(rows, "item_ids", beams.legal.item_ids(sample.leaves[:count].tolist()))
        return {"beams": rows, "item_version": beams.legal.version}


def _add(rows: Sequence[dict[str, object]], key: str, values: Iterable[object]) -> None:
    for row, value in zip(rows, values, strict=True):
        row[key] = value


def _token_texts(decode: Decode, sequences: Sequence[Sequence[int]]) -> Iterator[list[str]]:
    """The text of each token by itself; one that is a part of a character shows as U+FFFD."""
    texts = decode([[token] for token in chain.from_iterable(sequences)])
    for start, stop in pairwise(accumulate(map(len, sequences), initial=0)):
        yield texts[start:stop]
