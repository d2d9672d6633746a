"""The compiled form gives the set of the file it came from, and is refused when it is not what it was."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from engine.beam.compiled_items import is_compiled, load_items, write_compiled
from engine.beam.item_set import ItemSet, compile_items
from engine.beam.items import ItemRules
from engine.errors import ItemFileError

RULES = ItemRules(num_tokens=4, vocab_size=1000, end_tokens=(0,), vocabulary="abc")


@pytest.fixture(params=["strings", "numbers"])
def items_file(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """500 items, some shorter, some sharing a sequence."""
    rng = np.random.default_rng(3)
    lists = [rng.integers(1, 6, 4).tolist() for _ in range(400)]
    lists += [[*rng.integers(1, 6, n).tolist(), 0] for n in rng.integers(0, 3, 100)]
    ids: list[Any] = [f"i-{n}é" if n else "" for n in range(500)]
    table = pa.table(
        {"item_id": ids if request.param == "strings" else range(500, 0, -1), "token_ids": lists}
    )
    pq.write_table(table, tmp_path / "items.parquet")
    return tmp_path / "items.parquet"


def compiled(file: Path, rules: ItemRules = RULES) -> Path:
    target = file.with_name("items.safetensors")
    write_compiled(target, compile_items(file, rules), rules)
    return target


def all_ids(items: ItemSet) -> dict[int, list[str | int]]:
    return dict(enumerate(items.item_ids(range(items.trie.num_nodes))))


def test_round_trip(items_file: Path) -> None:
    raw, again = load_items(items_file, RULES), load_items(compiled(items_file), RULES)
    assert not is_compiled(items_file)
    assert is_compiled(items_file.with_name("items.safetensors"))
    assert again.version == raw.version
    assert again.digest == raw.digest
    assert all_ids(again) == all_ids(raw)
    for one, other in zip(vars(again.tensors).values(), vars(raw.tensors).values(), strict=True):
        assert one == other if isinstance(one, tuple) else (one == other).all()
    assert len(list(items_file.parent.iterdir())) == 2  # nothing is left beside them


def test_whoever_may_read_the_file_may_read_its_compiled_form(items_file: Path) -> None:
    assert compiled(items_file).stat().st_mode == items_file.stat().st_mode


def test_every_item_is_found_by_its_tokens(items_file: Path) -> None:
    items = load_items(compiled(items_file), RULES)
    expected: dict[tuple[int, ...], list[Any]] = {}
    for row in pq.read_table(items_file).to_pylist():
        expected.setdefault(tuple(row["token_ids"]), []).append(row["item_id"])
    for tokens, ids in expected.items():
        assert items.item_ids(items.trie.find(np.array([tokens])).tolist()) == [ids]
    assert sum(map(len, all_ids(items).values())) == items.num_items == 500
    assert any(len(ids) > 1 for ids in expected.values())


def test_the_version_is_the_content_and_nothing_else(items_file: Path) -> None:
    version = load_items(items_file, RULES).version
    table = pq.read_table(items_file)
    pq.write_table(table, items_file, compression="zstd", row_group_size=7)
    assert load_items(items_file, RULES).version == version
    rows = table.to_pylist()
    rows[0]["token_ids"] = [7, 7, 7, 7]
    pq.write_table(pa.Table.from_pylist(rows), items_file)
    assert load_items(items_file, RULES).version != version


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_tokens": 5}, "was compiled for num_tokens = 4, the search has 5; compile it again"),
        ({"vocab_size": 1001}, "was compiled for vocab_size = 1000, the search has 1001"),
        ({"end_tokens": ()}, r"was compiled for end_tokens = \[0\], the search has \[\]"),
        ({"vocabulary": "xyz"}, "was compiled for vocabulary = 'abc', the search has 'xyz'"),
    ],
)
def test_made_for_another_search(items_file: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ItemFileError, match=said):
        load_items(compiled(items_file), replace(RULES, **change))


def test_an_unknown_vocabulary_fits_any(items_file: Path) -> None:
    assert load_items(compiled(items_file), replace(RULES, vocabulary=None)).num_items == 500


def test_a_changed_byte_anywhere_in_the_arrays_is_refused(items_file: Path) -> None:
    target = compiled(items_file)
    content = target.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    for place in np.linspace(begin, len(content) - 1, 12, dtype=int).tolist():
        target.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(ItemFileError, match=r"digest does not fit; compile it again|is garbled"):
            load_items(target, RULES)


def test_a_part_of_the_file_is_refused(items_file: Path) -> None:
    target = compiled(items_file)
    content = target.read_bytes()
    for size in (9, 100, 600, len(content) // 2, len(content) - 1):
        target.write_bytes(content[:size])
        with pytest.raises(ItemFileError, match=r"bytes of arrays|is garbled"):
            load_items(target, RULES)


def test_another_safetensors_file_is_refused(tmp_path: Path) -> None:
    save_file({"weights": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(ItemFileError, match="format None, this boundgen reads 'boundgen-items-1'"):
        load_items(tmp_path / "model.safetensors", RULES)


def test_a_failed_write_leaves_the_old_file(items_file: Path) -> None:
    target = compiled(items_file)
    before, items = target.read_bytes(), load_items(target, RULES)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))  # as a full disk
    try:
        with pytest.raises(
            ItemFileError, match="cannot be written: File too large; the file that is there stays as it was"
        ):
            write_compiled(target, items, RULES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert target.read_bytes() == before
    assert len(list(items_file.parent.iterdir())) == 2
