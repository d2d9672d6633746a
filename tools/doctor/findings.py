"""What a check found: one line for a person, one map for a program."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """ok: nothing to do. warn: works, but not as well or as safely as it could. fail: will not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `mend` says what to do about it; empty when there is nothing to do."""

    level: Level
    check: str
    detail: str
    mend: str = ""


def ok(check: str, detail: str) -> Finding:
    return Finding(Level.OK, check, detail)


def warn(check: str, detail: str, mend: str) -> Finding:
    return Finding(Level.WARN, check, detail, mend)


def fail(check: str, detail: str, mend: str) -> Finding:
    return Finding(Level.FAIL, check, detail, mend)
