"""Reading what can be read of broken bytes, so that an error names its request and place.

Contract: only on the error path; never raises, does a bounded amount of work. What is found is a help for
people and for the reply, never a decoded message.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

import msgpack

from schemas.messages import MAX_ID_CHARS
from schemas.plain import Path, field_name

_WINDOW_BYTES: Final = 64 << 10
_MAX_ENTRIES: Final = 64  # a request has 8 keys
_MAX_VALUES: Final = 10_000
_BROKEN: Final = (ValueError, TypeError, OverflowError, msgpack.UnpackException)


def find_request_id(data: bytes) -> str | None:
    """The message's `id`, if it stands before whatever is broken."""
    # Lists and maps may hold nothing here, so that no declared length allocates; skip() never allocates.
    reader = msgpack.Unpacker(
        max_buffer_size=_WINDOW_BYTES, max_array_len=0, max_map_len=0, unicode_errors="replace"
    )
    try:
        reader.feed(data[:_WINDOW_BYTES])
        for _ in range(min(reader.read_map_header(), _MAX_ENTRIES)):
            if reader.unpack() == "id":
                value = reader.unpack()
                return value if isinstance(value, str) and 1 <= len(value) <= MAX_ID_CHARS else None
            reader.skip()
    except _BROKEN:
        return None
    return None


def find_invalid_text(data: bytes) -> str | None:
    """The path of the first string that is not UTF-8. `data` is complete msgpack: its lengths are trusted."""
    try:
        root = msgpack.unpackb(
            data, strict_map_key=False, unicode_errors="surrogateescape", object_pairs_hook=_map
        )
    except _BROKEN:
        return None
    return find_unpackable(root)


def find_unpackable(root: object) -> str | None:
    """The path of the first string, key or value, with a lone surrogate, or integer of more than 64 bits."""
    stack: list[tuple[Any, Path]] = [(root, None)]
    for _ in range(_MAX_VALUES):
        if not stack:
            break
        value, path = stack.pop()
        if (isinstance(value, str) and not _is_text(value)) or (
            isinstance(value, int) and not -(2**63) <= value < 2**64
        ):
            return field_name(path)
        if isinstance(value, dict):
            entries = list(islice(value.items(), _MAX_VALUES))
            broken = next((key for key, _ in entries if not _is_text(key)), None)
            if broken is not None:
                return field_name((path, broken.encode("utf-8", "replace").decode()))
            stack.extend((item, (path, key)) for key, item in reversed(entries))
        elif isinstance(value, (list, tuple)):
            stack.extend(
                (item, (path, index)) for index, item in reversed(list(enumerate(value[:_MAX_VALUES])))
            )
    return None


def _map(pairs: list[tuple[object, object]]) -> dict[str, object]:
    return {key: value for key, value in pairs if isinstance(key, str)}


def _is_text(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)
