"""Items of a pipeline from a file: one token sequence each, checked against what the search can produce.

A file is Parquet or JSONL with the columns item_id (whole numbers or strings, each once) and token_ids; other
columns are not read. Several items may share one sequence. Reading is on the caller's thread, minutes for
millions of JSONL lines, and takes about 4 bytes a token beside the ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from engine.beam.item_rows import ITEM_ID, TOKEN_IDS, ItemRows, read_rows
from engine.beam.trie import END, Ints
from engine.errors import ItemFileError


@dataclass(frozen=True)
class ItemRules:
    """What the sequences of a search look like.

    num_tokens: of a whole one, the search's decode steps + 1. end_tokens: only where a beam may finish (`eos:
    finish`): a shorter sequence ends in one of them, and nothing comes after it.
    """

    num_tokens: int
    vocab_size: int
    end_tokens: tuple[int, ...] = ()
    vocabulary: str | None = None  # which token has which id, as a digest; None: not known


@dataclass(frozen=True)
class ItemTable:
    """Row i is item ids[i] with sequences[i], END after a shorter one."""

    ids: Any  # pa.Array of int64 or large_string
    sequences: Ints  # int32[num_items, num_tokens]


def read_items(path: Path, rules: ItemRules) -> ItemTable:
    """The whole file; ItemFileError names file, row, field and value of the first mistake."""
    ids: list[Any] = []
    sequences: list[Ints] = []
    for rows in read_rows(path):
        _check_rows(path, rows, rules)
        if ids and rows.ids.type != ids[0].type:
            kind = "strings" if pa.types.is_large_string(ids[0].type) else "whole numbers"
            value = rows.ids[0].as_py()
            raise ItemFileError(path, f"the ids before it are {kind}", rows.first, ITEM_ID, value)
        ids.append(rows.ids)
        sequences.append(_fill(rows, rules.num_tokens))
    if not any(map(len, sequences)):
        raise ItemFileError(path, "has no rows")
    table = ItemTable(pa.concat_arrays(ids), np.concatenate(sequences))
    _check_unique(path, table.ids)
    return table


def _check_rows(path: Path, rows: ItemRows, rules: ItemRules) -> None:
    outside = (rows.tokens < 0) | (rows.tokens >= rules.vocab_size)
    ends = np.cumsum(rows.lengths)
    if outside.any():
        place = int(np.argmax(outside))
        reason = f"token id {rows.tokens[place]} is outside the vocabulary of {rules.vocab_size}"
        raise _row_error(path, rows, int(np.searchsorted(ends, place, side="right")), reason)
    wrong = rows.lengths != rules.num_tokens
    wanted = f"a sequence has {rules.num_tokens}"
    ending = np.isin(rows.tokens, rules.end_tokens)
    if rules.end_tokens and ending.size:
        wrong &= ~((rows.lengths > 0) & (rows.lengths < rules.num_tokens) & ending[np.maximum(ends - 1, 0)])
        wanted += f", or fewer and an end token ({', '.join(map(str, rules.end_tokens))}) last"
    elif not rules.end_tokens:
        wanted += " (fewer where eos is finish, with end tokens)"
    if wrong.any():
        index = int(np.argmax(wrong))
        raise _row_error(path, rows, index, f"has {rows.lengths[index]} tokens; {wanted}")
    ending[ends - 1] = False  # no sequence is empty here
    if ending.any():
        place = int(np.argmax(ending))
        reason = f"goes on after the end token {rows.tokens[place]}"
        raise _row_error(path, rows, int(np.searchsorted(ends, place, side="right")), reason)


def _row_error(path: Path, rows: ItemRows, index: int, reason: str) -> ItemFileError:
    return ItemFileError(path, reason, rows.first + index, TOKEN_IDS, rows.row_tokens(index))


def _fill(rows: ItemRows, num_tokens: int) -> Ints:
    if (rows.lengths == num_tokens).all():
        return rows.tokens.astype(np.int32).reshape(-1, num_tokens)
    filled = np.full((len(rows.lengths), num_tokens), END, np.int32)
    filled[np.arange(num_tokens) < rows.lengths[:, None]] = rows.tokens
    return filled


def _check_unique(path: Path, ids: Any) -> None:
    if pc.count_distinct(ids).as_py() == len(ids):
        return
    codes: NDArray[np.int32] = ids.dictionary_encode().indices.to_numpy()
    _, first = np.unique(codes, return_index=True)
    again = np.ones(len(codes), bool)
    again[first] = False
    row = int(np.argmax(again))
    before = int(first[codes[row]]) + 1
    raise ItemFileError(path, f"is that of row {before}, too", row + 1, ITEM_ID, ids[row].as_py())
