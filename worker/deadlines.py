"""When a request's time is over: pure arithmetic on milliseconds, no I/O, safe on any thread.

Three clocks meet here. The *reference* is Redis' TIME (without Redis: this machine's wall clock). The
*producer's* clock writes record timestamps on CreateTime topics, and often the deadline too. The *worker's
timeline* is a local monotonic clock that started at the epoch: all comparisons happen on it, so no jump of
any clock brings an expired request back or ends one early. A time from elsewhere is brought onto the
timeline once, on arrival, by subtracting `Clock.offset_ms`; Deadline.at_ms is already there.

Rules for a message (Redis may overrule them, see `effective`):
- timeout_ms counts from the record's creation; negative is 0; without any deadline the policy's default.
- Both given: deadline_ms counts. Nothing ends later than receipt + max_timeout_ms.
- Redis may extend to the horizon: max_extension_ms after the deadline, or after receipt if that is later (so
  that a key still counts when a skewed producer's own deadline is long past).
- Creation is the record's timestamp, but never after receipt, and never before the last moment when the
  partition was seen empty (not_before_ms): a timestamp outside shows a skewed producer. Behind-skew is thus
  seen only on a partition that had caught up; in a backlog it looks like waiting, and counts as waiting.
- deadline_ms below 100,000,000,000 is not milliseconds (1973) but seconds, or nonsense: ignored and
  reported, not converted, for a budget of 20 ms does not survive whole seconds.
- On a CreateTime topic, record and deadline usually come from one clock. If that clock is seen to be off
  by more than the budget between the two, the deadline is shifted with the record: the producer's budget is
  kept. A smaller skew harms less than the budget, and a larger budget than skew may mean another clock
  (Redis' own): the deadline stands.
- LogAppendTime topics carry the broker's clock: timeout_ms is immune to producers; deadline_ms stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from schemas.deadlines import CANCELLED, Mark

Cancelled = Literal[Mark.CANCELLED]

MIN_EPOCH_MS = 10**11  # in milliseconds 1973, in seconds the year 5138
SKEW_REPORT_MS = 1000  # less than this is ordinary clock synchronisation
DRIFT_MS_PER_S = 0.1  # twice a quartz clock's drift (50 ppm): what a measurement loses by age


class Oddity(StrEnum):
    """What was wrong with a message's times, for a counter; the request is served nevertheless."""

    NOT_MILLISECONDS = "not_milliseconds"  # deadline_ms ignored
    TOO_FAR = "too_far"  # brought back to max_timeout_ms
    PRODUCER_AHEAD = "producer_ahead"  # record timestamp after receipt
    PRODUCER_BEHIND = "producer_behind"  # record timestamp before the partition was last empty


@dataclass(frozen=True)
class DeadlinePolicy:
    """A pipeline's limits, ms. default_timeout_ms None: a message without a deadline never expires."""

    default_timeout_ms: int | None = None
    max_timeout_ms: int = 86_400_000
    max_extension_ms: int = 60_000


@dataclass(frozen=True)
class Deadline:
    """The end of a request's time on the worker's timeline (None: never), and how far Redis may extend it."""

    at_ms: int | None
    horizon_ms: int
    oddity: Oddity | None = None

    def expired(self, now_ms: int) -> bool:
        return self.at_ms is not None and now_ms >= self.at_ms

    def remaining_ms(self, now_ms: int) -> int | None:
        """Never negative; None without a deadline."""
        return None if self.at_ms is None else max(0, self.at_ms - now_ms)


