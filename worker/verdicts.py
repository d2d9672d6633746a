"""How a record's fate is decided from what happened to it. Pure; times on the worker's timeline."""

from __future__ import annotations

from engine.answers import Answer, Dropped, Result
from schemas.messages import ErrorCode, ErrorInfo, Outcome
from worker.records import Verdict, Work

_FAILURE_CODES = {
    "invalid": ErrorCode.INVALID_FIELD,
    "too_large": ErrorCode.TOO_LARGE,
    "internal": ErrorCode.INTERNAL,
    "model_output": ErrorCode.MODEL_OUTPUT,
}


def refusal(code: ErrorCode, message: str, field: str | None = None, dead: str | None = None) -> Verdict:
    """A verdict without results; the code decides the outcome."""
    return Verdict(code.outcome, ErrorInfo(code=code, message=message, field=field), dead=dead)


def failure_code(code: str) -> ErrorCode:
    """The wire's code for one of the engine's."""
    return _FAILURE_CODES[code]


def expiry(work: Work, now_ms: int, when: str) -> Verdict | None:
    """The verdict of a request whose time is over; None while there is some left."""
    if work.deadline is None or not work.deadline.expired(now_ms):
        return None
    assert work.deadline.at_ms is not None, "only a deadline expires"
    message = f"the deadline had passed {when}, {now_ms - work.deadline.at_ms} ms ago"
    return refusal(ErrorCode.DEADLINE_EXCEEDED, message)


def judge(work: Work, result: Result, now_ms: int, *, publish_late: bool) -> Verdict | None:
    """The verdict on what the engine gave. None: dropped before a model for no reason of its own."""
    if isinstance(result, Answer):
        late = None if publish_late else expiry(work, now_ms, "before the answer was ready")
        return late or Verdict(Outcome.OK, rows=result.rows)
    if isinstance(result, Dropped):
        return expiry(work, now_ms, "before the model ran")
    return refusal(_FAILURE_CODES[result.code], result.message, result.field)
