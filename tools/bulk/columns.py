"""From a row's columns to a sample: which columns fill the template's fields, and which one is the id.

A row in the form of OpenAI's batches has its columns in `body`; a map `fields` among the columns is opened,
too. A column's name may be a path with dots into nested values. Pure; any thread.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.graph import REQUEST
from engine.nodes.template import Template
from engine.pipeline import PipelineConfig
from schemas.messages import ErrorCode
from tools.bulk.rows import INVALID_ROW, BulkSample, RowError
from tools.errors import UserError

DEFAULT_ID = "custom_id"
TEXT, TOKEN_IDS = "text", "token_ids"
PRINTED = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal)  # datetime is a date


@dataclass(frozen=True)
class Wanted:
    """What a pipeline reads from a sample. templates: the fields of each; None where that is not known."""

    templates: tuple[tuple[str, ...], ...] | None
    token_ids: bool

    @classmethod
    def of(cls, config: PipelineConfig) -> Wanted:
        templates: list[tuple[str, ...]] = []
        token_ids = False
        for node in config.nodes.values():
            if REQUEST not in node.inputs:
                continue
            if node.kind != "tokenizer":
                return cls(None, True)
            written = node.settings.get("template")
            token_ids = token_ids or written is None
            texts = ["{text}"] if written is None else [written] if isinstance(written, str) else written
            templates += [_fields_of(text) for text in texts]
        return cls(tuple(templates), token_ids)

    @property
    def fields(self) -> tuple[str, ...]:
        """Of all templates, each once."""
        return tuple(dict.fromkeys(field for each in self.templates or () for field in each))


@dataclass(frozen=True)
class Columns:
    """`paths`: the column of each field. Without any, every plain column is a field of its own name."""

    paths: Mapping[str, str]
    token_ids: bool  # a row without these fields may hold token ids
    id: str | None  # None: custom_id where a row has it

    @classmethod
    def choose(cls, wanted: Wanted, mapped: Mapping[str, str], id_column: str | None) -> Columns:
        """UserError for a field that the pipeline does not read."""
        known = {*wanted.fields, *([TOKEN_IDS] if wanted.token_ids else [])}
        for field, column in mapped.items():
            if wanted.templates is not None and field not in known:
                names = ", ".join(sorted(known))
                raise UserError(f"--map = {f'{field}={column}'!r}: the pipeline reads {names}, not {field}")
        paths = {field: mapped.get(field, field) for field in wanted.fields}
        return cls({**paths, **mapped}, wanted.token_ids, id_column)

    def row_id(self, row: Mapping[str, object], number: int) -> str | int | None:
        """The row's id. A row without one is called by its number, but not where ids were asked for: it might
        be another row's id."""
        value = row.get(DEFAULT_ID) if self.id is None else look_up(row, self.id)
        if value is None:
            return number if self.id is None else None
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        return value

    def sample(self, row: Mapping[str, object]) -> BulkSample | RowError:
        """The sample, or why there is none."""
        if self.id is not None and look_up(row, self.id) is None:  # asked for: a typo must not lose every id
            return RowError(INVALID_ROW, f"no id: its column {self.id!r} is absent or null", self.id)
        columns = open_columns(row)
        try:
            sample = self._mapped(columns) if self.paths else self._whole(columns)
        except ValueError as error:
            return RowError(ErrorCode.INVALID_FIELD, str(error), str(error).partition(":")[0])
        if sample is not None:
            return sample
        text = f"none of its columns is of use: {_names(columns)}"
        if self.paths:
            text += f"; the pipeline reads {_names(self.paths)}: --map FIELD=COLUMN"
        return RowError(INVALID_ROW, text)

    def top_level(self, names: Sequence[str]) -> list[str]:
        """Of a file's columns those that must be read."""
        if not self.paths:
            return list(names)
        asked = {DEFAULT_ID if self.id is None else self.id, *self.paths.values()}
        heads = {path if path in names else path.partition(".")[0] for path in asked}
        heads |= {"body", "fields"} | ({TOKEN_IDS} if self.token_ids else set())
        return [name for name in names if name in heads]

    def _mapped(self, columns: Mapping[str, object]) -> BulkSample | None:
        fields: dict[str, object] = {}
        ids = None
        for field, path in self.paths.items():
            value = columns.get(path)
            if type(value) is str:  # nearly all: this loop is what reading costs
                fields[field] = value
                continue
            value = look_up(columns, path)
            if field == TOKEN_IDS:
                ids = value
            elif (plain := as_plain(path, value)) is not None:
                fields[field] = plain
        if fields:
            text = fields.get(TEXT) if len(fields) == 1 else None
            return BulkSample(text) if isinstance(text, str) else BulkSample(None, fields)
        ids = columns.get(TOKEN_IDS) if ids is None and self.token_ids else ids
        return (
            None if ids is None else BulkSample(token_ids=_as_ids(self.paths.get(TOKEN_IDS, TOKEN_IDS), ids))
        )

    def _whole(self, columns: Mapping[str, object]) -> BulkSample | None:
        if isinstance(text := columns.get(TEXT), str):
            return BulkSample(text=text)
        if isinstance(ids := columns.get(TOKEN_IDS), list):
            return BulkSample(token_ids=_as_ids(TOKEN_IDS, ids))
        fields = {
            name: plain
            for name, value in columns.items()
            if name not in {self.id, DEFAULT_ID}
            and not isinstance(value, (dict, list))
            and (plain := as_plain(name, value)) is not None
        }
        return BulkSample(fields=fields) if fields else None


def open_columns(row: Mapping[str, object]) -> Mapping[str, object]:
    """The row's columns with `body` and `fields` opened."""
    body = row.get("body")
    columns = body if isinstance(body, dict) else row
    fields = columns.get("fields")
    return {**columns, **fields} if isinstance(fields, dict) else columns


def look_up(columns: Mapping[str, object], path: str) -> object:
    """The value of a column, or of a path with dots into nested ones; None where there is none."""
    if path in columns or "." not in path:
        return columns.get(path)
    value: object = columns
    for key in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def as_plain(path: str, value: object) -> str | int | float | None:
    """What a field may hold; None for null and for NaN, as tables write null. ValueError: neither."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise ValueError(f"{path}: {value} is no number to put into a prompt")
        return None if math.isnan(value) else value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{path}: bytes that are not UTF-8 text") from None
    if isinstance(value, PRINTED):
        return str(value)
    kind = (
        "a map" if isinstance(value, dict) else "a list" if isinstance(value, list) else type(value).__name__
    )
    raise ValueError(
        f"{path}: {kind}, not text or a number; name a column inside it: --map FIELD={path}.NAME"
    )


def _as_ids(path: str, value: object) -> list[int]:
    if not isinstance(value, list) or not value or {type(each) for each in value} != {int}:
        raise ValueError(f"{path}: not a list of token ids")
    return value


def _fields_of(text: object) -> tuple[str, ...]:
    """Of one template; none of a wrong one, which opening the pipeline tells of."""
    try:
        return Template.parse(str(text)).fields
    except ValueError:
        return ()


def _names(columns: Mapping[str, object]) -> str:
    return ", ".join(_shortened(columns)) or "it has none"


def _shortened(columns: Mapping[str, object]) -> Iterator[str]:
    for number, name in enumerate(columns):
        if number == 8:
            yield "..."
            return
        yield f"{name!r:.40}"
