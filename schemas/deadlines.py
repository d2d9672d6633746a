"""The keys in Redis that move or cancel a deadline: what clients write and workers read.

Key boundgen:deadline:{request id}; value an absolute time in decimal milliseconds by Redis' own clock
(TIME), or the word cancel. Written with PXAT, so that Redis forgets it; a missing key says nothing: the
message's own deadline counts. Contract: pure functions, no connection here.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, Literal

CANCEL: Final = b"cancel"
GRACE_MS: Final = 10_000
"""How long a key outlives its deadline: a queued request must still find it, memory must not keep it."""

CANCEL_KEEP_MS: Final = 600_000
"""How long a cancellation is kept where the request's deadline is not known: longer than a sane backlog."""

_KEY_PREFIX: Final = "boundgen:deadline:"
_DECIMAL: Final = re.compile(rb"-?[0-9]{1,19}")


class Mark(Enum):
    """A value that is no time."""

    CANCELLED = "cancelled"
    GARBAGE = "garbage"


CANCELLED: Final = Mark.CANCELLED
GARBAGE: Final = Mark.GARBAGE
Deadline = int | Literal[Mark.CANCELLED, Mark.GARBAGE] | None


def deadline_key(request_id: str) -> str:
    """The key that belongs to a request."""
    return f"{_KEY_PREFIX}{request_id}"


def deadline_value(deadline_ms: int) -> bytes:
    """The value that sets a deadline: epoch ms by Redis' clock."""
    return b"%d" % deadline_ms


def parse_deadline(value: bytes | None) -> Deadline:
    """Epoch ms, CANCELLED, None for no key, or GARBAGE: to be counted and treated as no key. Never raises.

    The number is as written: negative or absurd times are the reader's to clamp.
    """
    if value is None:
        return None
    word = value.strip()
    if word.lower() == CANCEL:
        return CANCELLED
    return int(word) if _DECIMAL.fullmatch(word) else GARBAGE
