"""Moments as people write them: 15m (ago), 2026-01-31T10:00 (a zone, else UTC), or epoch milliseconds."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from tools.errors import UserError

UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"(\d+)([smhd])")
_EPOCH_MS = re.compile(r"\d{12,14}")


def read_moment(option: str, text: str | None, now_ms: int | None = None) -> int | None:
    """Epoch milliseconds; UserError quotes what cannot be understood."""
    if text is None:
        return None
    if ago := _AGO.fullmatch(text):
        now_ms = int(time.time() * 1000) if now_ms is None else now_ms
        return now_ms - int(ago[1]) * UNITS_MS[ago[2]]
    if _EPOCH_MS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            f"{option} = {text!r}: no moment; write 15m (ago: s, m, h, d), 2026-01-31T10:00, or epoch ms"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
