"""What the keys in Redis say, garbage included."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.deadlines import CANCEL, CANCELLED, GARBAGE, deadline_key, deadline_value, parse_deadline


def test_key_and_value():
    assert deadline_key("req-7") == "boundgen:deadline:req-7"
    assert deadline_value(1_700_000_000_000) == b"1700000000000"


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        (None, None),
        (CANCEL, CANCELLED),
        (b" Cancel\n", CANCELLED),
        (b"1700000000000", 1_700_000_000_000),
        (b" 1700000000000 ", 1_700_000_000_000),
        (b"-5", -5),
        (b"0", 0),
        (b"", GARBAGE),
        (b"cancelled", GARBAGE),
        (b"1.7e12", GARBAGE),
        (b"1_700", GARBAGE),
        (b"\xff\xfe", GARBAGE),
        ("\u0661\u0662".encode(), GARBAGE),  # Arabic digits: int() would take them
        (b"9" * 5000, GARBAGE),
    ],
)
def test_values(value, meaning):
    assert parse_deadline(value) == meaning


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_mean_something(value):
    meaning = parse_deadline(value)
    assert meaning in (CANCELLED, GARBAGE) or isinstance(meaning, int)


@settings(deadline=None)
@given(st.integers(-(10**18), 10**18))
def test_times_survive(ms):
    assert parse_deadline(deadline_value(ms)) == ms
