"""Headers that go back: the producer's untouched, one bounded set of ours, however often they go round."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.deadletter import PREFIX, dead_letter_headers, next_attempt, parse_origin
from tools.redrive.letters import KEPT, Letter, redriven_headers

names = st.text(max_size=20) | st.sampled_from([*sorted(KEPT), f"{PREFIX}exception-stacktrace", "k"])
headers_of_anyone = st.lists(st.tuples(names, st.none() | st.binary(max_size=3000)), max_size=12)


def test_the_set_that_is_kept_is_the_one_that_workers_write():
    written = dead_letter_headers(
        [], topic="t", partition=0, offset=0, timestamp_ms=0, group="g", exception_class="e", message="m"
    )
    assert {name for name, _ in written} == KEPT
    assert redriven_headers([("k", b"v"), *written]) == (("k", b"v"), *written)


@settings(deadline=None)
@given(headers_of_anyone)
def test_going_round_changes_nothing_of_the_producer_and_never_grows(headers):
    back = redriven_headers(headers)
    assert [each for each in back if not each[0].startswith(PREFIX)] == [
        each for each in headers if not each[0].startswith(PREFIX)
    ]
    ours = [name for name, _ in back if name.startswith(PREFIX)]
    assert len(set(ours)) == len(ours)
    assert set(ours) <= KEPT
    assert all(len(value or b"") <= 1024 for name, value in back if name.startswith(PREFIX))
    assert redriven_headers(back) == back
    if parse_origin(back) is not None:
        assert next_attempt(back) == next_attempt(headers)


def test_a_stack_trace_stays_behind_and_long_texts_are_cut_at_a_character():
    long = ("é" * 2000).encode()
    back = redriven_headers(
        [(f"{PREFIX}exception-stacktrace", b"x" * 50_000), (f"{PREFIX}exception-message", b"x" + long)]
    )
    ((name, value),) = back
    assert name == f"{PREFIX}exception-message"
    assert value is not None
    assert value.decode() == "x" + "é" * 511


def test_the_id_of_what_can_be_read():
    def letter(value: bytes | None) -> Letter:
        return Letter("t-dlt", 0, 0, 0, None, value, ())

    assert letter(b"\x82\xa1v\x09\xa2id\xa3r-1").request_id == "r-1"
    assert letter(b"\xc1").request_id is None
    assert letter(None).request_id is None
    assert letter(None).origin is None