class Clock:
    """The worker's timeline and what to subtract from a reference time to be on it.

    `now_ms` never goes backwards. `offset_ms` is the best of the latest measurements (the one with the
    smallest error bound, aged by drift); one that contradicts it means that the reference was set anew:
    counted in `steps` and believed at once. Until the first measurement the wall clock is the reference.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        keep: int = 16,
    ) -> None:
        self._monotonic, self._wall, self._keep = monotonic, wall, keep
        self._zero_s = wall() - monotonic()
        self._measured: tuple[_Measurement, ...] = ()
        self.steps = 0

    def now_ms(self) -> int:
        return int(self._exact_ms())

    def _exact_ms(self) -> float:
        return (self._zero_s + self._monotonic()) * 1000

    @property
    def offset_ms(self) -> float:
        """Reference minus timeline."""
        if not self._measured:
            return self._wall() * 1000 - self._exact_ms()
        now_s = self._monotonic()
        return min(self._measured, key=lambda each: each.error_at(now_s)).offset_ms

    def measure(self, reference_ms: float, asked_s: float, answered_s: float) -> None:
        """The reference said `reference_ms` at some moment between two readings of the monotonic clock."""
        middle_ms = (self._zero_s + (asked_s + answered_s) / 2) * 1000
        error_ms = (answered_s - asked_s) / 2 * 1000
        new = _Measurement(reference_ms - middle_ms, error_ms, answered_s)
        if any(new.contradicts(old) for old in self._measured):
            self.steps += 1
            self._measured = ()
        self._measured = (*self._measured[1 - self._keep :], new)


@dataclass(frozen=True)
class _Measurement:
    offset_ms: float
    error_ms: float
    at_s: float

    def error_at(self, now_s: float) -> float:
        return self.error_ms + (now_s - self.at_s) * DRIFT_MS_PER_S

    def contradicts(self, older: _Measurement) -> bool:
        apart = abs(self.offset_ms - older.offset_ms)
        return apart > self.error_ms + older.error_at(self.at_s) + 1  # 1 ms: scheduling between two readings


def message_deadline(
    *,
    deadline_ms: int | None,
    timeout_ms: int | None,
    record_timestamp_ms: int,
    log_append_time: bool,
    received_ms: int,
    offset_ms: float,
    policy: DeadlinePolicy,
    not_before_ms: int | None = None,
) -> Deadline:
    """The deadline that a message states, by the rules of the module.

    deadline_ms and record_timestamp_ms are epoch ms as written; received_ms (Clock.now_ms) and
    not_before_ms are on the worker's timeline; offset_ms is Clock.offset_ms at receipt.
    """
    created_ms, shift_ms = _creation(record_timestamp_ms, received_ms, offset_ms, not_before_ms)
    oddity: Oddity | None = None
    if not log_append_time and abs(shift_ms) >= SKEW_REPORT_MS:
        oddity = Oddity.PRODUCER_BEHIND if shift_ms > 0 else Oddity.PRODUCER_AHEAD
    if deadline_ms is not None and deadline_ms < MIN_EPOCH_MS:
        deadline_ms, oddity = None, Oddity.NOT_MILLISECONDS
    if timeout_ms is None:
        timeout_ms = policy.default_timeout_ms
    if deadline_ms is not None:
        one_clock = not log_append_time and 0 <= deadline_ms - record_timestamp_ms < abs(shift_ms)
        at_ms = round(deadline_ms - offset_ms) + (shift_ms if one_clock else 0)
    elif timeout_ms is not None:
        at_ms = created_ms + max(0, timeout_ms)
    else:
        return Deadline(None, received_ms + policy.max_extension_ms, oddity)
    if at_ms > received_ms + policy.max_timeout_ms:
        at_ms, oddity = received_ms + policy.max_timeout_ms, Oddity.TOO_FAR
    return Deadline(at_ms, max(at_ms, received_ms) + policy.max_extension_ms, oddity)


def _creation(
    record_timestamp_ms: int, received_ms: int, offset_ms: float, not_before_ms: int | None
) -> tuple[int, int]:
    """When the record was made, on the timeline, and by how much its own timestamp had to be moved."""
    if record_timestamp_ms < MIN_EPOCH_MS:  # -1 is Kafka's "none"; anything else so small is no time either
        return received_ms, 0
    stated_ms = round(record_timestamp_ms - offset_ms)
    earliest_ms = stated_ms if not_before_ms is None else max(stated_ms, not_before_ms)
    created_ms = min(earliest_ms, received_ms)
    return created_ms, created_ms - stated_ms


def effective(message: Deadline, found: int | Cancelled | None) -> Deadline | Cancelled:
    """What holds after Redis was asked: `found` is its answer on the worker's timeline, None if it has none.

    Redis may cancel, shorten, or extend up to the message's horizon; no answer leaves the message's own.
    """
    if found is CANCELLED:
        return CANCELLED
    if found is None:
        return message
    at_ms = found if message.at_ms is None else min(found, message.horizon_ms)
    return Deadline(at_ms, message.horizon_ms)
