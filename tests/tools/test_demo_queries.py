"""The shipped queries are sixty, of the promised mix, and what is malformed really is."""

from __future__ import annotations

from collections import Counter

import pytest
from pydantic import ValidationError

from schemas.codec import DecodeError, decode_request
from schemas.messages import Outcome
from tools.demo.queries import Query, read_queries

QUERIES = read_queries()


def test_the_mix_is_as_promised():
    assert Counter(query.fate.value for query in QUERIES) == {
        "ok": 46,
        "expired": 6,
        "cancelled": 3,
        "invalid": 3,
        "rejected": 2,
    }
    assert Counter(query.pipeline for query in QUERIES) == {"relevance": 39, "intent": 15, "recall": 6}
    assert len({query.id for query in QUERIES}) == 60


def test_relevance_has_4_to_10_titles_and_nobody_asks_twice():
    ok = [query for query in QUERIES if query.fate is Outcome.OK]
    assert all(4 <= len(query.samples) <= 10 for query in ok if query.pipeline == "relevance")
    assert all(len(query.samples) == 1 for query in ok if query.pipeline != "relevance")
    assert len({query.text for query in QUERIES}) == 60


@pytest.mark.parametrize(
    "query", [query for query in QUERIES if query.raw is not None], ids=lambda query: query.id
)
def test_raw_records_cannot_be_decoded(query: Query):
    assert query.fate is Outcome.INVALID
    assert query.why
    with pytest.raises(DecodeError):
        decode_request(query.raw or b"")


def test_a_line_needs_samples_or_bytes():
    with pytest.raises(ValidationError, match="exactly one of samples and raw_hex"):
        Query(id="x", pipeline="intent", fate=Outcome.OK)
