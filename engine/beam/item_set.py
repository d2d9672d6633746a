"""One version of a pipeline's items, ready to search: the trie, the ids at its leaves, a digest of both.

    items of leaf i = ids[row_offsets[i] : row_offsets[i + 1]], in the order of their file

Immutable; any thread. Whoever holds one keeps its memory, and nobody else does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from engine.beam.items import ItemRules, read_items
from engine.beam.legal import LegalTensors
from engine.beam.trie import Trie, TrieError, compile_trie
from engine.errors import ItemFileError

VERSION_DIGITS = 16  # of the digest's: 64 bits tell versions apart


@dataclass(frozen=True)
class ItemSet:
    """A LegalSet (engine.beam.legal) whose leaves have items. Equal content has an equal digest."""

    trie: Trie
    ids: Any  # pa.Array of int64 or large_string, in order of the leaves
    digest: str
    tensors: LegalTensors  # on the device of the search

    @property
    def version(self) -> str:
        return self.digest[:VERSION_DIGITS]

    @property
    def num_items(self) -> int:
        return len(self.ids)

    @property
    def host_bytes(self) -> int:
        """With the tensors, where the search runs on the CPU."""
        return self.trie.num_bytes + int(self.ids.nbytes)

    @property
    def device_bytes(self) -> int:
        """Of what a search reads."""
        tensors = (self.tensors.offsets, self.tensors.tokens, self.tensors.children)
        return sum(each.nbytes for each in tensors)

    def item_ids(self, leaves: Sequence[int]) -> list[list[str | int]]:
        """Of each node all items whose sequence ends there; none where none does."""
        return [[self.ids[place].as_py() for place in places] for places in self.trie.rows(leaves)]


def compile_items(path: Path, rules: ItemRules) -> ItemSet:
    """From an item file. ItemFileError."""
    table = read_items(path, rules)
    try:
        trie, order = compile_trie(table.sequences, rules.vocab_size)
    except TrieError as error:
        raise ItemFileError(path, str(error)) from error
    return make_item_set(trie, table.ids.take(pa.array(order)))


def make_item_set(trie: Trie, ids: Any, digest: str | None = None) -> ItemSet:
    """`ids` in order of the leaves; the digest is computed where it is not known."""
    return ItemSet(trie, ids, digest or digest_arrays(set_arrays(trie, ids)), trie.tensors())


def set_arrays(trie: Trie, ids: Any) -> dict[str, NDArray[Any]]:
    """Everything that makes a version, as plain arrays in a fixed order."""
    arrays: dict[str, NDArray[Any]] = {
        "offsets": trie.offsets,
        "tokens": trie.tokens,
        "max_degree": np.array(trie.max_degree, np.int32),
        "leaf_nodes": trie.leaf_nodes,
        "row_offsets": trie.row_offsets,
    }
    if pa.types.is_int64(ids.type):
        return {**arrays, "ids": ids.to_numpy()}
    _, offsets, text = ids.buffers()
    chars = np.frombuffer(text or b"", np.uint8)
    ends = np.frombuffer(offsets, np.int64)[: len(ids) + 1]
    return {**arrays, "id_offsets": ends, "id_chars": chars[: ends[-1]]}


def split_arrays(arrays: Mapping[str, NDArray[Any]]) -> tuple[Trie, Any]:
    """The opposite of set_arrays; memory is shared. KeyError where one is missing."""
    trie = Trie(
        offsets=arrays["offsets"],
        tokens=arrays["tokens"],
        max_degree=tuple(arrays["max_degree"].tolist()),
        leaf_nodes=arrays["leaf_nodes"],
        row_offsets=arrays["row_offsets"],
    )
    if "ids" in arrays:
        return trie, pa.array(arrays["ids"])
    ends, chars = arrays["id_offsets"], arrays["id_chars"]
    buffers = pa.py_buffer(ends), pa.py_buffer(chars)
    return trie, pa.LargeStringArray.from_buffers(len(ends) - 1, *buffers)


def digest_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    """sha256 over names, types, lengths and bytes: about a second a gigabyte, not holding the GIL."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {len(array)}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
