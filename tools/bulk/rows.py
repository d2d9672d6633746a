"""What travels through a bulk run: rows, parts of rows, and one result a row. Plain values, any thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from engine.values import Sample

INVALID_ROW = "invalid_row"  # a row that cannot be read at all; the other codes are the wire's
NO_REPLY = "no_reply"  # asked several times, never answered


class BulkSample(NamedTuple):
    """A sample as the engine takes it (engine.values.Sample): exactly one of the three is set."""

    text: str | None = None
    fields: Mapping[str, object] | None = None
    token_ids: Sequence[int] | None = None


class RowError(NamedTuple):
    """Why a row has no result."""

    code: str
    message: str
    field: str | None = None


class Row(NamedTuple):
    """One row of the input. `number` counts from 0 over all input files; num_chars is about its size. `id` is
    None where a column of ids was named and this row's cannot be read."""

    number: int
    id: str | int | None
    sample: BulkSample | RowError
    num_chars: int


def count_chars(sample: BulkSample | RowError) -> int:
    """About the size of a row: what parts and requests are bounded by."""
    if isinstance(sample, RowError):
        return 0
    if sample.fields is not None:
        num_chars = 0
        for value in sample.fields.values():
            num_chars += len(value) if isinstance(value, str) else 8
        return num_chars
    return len(sample.text or sample.token_ids or ())


class GoodRow(NamedTuple):
    """A row to score: its place in the part and its sample, the bulk run's own or the wire's."""

    place: int
    sample: Sample
    num_chars: int


RowResult: TypeAlias = dict[str, object] | RowError


@dataclass(frozen=True)
class Part:
    """Rows that are scored, written and journalled together: always the same ones for the same input."""

    index: int
    rows: tuple[Row, ...]
    share_read: float  # of the input, once this part has been read: 0 to 1

    def good_rows(self) -> list[GoodRow]:
        """Those that can be scored."""
        return [
            GoodRow(place, row.sample, row.num_chars)
            for place, row in enumerate(self.rows)
            if isinstance(row.sample, BulkSample)
        ]

    def first_results(self) -> list[RowResult | None]:
        """One slot a row, filled where the row's own error is all there will be."""
        return [row.sample if isinstance(row.sample, RowError) else None for row in self.rows]


@dataclass(frozen=True)
class ScoredPart:
    """A part with one result a row, in order; `models` are the digests that answered."""

    part: Part
    results: tuple[RowResult, ...]
    models: tuple[str, ...] = ()
