"""A calibration file's lines, before anything is loaded: which pipeline, which samples.

One JSON object a line: {"pipeline": ..., "samples": [...]} with samples as on the wire ({"fields": {...}},
{"text": ...}, {"token_ids": [...]}) or as plain maps of template fields; or one such map alone. Every line
is one request, of which the first MOST_REQUESTS are read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError
from engine.options import suggest

FEWEST_REQUESTS = 5
MOST_REQUESTS = 5000  # some of them calibrate; more to judge by takes hours and says no more
_QUOTED = 40  # characters of a line in a message


@dataclass(frozen=True)
class WireSample:
    """engine.values.Sample."""

    text: str | None = None
    fields: Mapping[str, object] | None = None
    token_ids: Sequence[int] | None = None


@dataclass(frozen=True)
class RequestLine:
    """`number` of the line in the file, from 1; `pipeline` is one of those that were named."""

    number: int
    pipeline: str
    samples: tuple[WireSample, ...]


def read_lines(path: Path, pipelines: Collection[str]) -> list[RequestLine]:
    """ConfigError names the file, the line and what is wrong with it. Quick: no tokenizer is needed."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # others than newlines may be in a string
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", error)
        raise ConfigError("calibrate", str(path), f"cannot be read: {reason}") from None
    requests: list[RequestLine] = []
    for number, line in enumerate(lines, start=1):
        if line.strip() and len(requests) < MOST_REQUESTS:
            try:
                requests.append(_read_line(number, line, pipelines))
            except ValueError as error:
                raise ConfigError("calibrate", f"{path}, line {number}", str(error)) from None
    if len(requests) < FEWEST_REQUESTS:
        reason = f"{len(requests)} requests; at least {FEWEST_REQUESTS} are needed"
        raise ConfigError("calibrate", str(path), reason)
    return requests


def _read_line(number: int, line: str, pipelines: Collection[str]) -> RequestLine:
    try:
        values = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        where = str(error)
        if isinstance(error, json.JSONDecodeError):
            where = f"column {error.colno}: {error.msg}"
        raise ValueError(f"{_quote(line)} is not JSON ({where}); every line is one JSON object") from None
    if not isinstance(values, dict):
        raise ValueError(f"{_quote(line)} is not a JSON object")
    wrapped = isinstance(values.get("samples"), list)
    name = values.get("pipeline") if wrapped else None
    if name is None and len(pipelines) == 1:
        name = next(iter(pipelines))
    if not isinstance(name, str) or name not in pipelines:
        raise ValueError(f"pipeline = {name!r}: {suggest(str(name), pipelines)}")
    samples = values["samples"] if wrapped else [values]
    if not samples:
        raise ValueError("samples is empty")
    return RequestLine(number, name, tuple(_sample(each) for each in samples))


def _quote(line: str) -> str:
    text = line.strip()
    return repr(text if len(text) <= _QUOTED else text[:_QUOTED] + "…")


def _sample(values: object) -> WireSample:
    if not isinstance(values, dict):
        raise ValueError(f"sample {values!r} is not a map")
    if isinstance(values.get("fields"), dict):
        return WireSample(fields=values["fields"])
    if isinstance(values.get("token_ids"), list):
        return WireSample(token_ids=values["token_ids"])
    if isinstance(values.get("text"), str) and not set(values) - {"id", "text"}:
        return WireSample(text=values["text"])
    return WireSample(fields=values)
