"""Vectors in rows, both forms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.embeddings import pack_vector, read_vector


def test_bytes_are_float32_little_endian():
    assert pack_vector([1.0, -2.5]) == b"\x00\x00\x80\x3f\x00\x00\x20\xc0"
    assert list(read_vector(b"\x00\x00\x80\x3f\x00\x00\x20\xc0")) == [1.0, -2.5]
    assert list(read_vector([1, 2.5])) == [1, 2.5]


@settings(deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_float32_survives(values):
    assert list(read_vector(pack_vector(values))) == values


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(odd):
    with pytest.raises(ValueError, match="not a finite number"):
        pack_vector([1.0, odd])


def test_a_sum_that_overflows_is_not_an_error():
    assert len(pack_vector([3e38] * 8)) == 32


@pytest.mark.parametrize("odd", [b"abc", "abcd", None, [1, "2"], {"a": 1}])
def test_what_is_no_vector_is_quoted(odd):
    with pytest.raises(ValueError, match="neither a list of numbers nor float32 bytes"):
        read_vector(odd)
