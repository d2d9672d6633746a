"""Moments as people write them."""

from __future__ import annotations

import pytest

from tools.capture.moments import read_moment
from tools.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("15m", 1_700_000_000_000 - 900_000),
        ("2d", 1_700_000_000_000 - 172_800_000),
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
        ("2023-11-14", 1_699_920_000_000),
    ],
)
def test_moments(text: str | None, expected: int | None):
    assert read_moment("--since", text, now_ms=1_700_000_000_000) == expected


@pytest.mark.parametrize("text", ["yesterday", "15", "15 m", "1700000000", ""])
def test_no_moments(text: str):
    with pytest.raises(UserError, match="--since"):
        read_moment("--since", text)
