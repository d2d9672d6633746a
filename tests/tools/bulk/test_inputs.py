"""Input as people have it: each oddity has a defined end, and never harms its neighbours."""

from __future__ import annotations

import gzip
import json
import os
from typing import Any

import pyarrow as pa
import pytest

from tools.bulk.columns import Columns
from tools.bulk.inputs import find_inputs
from tools.bulk.json_lines import JsonLines
from tools.bulk.rows import BulkSample, RowError
from tools.errors import UserError

EVERYTHING = Columns({}, True, None)


def lines(path: Any, content: bytes, columns: Columns = EVERYTHING, skip: int = 0) -> list[Any]:
    path.write_bytes(content)
    return list(JsonLines(find_inputs(path), columns).rows(skip))


def zstd(content: bytes) -> bytes:
    packed: bytes = pa.Codec("zstd").compress(content, asbytes=True)
    return packed


GOOD = [(0, 0, "one"), (1, 1, "two")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b'{"text": "one"}\n{"text": "two"}\n'),
        ("bom.jsonl", b'\xef\xbb\xbf{"text": "one"}\n{"text": "two"}\n'),
        ("crlf.jsonl", b'{"text": "one"}\r\n{"text": "two"}\r\n'),
        ("blank.jsonl", b'\n{"text": "one"}\n  \t\n\r\n{"text": "two"}\n\n'),
        ("no-end.jsonl", b'{"text": "one"}\n{"text": "two"}'),
        ("a.jsonl.gz", gzip.compress(b'{"text": "one"}\n{"text": "two"}\n')),
        ("two-members.jsonl.gz", gzip.compress(b'{"text": "one"}\n') + gzip.compress(b'{"text": "two"}\n')),
        ("a.ndjson.zst", zstd(b'{"text": "one"}\n{"text": "two"}\n')),
        ("UPPER.JSONL.GZ", gzip.compress(b'{"text": "one"}\n{"text": "two"}\n')),
    ],
)
def test_every_way_to_write_the_same_two_rows(tmp_path: Any, name: str, content: bytes) -> None:
    found = lines(tmp_path / name, content)
    assert [(row.number, row.id, row.sample.text) for row in found] == GOOD


@pytest.mark.parametrize("name", ["empty.jsonl", "empty.jsonl.gz", "empty.jsonl.zst"])
def test_an_empty_file_has_no_rows(tmp_path: Any, name: str) -> None:
    assert lines(tmp_path / name, b"") == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "brok', "bad.jsonl, line 2: not JSON: Unterminated string"),
        (b"[1, 2]", "bad.jsonl, line 2: [1, 2] is not a JSON object"),
        (b"null", "bad.jsonl, line 2: null is not a JSON object"),
        (b'{"text": "\xff"}', "bad.jsonl, line 2: not UTF-8 at byte 11 of the line"),
        (b"[" * 100_000, "bad.jsonl, line 2: not JSON: "),
        (b'{"text": ' + b"9" * 5000 + b"}", "bad.jsonl, line 2: not JSON: "),
        (b'{"query": null}', "none of its columns is of use: 'query'"),
        (b"{}", "none of its columns is of use: it has none"),
    ],
    ids=["broken", "list", "null", "latin-1", "deep", "huge number", "nothing but null", "empty"],
)
def test_a_line_that_is_no_row_has_an_error_and_its_neighbours_do_not(
    tmp_path: Any, line: bytes, reason: str
) -> None:
    found = lines(tmp_path / "bad.jsonl", b'{"text": "one"}\n' + line + b'\n{"text": "two"}')
    assert [row.number for row in found] == [0, 1, 2]
    assert [isinstance(row.sample, BulkSample) for row in found] == [True, False, True]
    assert found[1].sample.code == "invalid_row"
    assert found[1].sample.message.startswith(reason)


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Any) -> None:
    path = tmp_path / "long.jsonl"
    path.write_bytes(b'{"text": "one"}\n{"text": "' + b"x" * (3 << 20) + b'"}\n{"text": "two"}\n')
    found = list(JsonLines(find_inputs(path), EVERYTHING, max_line_bytes=1 << 20).rows(0))
    assert [row.number for row in found] == [0, 1, 2]
    assert found[1].sample == RowError("invalid_row", "long.jsonl, line 2: longer than 1048576 bytes")
    assert found[2].sample.text == "two"


