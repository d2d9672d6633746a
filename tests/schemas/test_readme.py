"""The README's bytes decode to what it says they are, and its tables name everything there is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgpack
import pytest

from schemas.codec import decode_reply, decode_request, encode_reply, encode_request
from schemas.deadletter import dead_letter_headers
from schemas.headers import (
    FASTSTREAM_CORRELATION,
    FASTSTREAM_TOPIC,
    SPRING_CORRELATION,
    SPRING_PARTITION,
    SPRING_TOPIC,
)
from schemas.messages import ErrorCode, Outcome, Reply, Request, Sample
from schemas.plain import Limits

README = (Path(__file__).parents[2] / "schemas" / "README.md").read_text(encoding="utf-8")


def block(language: str, name: str) -> str:
    found = re.search(rf"```{language} {name}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


def shown_bytes(name: str) -> bytes:
    lines = block("hex", name).splitlines()
    packed = b"".join(bytes.fromhex(line[6:53]) for line in lines)
    for number, line in enumerate(lines):  # offsets and the readable column are right too
        part = packed[16 * number : 16 * number + 16]
        assert line[:4] == f"{16 * number:04x}"
        assert line[55:] == "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
    return packed


@pytest.mark.parametrize(
    ("name", "decode", "encode"),
    [("request", decode_request, encode_request), ("reply", decode_reply, encode_reply)],
)
def test_the_bytes_are_what_the_readme_says(name, decode, encode):
    packed, said = shown_bytes(name), json.loads(block("json", name))
    assert msgpack.unpackb(packed) == said
    assert encode(decode(packed)) == packed


def cells(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def table_rows(heading: str) -> list[str]:
    section = re.split(r"^#+ ", README.split(f"# {heading}\n", 1)[1], flags=re.MULTILINE)[0]
    return [line for line in section.splitlines() if line.startswith("| `")]


def test_every_outcome_stands_with_its_error_codes():
    said: dict[str, set[str]] = {}
    for row in table_rows("Outcomes and error codes"):
        _, outcome, codes, *_ = row.split("|")
        said[cells(outcome).pop()] = cells(codes)
    expected: dict[str, set[str]] = {outcome.value: set() for outcome in Outcome}
    for code in ErrorCode:
        expected[code.outcome.value].add(code.value)
    assert said == expected


@pytest.mark.parametrize(("heading", "models"), [("Request", (Request, Sample)), ("Reply", (Reply,))])
def test_every_key_stands_in_its_table(heading: str, models: tuple[Any, ...]):
    said = set().union(*(cells(row.split("|")[1]) for row in table_rows(heading)))
    keys = set().union(*(model.model_fields for model in models))
    assert said | {"id"} == keys


def test_headers_and_bounds_are_those_of_the_code():
    names = {SPRING_CORRELATION, SPRING_TOPIC, SPRING_PARTITION, FASTSTREAM_CORRELATION, FASTSTREAM_TOPIC}
    assert names <= cells(README)
    dead = dead_letter_headers(
        [], topic="t", partition=0, offset=0, timestamp_ms=0, group="g", exception_class="e", message="m"
    )
    for name, _ in dead:
        assert name in README or f"-{name.removeprefix('kafka_dlt-')}" in README
    assert Limits() == Limits(
        max_bytes=1 << 20, max_depth=8, max_items=100_000, max_samples=1024, max_text_bytes=256 << 10
    )
    for said in ("1 MiB a message", "8 levels", "100,000 list items", "1,024\nsamples", "256 KiB a string"):
        assert said in README
