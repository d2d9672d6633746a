"""One record on its way through the worker, and the verdict it ends with.

A Work has one owner at a time: the event loop, or for a moment the preparing thread that admits it. It gets
exactly one Verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiokafka import ConsumerRecord

from engine.answers import Prepared
from engine.demand import NOTHING, Demand
from schemas.headers import Header
from schemas.messages import ErrorInfo, Outcome, Request
from worker.deadlines import Deadline
from worker.offsets import Place


@dataclass(frozen=True, slots=True)
class Route:
    """An allowed reply address: where the reply goes and which headers it takes back."""

    topic: str
    partition: int | None
    echo: tuple[Header, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a record. `dead`: the class of error it is kept as a dead letter for, if it is."""

    outcome: Outcome
    error: ErrorInfo | None = None
    rows: tuple[dict[str, object], ...] = ()
    dead: str | None = None


@dataclass(slots=True, eq=False)
class Work:
    """A record that was taken. Times: `received_ms` on the worker's timeline, *_s of time.perf_counter."""

    place: Place
    record: ConsumerRecord
    arrival: int
    received_ms: int
    received_s: float
    not_before_ms: int | None = None
    # known after admission
    request_id: str | None = None
    route: Route | None = None
    request: Request | None = None
    deadline: Deadline | None = None
    prepared: Prepared | None = None
    tokenize_s: float = 0.0
    # known after execution
    launched_s: float | None = None
    gpu_ms: float = 0.0
    model_runs: int = 0

    @property
    def num_bytes(self) -> int:
        return len(self.record.value or b"") + len(self.record.key or b"")

    @property
    def priority(self) -> int:
        return self.request.priority if self.request is not None else 0

    @property
    def num_tokens(self) -> int:
        return self.prepared.num_tokens if self.prepared is not None else 0

    @property
    def num_samples(self) -> int:
        return self.prepared.num_samples if self.prepared is not None else 0

    @property
    def demand(self) -> Demand:
        """What it takes of a batch."""
        return self.prepared.demand if self.prepared is not None else NOTHING

    @property
    def expires_ms(self) -> int | None:
        return self.deadline.at_ms if self.deadline is not None else None