@pytest.mark.parametrize(
    ("line", "of_default", "of_key"),
    [
        (b'{"custom_id": "a", "key": 5, "text": "brok', "a", 5),
        (b'{"key": 5, "text": "brok', 1, 5),
        (b'{"text": "\xff", "custom_id": "a", "key": 5}', "a", 5),
        (b'{"custom_id": "a\xff", "key": "\xff", "text": "x"}', 1, None),
        (b'{"body": {"custom_id": "a", "key": 5}, "text": "brok', 1, None),
        (b'{"custom_id": 12', 1, None),  # there may have been more digits
        (b'{"custom_id": "a" "key": 5}', 1, None),
        (b'{"custom_id" : "a" , "key" : 5 } and more', "a", 5),
        (b'["custom_id", "a"]', 1, None),
        (b'{"custom_id": ' + b"[" * 100_000, 1, None),
        (b'{"custom_id": "a", "key": 5, "text": "' + b"x" * (3 << 20) + b'"}', "a", 5),
        (b'{"text": "' + b"x" * (3 << 20) + b'", "key": 5}', 1, None),
        (b'{"text": "x"}', 1, None),  # no broken line: it has none
    ],
)
def test_a_broken_line_keeps_its_id_where_that_can_be_read(
    tmp_path: Any, line: bytes, of_default: str | int, of_key: int | None
) -> None:
    """Never the row's number where ids were asked for: the row whose id that is may be there, too."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"custom_id": 7, "key": 1, "text": "one"}\n' + line)
    for asked, first, wanted in ((None, 7, of_default), ("key", 1, of_key)):
        columns = Columns({"text": "text"}, False, asked)
        found = list(JsonLines(find_inputs(path), columns, max_line_bytes=1 << 20).rows(0))
        assert [row.id for row in found] == [first, wanted]


def test_a_text_of_a_megabyte_is_a_row_like_any_other(tmp_path: Any) -> None:
    text = "x" * (1 << 20)
    found = lines(
        tmp_path / "a.jsonl", b"".join(json.dumps({"text": text}).encode() + b"\n" for _ in range(3))
    )
    assert [row.sample.text == text for row in found] == [True] * 3


def test_utf_16_is_said_to_be_that(tmp_path: Any) -> None:
    with pytest.raises(UserError, match="UTF-16; convert it: iconv"):
        lines(tmp_path / "a.jsonl", '{"text": "one"}\n'.encode("utf-16"))


def test_a_compressed_file_that_breaks_off_ends_the_run(tmp_path: Any) -> None:
    with pytest.raises(UserError, match=r"a\.jsonl\.gz': cannot be read on: "):
        lines(tmp_path / "a.jsonl.gz", gzip.compress(b'{"text": "one"}\n' * 100_000)[:-100])


def test_rows_in_the_form_of_batches(tmp_path: Any) -> None:
    content = (
        b'{"custom_id": "a", "method": "POST", "url": "/v1", "body": {"query": "q", "title": "t"}}\n'
        b'{"custom_id": "b", "body": {"fields": {"query": "q", "title": 7}}}\n'
        b'{"custom_id": "b", "query": "q", "title": null, "extra": [1]}\n'
        b'{"custom_id": 4, "query": "q", "title": {"en": "t"}}\n'
        b'{"query": "q"}\n'
    )
    columns = Columns({"query": "query", "title": "title"}, False, None)
    found = lines(tmp_path / "a.jsonl", content, columns)
    assert [row.id for row in found] == ["a", "b", "b", 4, 4]  # the last has none: its number
    assert [row.sample.fields for row in found if isinstance(row.sample, BulkSample)] == [
        {"query": "q", "title": "t"},
        {"query": "q", "title": 7},
        {"query": "q"},
        {"query": "q"},
    ]
    assert found[3].sample.message.startswith("title: a map, not text or a number; name a column inside it")
    columns = Columns({"query": "query", "title": "title.en"}, False, None)
    assert lines(tmp_path / "a.jsonl", content, columns)[3].sample.fields == {"query": "q", "title": "t"}


def test_token_ids(tmp_path: Any) -> None:
    content = b'{"token_ids": [1, 2]}\n{"token_ids": []}\n{"token_ids": [1, "2"]}\n{"token_ids": "1 2"}\n'
    found = lines(tmp_path / "a.jsonl", content, Columns({"text": "text"}, True, None))
    assert found[0].sample == BulkSample(token_ids=[1, 2])
    assert [row.sample.message for row in found[1:]] == ["token_ids: not a list of token ids"] * 3


def test_nan_is_null_and_infinity_an_error(tmp_path: Any) -> None:
    content = b'{"price": NaN, "title": "t"}\n{"price": Infinity, "title": "t"}\n'
    found = lines(tmp_path / "a.jsonl", content)
    assert found[0].sample.fields == {"title": "t"}
    assert found[1].sample.message == "price: inf is no number to put into a prompt"


def test_a_directory_of_parts_is_read_in_the_order_of_names(tmp_path: Any) -> None:
    folder = tmp_path / "logs"
    (folder / "day=2").mkdir(parents=True)
    (folder / "_SUCCESS").write_text("")
    (folder / ".part-0.jsonl.crc").write_text("")
    (folder / "b.jsonl").write_text('{"text": "two"}\n')
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "one"}\n'))
    (folder / "day=2" / "a.jsonl").write_text('{"text": "three"}')
    source = JsonLines(find_inputs(folder), EVERYTHING)
    assert [(row.number, row.sample.text) for row in source.rows(0)] == [(0, "one"), (1, "two"), (2, "three")]
    assert source.share_read == 1.0
    assert [row.sample.text for row in JsonLines(find_inputs(folder), EVERYTHING).rows(2)] == ["three"]
    (folder / "c.parquet").write_bytes(b"")
    with pytest.raises(UserError, match="holds both JSONL and Parquet"):
        find_inputs(folder)
    (folder / "notes.txt").write_text("")
    with pytest.raises(UserError, match=r"notes\.txt': a file of what kind\? known are \.jsonl"):
        find_inputs(folder)


def test_what_is_not_there(tmp_path: Any) -> None:
    with pytest.raises(UserError, match="there is no such file or directory"):
        find_inputs(tmp_path / "none.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="the directory has no files"):
        find_inputs(tmp_path / "empty")
    (tmp_path / "in.parquet.gz").write_bytes(b"")
    with pytest.raises(UserError, match="a file of what kind"):
        find_inputs(tmp_path / "in.parquet.gz")


def test_output_that_is_the_input_is_refused_by_any_name(desk: Any) -> None:
    desk.write_rows("in.jsonl", range(3))
    before = desk.path("in.jsonl").read_bytes()
    desk.path("link.jsonl").symlink_to("in.jsonl")
    os.link(desk.path("in.jsonl"), desk.path("hard.jsonl"))
    for name in ("in.jsonl", "link.jsonl", "hard.jsonl"):
        outcome = desk.bulk("in.jsonl", name, "--overwrite")
        assert outcome.status == 2
        assert "is the same file as --input" in outcome.told
    assert desk.path("in.jsonl").read_bytes() == before
    desk.path("logs").mkdir()
    desk.write_rows("logs/a.jsonl", range(3))
    outcome = desk.bulk("logs", "logs/out.jsonl")
    assert outcome.status == 2
    assert "lies inside the directory of --input" in outcome.told
