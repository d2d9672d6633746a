"""What can still be read of a line that is no row: the columns before the place where it breaks. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
_NOT_UTF8 = "\ufffd"  # what decoding puts in the place of bytes that are none


def readable_columns(line: bytes) -> dict[str, Any]:
    """Those of the outermost object that are whole: a comma or the end of the object follows. None of bytes
    that are not UTF-8 (nor of U+FFFD itself), and none of a line that is not an object at all."""
    text = line.decode(errors="replace")
    found: dict[str, Any] = {}
    try:
        at = _expect(text, 0, "{")
        while True:
            begin = at
            key, at = _DECODER.raw_decode(text, at)
            value, at = _DECODER.raw_decode(text, _expect(text, at, ":"))
            end = at
            at = _expect(text, at, ",}")
            if isinstance(key, str) and _NOT_UTF8 not in text[begin:end]:
                found[key] = value
            if "}" in text[end:at]:
                return found
    except (ValueError, RecursionError):  # here it breaks, or ends
        return found


def _expect(text: str, at: int, marks: str) -> int:
    """Behind one of these marks and the blanks around it; ValueError where there is none."""
    at = _end_of_blanks(text, at)
    if text[at : at + 1] not in tuple(marks):
        raise ValueError
    return _end_of_blanks(text, at + 1)


def _end_of_blanks(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    assert found is not None, "matches nothing, too"
    return found.end()
