"""Item files: what is read from them, and what each mistake in one is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.beam import item_rows
from engine.beam.items import ItemRules, read_items
from engine.beam.trie import END
from engine.errors import ItemFileError

FIXED = ItemRules(num_tokens=3, vocab_size=100)
FINISH = ItemRules(num_tokens=3, vocab_size=100, end_tokens=(9, 8))
GOOD: list[dict[str, Any]] = [
    {"item_id": "a", "token_ids": [1, 2, 3], "title": "not read"},
    {"item_id": "ä", "token_ids": [99, 0, 5], "title": None},
]


def write_lines(path: Path, *rows: object) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_parquet(path: Path, ids: Any, token_ids: Any, **others: Any) -> Path:
    pq.write_table(pa.table({"item_id": ids, "token_ids": token_ids, **others}), path, row_group_size=2)
    return path


def test_json_lines(tmp_path: Path) -> None:
    table = read_items(write_lines(tmp_path / "items", *GOOD, "", "  "), FIXED)
    assert table.ids.to_pylist() == ["a", "ä"]
    assert table.sequences.tolist() == [[1, 2, 3], [99, 0, 5]]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.large_list(pa.uint16()), pa.list_(pa.uint64(), 3), pa.list_(pa.int32())]
)
@pytest.mark.parametrize("ids", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_parquet_in_any_width(tmp_path: Path, kind: Any, ids: Any) -> None:
    lists = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    file = write_parquet(
        tmp_path / "items.parquet", pa.array(["x", "y", "z"], ids), pa.array(lists, kind), t=[1, 2, 3]
    )
    table = read_items(file, FIXED)
    assert table.ids.to_pylist() == ["x", "y", "z"]
    assert table.sequences.tolist() == lists


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint8(), pa.uint64()])
def test_ids_may_be_whole_numbers(tmp_path: Path, kind: Any) -> None:
    file = write_parquet(tmp_path / "items", pa.array([7, 0], kind), [[1, 2, 3]] * 2)
    assert read_items(file, FIXED).ids.to_pylist() == [7, 0]
    lines = write_lines(tmp_path / "lines", *({"item_id": i, "token_ids": [1, 2, 3]} for i in (7, -(2**63))))
    assert read_items(lines, FIXED).ids.to_pylist() == [7, -(2**63)]


def test_shorter_sequences_where_a_beam_may_finish(tmp_path: Path) -> None:
    lists = [[1, 2, 3], [9], [5, 8], [5, 7, 9]]
    file = write_parquet(tmp_path / "items", list("abcd"), lists)
    expected = [[1, 2, 3], [9, END, END], [5, 8, END], [5, 7, 9]]
    assert read_items(file, FINISH).sequences.tolist() == expected


def test_more_rows_than_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_rows, "BATCH_ROWS", 3)
    rows = [{"item_id": str(i), "token_ids": [i, i, i]} for i in range(10)]
    for file in (
        write_lines(tmp_path / "lines", *rows),
        write_parquet(tmp_path / "parquet", [r["item_id"] for r in rows], [r["token_ids"] for r in rows]),
    ):
        table = read_items(file, FIXED)
        assert table.ids.to_pylist() == [str(i) for i in range(10)]
        assert table.sequences[:, 1].tolist() == list(range(10))
    rows[7]["token_ids"] = [1, 2]
    with pytest.raises(ItemFileError, match=r"row 8, token_ids = \[1, 2\]: has 2 tokens"):
        read_items(write_lines(tmp_path / "lines", *rows), FIXED)
    rows[7].update(item_id="5", token_ids=[1, 2, 3])
    with pytest.raises(ItemFileError, match="row 8, item_id = '5': is that of row 6, too"):
        read_items(write_lines(tmp_path / "lines", *rows), FIXED)
    rows[7].update(item_id=5)
    with pytest.raises(ItemFileError, match="row 8, item_id = 5: the ids before it are strings"):
        read_items(write_lines(tmp_path / "lines", *rows), FIXED)


ROW = {"item_id": "b", "token_ids": [1, 2, 3]}


@pytest.mark.parametrize(
    ("second", "rules", "said"),
    [
        ("{", FIXED, "row 2: is no JSON: Expecting property name"),
        ("[1]", FIXED, "row 2: [1] is no JSON object"),
        ("\n" + json.dumps(ROW), FIXED, "row 2: is blank"),
        ({"token_ids": [1, 2, 3]}, FIXED, "row 2, item_id: is missing; the row has token_ids"),
        ({"item_id": "b", "tokens": [1]}, FIXED, "row 2, token_ids: is missing; the row has item_id, tokens"),
        ({**ROW, "item_id": None}, FIXED, "row 2, item_id = None: must be a whole number or a string"),
        ({**ROW, "item_id": True}, FIXED, "row 2, item_id = True: must be a whole number or a string"),
        ({**ROW, "item_id": 4}, FIXED, "row 2, item_id = 4: the ids before it are strings"),
        ({**ROW, "item_id": "a"}, FIXED, "row 2, item_id = 'a': is that of row 1, too"),
        ({**ROW, "token_ids": "123"}, FIXED, "row 2, token_ids = '123': must be a list of whole numbers"),
        ({**ROW, "token_ids": [1, 2.0, 3]}, FIXED, "row 2, token_ids = [1, 2.0, 3]: must be a list of whole"),
        (
            {**ROW, "token_ids": [1, True, 3]},
            FIXED,
            "row 2, token_ids = [1, True, 3]: must be a list of whole",
        ),
        ({**ROW, "token_ids": [1, 2, 2**70]}, FIXED, f"token_ids = [1, 2, {2**70}]: must be a list of whole"),
        ({**ROW, "token_ids": []}, FIXED, "row 2, token_ids = []: has 0 tokens; a sequence has 3"),
        (
            {**ROW, "token_ids": []},
            FINISH,
            "row 2, token_ids = []: has 0 tokens; a sequence has 3, or fewer and",
        ),
        (
            {**ROW, "token_ids": [1, 2, 3, 4]},
            FIXED,
            "row 2, token_ids = [1, 2, 3, 4]: has 4 tokens; a sequence",
        ),
        (
            {**ROW, "token_ids": [1, 9]},
            FIXED,
            "row 2, token_ids = [1, 9]: has 2 tokens; a sequence has 3 (fewer where eos is finish,",
        ),
        (
            {**ROW, "token_ids": [1, 3]},
            FINISH,
            "token_ids = [1, 3]: has 2 tokens; a sequence has 3, or fewer and an end token (9, 8) last",
        ),
        (
            {**ROW, "token_ids": [9, 3, 4]},
            FINISH,
            "row 2, token_ids = [9, 3, 4]: goes on after the end token 9",
        ),
        ({**ROW, "token_ids": [1, 100, 3]}, FIXED, "row 2, token_ids = [1, 100, 3]: token id 100 is outside"),
        ({**ROW, "token_ids": [1, -1, 3]}, FIXED, "token id -1 is outside the vocabulary of 100"),
    ],
)
def test_a_mistake_in_json_lines(tmp_path: Path, second: object, rules: ItemRules, said: str) -> None:
    file = write_lines(tmp_path / "items.jsonl", GOOD[0], second)
    with pytest.raises(ItemFileError) as caught:
        read_items(file, rules)
    assert str(caught.value).startswith(f"{file}: row 2")
    assert said in str(caught.value)
    assert caught.value.row == 2


@pytest.mark.parametrize(
    ("ids", "token_ids", "said"),
    [
        (["a", None], [[1, 2, 3]] * 2, "row 2, item_id = None: is missing"),
        (["a", "b"], [[1, 2, 3], None], "row 2, token_ids = None: is missing"),
        (["a", "b"], [[1, 2, 3], [1, None, 3]], "row 2, token_ids = [1, None, 3]: has a null in it"),
        (["a", "a"], [[1, 2, 3]] * 2, "row 2, item_id = 'a': is that of row 1, too"),
        (["a", "b"], [[1, 2, 3], [1, 2]], "row 2, token_ids = [1, 2]: has 2 tokens; a sequence has 3"),
        (["a", "b"], [[1, 2, 3], [1, 2, 100]], "row 2, token_ids = [1, 2, 100]: token id 100 is outside"),
        ([0.5, 1.5], [[1, 2, 3]] * 2, "item_id = 'double': must be whole numbers or strings"),
        (["a", "b"], ["1 2 3"] * 2, "token_ids = 'string': must be lists of whole numbers"),
        (["a", "b"], [[0.5]] * 2, "must be lists of whole numbers"),
        (
            pa.array([1, 2**63], pa.uint64()),
            [[1, 2, 3]] * 2,
            f"row 2, item_id = {2**63}: is no 64-bit integer",
        ),
        (pa.array([], pa.string()), pa.array([], pa.list_(pa.int32())), "has no rows"),
    ],
)
def test_a_mistake_in_parquet(tmp_path: Path, ids: Any, token_ids: Any, said: str) -> None:
    file = write_parquet(tmp_path / "items.parquet", ids, token_ids)
    with pytest.raises(ItemFileError) as caught:
        read_items(file, FIXED)
    assert str(caught.value).startswith(f"{file}: ")
    assert said in str(caught.value)


def test_a_file_without_the_columns_lists_those_it_has(tmp_path: Path) -> None:
    pq.write_table(pa.table({"item": [1], "token_ids": [[1, 2, 3]]}), tmp_path / "items")
    with pytest.raises(ItemFileError, match="has no column 'item_id'; its columns: item, token_ids"):
        read_items(tmp_path / "items", FIXED)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n\n", "has no rows"),
        (b"\xff\xfe{\x00", "row 1: is neither Parquet nor JSON lines in UTF-8"),
        (b"PAR1 and no more", "no readable Parquet file from row 1 on"),
    ],
)
def test_what_is_no_item_file(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "items").write_bytes(content)
    with pytest.raises(ItemFileError, match=said):
        read_items(tmp_path / "items", FIXED)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ItemFileError, match="cannot be read: No such file"):
        read_items(tmp_path / "items", FIXED)
