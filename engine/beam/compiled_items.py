"""An item file compiled ahead: the arrays of an ItemSet as one safetensors file that loads in about a second.

Metadata: format, digest of the arrays (it is the version), and the rules that the sequences were checked
against: a file for another vocabulary, length or end token is refused. Loading reads the file into memory of
its own and never maps it: who overwrites a mapped file in place changes what is being served, and who cuts it
short ends the process.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from engine.beam.item_set import (
    ItemSet,
    compile_items,
    digest_arrays,
    make_item_set,
    set_arrays,
    split_arrays,
)
from engine.beam.items import ItemRules
from engine.disk import writing
from engine.errors import ItemFileError

FORMAT = "boundgen-items-1"  # another number whenever the arrays change in meaning
DTYPES = {"I64": np.int64, "I32": np.int32, "U8": np.uint8}
HEADER_BYTES = 8  # a little-endian length, then so many bytes of JSON
MAX_HEADER_BYTES = 1 << 20
READ_BYTES = 64 << 20
MEND = "compile it again: boundgen items compile"


def load_items(path: Path, rules: ItemRules) -> ItemSet:
    """From an item file or from its compiled form, whichever it is. ItemFileError."""
    return read_compiled(path, rules) if is_compiled(path) else compile_items(path, rules)


def is_compiled(path: Path) -> bool:
    """Whether it begins like safetensors, as neither Parquet nor JSON does. ItemFileError: unreadable."""
    try:
        with path.open("rb") as file:
            begin = file.read(HEADER_BYTES + 1)
    except OSError as error:
        raise ItemFileError(path, f"cannot be read: {error.strerror}") from error
    return begin[4:] == b"\0\0\0\0{"


def write_compiled(path: Path, items: ItemSet, rules: ItemRules) -> None:
    """Appears under its name only when it is whole, so that nobody loads a part. ItemFileError."""
    metadata = {"format": FORMAT, "digest": items.digest, "rules": json.dumps(_plain(rules))}
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing(beside):
            beside.touch()
            mode = beside.stat().st_mode  # what this user's files have; safetensors makes them private
            save_file(set_arrays(items.trie, items.ids), beside, metadata)
            beside.chmod(mode)
        beside.replace(path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        kept = "; the file that is there stays as it was" if path.is_file() else ""
        raise ItemFileError(path, f"cannot be written: {reason}{kept}") from error
    finally:
        beside.unlink(missing_ok=True)


def read_compiled(path: Path, rules: ItemRules) -> ItemSet:
    """ItemFileError unless the file is whole, unchanged and was compiled for such a search."""
    try:
        content = _read(path)
        header, data = _split(path, content)
        metadata = header.pop("__metadata__", {})
        if metadata.get("format") != FORMAT:
            raise ItemFileError(
                path, f"format {metadata.get('format')!r}, this boundgen reads {FORMAT!r}; {MEND}"
            )
        _check_rules(path, json.loads(metadata["rules"]), _plain(rules))
        arrays = {name: _array(data, about) for name, about in header.items()}
        trie, ids = split_arrays(arrays)
        digest = digest_arrays(set_arrays(trie, ids))
    except OSError as error:
        raise ItemFileError(path, f"cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        if isinstance(error, ItemFileError):
            raise
        raise ItemFileError(path, f"is garbled ({error!r}); {MEND}") from error
    if digest != metadata.get("digest"):
        raise ItemFileError(path, f"was changed after it was written: its digest does not fit; {MEND}")
    return make_item_set(trie, ids, digest)


def _plain(rules: ItemRules) -> dict[str, Any]:
    return {
        "num_tokens": rules.num_tokens,
        "end_tokens": sorted(rules.end_tokens),
        "vocab_size": rules.vocab_size,
        "vocabulary": rules.vocabulary,
    }


def _check_rules(path: Path, built: dict[str, Any], wanted: dict[str, Any]) -> None:
    for key, value in wanted.items():
        if built[key] != value and not (key == "vocabulary" and None in (value, built[key])):
            reason = f"was compiled for {key} = {built[key]!r:.14}, the search has {value!r:.14}; {MEND}"
            raise ItemFileError(path, reason)


def _read(path: Path) -> NDArray[np.uint8]:
    """The whole file, read without the interpreter's lock."""
    with path.open("rb", buffering=0) as file:
        content = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
        place = 0
        while count := file.readinto(content[place : place + READ_BYTES].data):
            place += count
    return content[:place]


def _split(path: Path, content: NDArray[np.uint8]) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """The header's JSON and the bytes of the arrays."""
    num_bytes = int.from_bytes(content[:HEADER_BYTES].tobytes(), "little")
    if num_bytes > MAX_HEADER_BYTES:
        raise ItemFileError(path, f"is garbled (a header of {num_bytes} bytes); {MEND}")
    begin = HEADER_BYTES + num_bytes
    header = json.loads(content[HEADER_BYTES:begin].tobytes())
    stop = max(about["data_offsets"][1] for name, about in header.items() if name != "__metadata__")
    if len(content) - begin != stop:
        raise ItemFileError(path, f"has {len(content) - begin} bytes of arrays, {stop} were written; {MEND}")
    return header, content[begin:]


def _array(data: NDArray[np.uint8], about: dict[str, Any]) -> NDArray[Any]:
    start, stop = about["data_offsets"]
    array: NDArray[Any] = data[start:stop].view(DTYPES[about["dtype"]])
    return array
