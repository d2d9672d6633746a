"""The arithmetic of deadlines: rules, clamps and the skews of three clocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.deadlines import CANCELLED
from worker.deadlines import (
    MIN_EPOCH_MS,
    Deadline,
    DeadlinePolicy,
    Oddity,
    effective,
    message_deadline,
)

NOW = 1_790_000_000_000  # receipt, on the worker's timeline
MINUTES = 60_000
POLICY = DeadlinePolicy(default_timeout_ms=None, max_timeout_ms=3_600_000, max_extension_ms=5_000)


def stated(**changes: object) -> Deadline:
    """A message received at NOW, created 3 ms before, with neither skew nor deadline unless changed."""
    facts: dict[str, object] = {
        "deadline_ms": None,
        "timeout_ms": None,
        "record_timestamp_ms": NOW - 3,
        "log_append_time": False,
        "received_ms": NOW,
        "offset_ms": 0.0,
        "policy": POLICY,
    }
    return message_deadline(**{**facts, **changes})  # type: ignore[arg-type]


def test_timeout_counts_from_the_record():
    assert stated(timeout_ms=20).at_ms == NOW + 17


def test_deadline_is_taken_as_written():
    assert stated(deadline_ms=NOW + 11).at_ms == NOW + 11


def test_of_both_the_deadline_counts():
    assert stated(deadline_ms=NOW + 11, timeout_ms=20).at_ms == NOW + 11
    assert stated(deadline_ms=NOW + 50, timeout_ms=20).at_ms == NOW + 50


def test_without_a_deadline_the_default_counts_or_none():
    assert stated().at_ms is None
    assert not stated().expired(2 * NOW)
    assert stated().remaining_ms(NOW) is None
    assert stated(policy=DeadlinePolicy(default_timeout_ms=100)).at_ms == NOW + 97
    assert stated(policy=DeadlinePolicy(default_timeout_ms=100), timeout_ms=20).at_ms == NOW + 17


def test_deadline_itself_is_too_late():
    deadline = Deadline(NOW, NOW)
    assert not deadline.expired(NOW - 1)
    assert deadline.expired(NOW)
    assert deadline.remaining_ms(NOW - 7) == 7
    assert deadline.remaining_ms(NOW + 7) == 0


@pytest.mark.parametrize("timeout_ms", [0, -1, -(10**15)])
def test_used_up_or_negative_timeout_is_expired(timeout_ms):
    assert stated(timeout_ms=timeout_ms).at_ms == NOW - 3


@pytest.mark.parametrize("deadline_ms", [0, -1, NOW // 1000, NOW // 1000 + 1, MIN_EPOCH_MS - 1, -(10**18)])
def test_deadline_that_is_no_milliseconds_is_ignored_and_reported(deadline_ms):
    assert stated(deadline_ms=deadline_ms) == Deadline(None, NOW + 5_000, Oddity.NOT_MILLISECONDS)
    assert stated(deadline_ms=deadline_ms, timeout_ms=20).at_ms == NOW + 17
    with_default = stated(deadline_ms=deadline_ms, policy=DeadlinePolicy(default_timeout_ms=100))
    assert with_default.at_ms == NOW + 97


@pytest.mark.parametrize(
    "too_far", [{"deadline_ms": NOW * 1000}, {"timeout_ms": NOW}, {"deadline_ms": 2**63 - 1}]
)
def test_absurd_future_is_brought_back_and_reported(too_far):
    deadline = stated(**too_far)
    assert deadline.at_ms == NOW + POLICY.max_timeout_ms
    assert deadline.oddity is Oddity.TOO_FAR


@pytest.mark.parametrize("timestamp", [-1, 0, NOW // 1000])
def test_record_without_a_timestamp_was_created_at_receipt(timestamp):
    assert stated(timeout_ms=20, record_timestamp_ms=timestamp).at_ms == NOW + 20


@pytest.mark.parametrize("log_append_time", [False, True])
def test_record_from_the_future_was_created_at_receipt(log_append_time):
    ahead = stated(timeout_ms=20, record_timestamp_ms=NOW + 10 * MINUTES, log_append_time=log_append_time)
    assert ahead.at_ms == NOW + 20
    assert ahead.oddity is (None if log_append_time else Oddity.PRODUCER_AHEAD)


def test_budget_of_a_producer_ahead_is_kept():
    skewed = NOW + 10 * MINUTES
    assert stated(deadline_ms=skewed + 20, record_timestamp_ms=skewed).at_ms == NOW + 20


def test_redis_time_deadline_stands_beside_a_record_from_a_producer_ahead():
    assert stated(deadline_ms=NOW + 20, record_timestamp_ms=NOW + 10 * MINUTES).at_ms == NOW + 20


def test_producer_behind_is_seen_where_the_partition_had_caught_up():
    skewed = NOW - 10 * MINUTES
    seen = {"record_timestamp_ms": skewed, "not_before_ms": NOW - 5}
    assert stated(timeout_ms=20, **seen).at_ms == NOW + 15
    assert stated(timeout_ms=20, **seen).oddity is Oddity.PRODUCER_BEHIND
    assert stated(deadline_ms=skewed + 20, **seen).at_ms == NOW + 15
    assert stated(deadline_ms=NOW + 20, **seen).at_ms == NOW + 20  # by Redis' clock


def test_producer_behind_in_a_backlog_counts_as_waiting():
    skewed = NOW - 10 * MINUTES
    waited = stated(timeout_ms=20, record_timestamp_ms=skewed, not_before_ms=NOW - 20 * MINUTES)
    assert waited.at_ms == skewed + 20
    assert stated(timeout_ms=20, record_timestamp_ms=skewed).at_ms == skewed + 20


def test_log_append_time_keeps_a_skewed_deadline_as_written():
    skewed = NOW - 10 * MINUTES
    assert stated(deadline_ms=skewed, log_append_time=True, not_before_ms=NOW - 5).at_ms == skewed


@given(skew=st.integers(-(10**9), 10**9), timeout=st.integers(0, 10**6), waited=st.integers(0, 1000))
def test_budget_survives_any_producer_skew_on_a_caught_up_partition(skew, timeout, waited):
    """timeout_ms from a producer whose clock is off: never longer than from receipt, nor lost."""
    created = NOW - waited
    deadline = stated(timeout_ms=timeout, record_timestamp_ms=created + skew, not_before_ms=created)
    assert deadline.at_ms is not None
    assert created + timeout <= deadline.at_ms <= NOW + timeout


@given(
    deadline_ms=st.none() | st.integers(-(2**63), 2**63 - 1),
    timeout_ms=st.none() | st.integers(-(2**63), 2**63 - 1),
    record_timestamp_ms=st.integers(-1, 2**63 - 1),
    log_append_time=st.booleans(),
    offset_ms=st.floats(-1e9, 1e9),
    not_before_ms=st.none() | st.integers(NOW - 10**6, NOW),
)
def test_any_message_has_a_deadline_within_bounds(**facts):
    deadline = stated(**facts)
    assert deadline.horizon_ms >= NOW + POLICY.max_extension_ms
    if deadline.at_ms is None:
        assert facts["timeout_ms"] is None
        assert facts["deadline_ms"] is None or deadline.oddity is Oddity.NOT_MILLISECONDS
    else:
        assert deadline.at_ms <= NOW + POLICY.max_timeout_ms
        assert deadline.horizon_ms >= deadline.at_ms + POLICY.max_extension_ms


@given(
    offset_ms=st.integers(-(10**9), 10**9),
    deadline_ms=st.integers(NOW - 10**6, NOW + 10**6),
    timeout_ms=st.none() | st.integers(0, 10**6),
    record=st.integers(NOW - 10**6, NOW + 10**6),
)
def test_reference_clock_may_be_any_time_away(offset_ms, deadline_ms, timeout_ms, record):
    """Everybody but the worker lives offset_ms later: nothing changes on the worker's timeline."""
    here = stated(deadline_ms=deadline_ms, timeout_ms=timeout_ms, record_timestamp_ms=record)
    there = stated(
        deadline_ms=deadline_ms + offset_ms,
        timeout_ms=timeout_ms,
        record_timestamp_ms=record + offset_ms,
        offset_ms=float(offset_ms),
    )
    assert there == here


@given(
    at_ms=st.none() | st.integers(NOW - 10**6, NOW + 10**6),
    beyond=st.integers(0, 10**6),
    found=st.integers(0, 2 * NOW),
)
def test_redis_shortens_at_will_and_extends_to_the_horizon(at_ms, beyond, found):
    message = Deadline(at_ms, (NOW if at_ms is None else at_ms) + beyond)
    changed = effective(message, found)
    assert isinstance(changed, Deadline)
    assert changed.horizon_ms == message.horizon_ms
    if at_ms is None or found <= message.horizon_ms:
        assert changed.at_ms == found
    else:
        assert changed.at_ms == message.horizon_ms


def test_redis_cancels_or_says_nothing():
    message = Deadline(NOW, NOW + 1)
    assert effective(message, CANCELLED) is CANCELLED
    assert effective(message, None) is message


def test_redis_key_revives_a_request_of_a_producer_behind():
    message = stated(timeout_ms=20, record_timestamp_ms=NOW - 10 * MINUTES)
    assert message.expired(NOW)
    revived = effective(message, NOW + 17)
    assert isinstance(revived, Deadline)
    assert revived.at_ms == NOW + 17
