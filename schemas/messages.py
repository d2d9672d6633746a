"""What travels: requests, replies and their parts, as frozen pydantic models.

Contract: a model that exists is valid (types are strict, floats finite), so whoever holds one need not check
again; building one from bad values raises pydantic's ValidationError, a ValueError that names the field. Only
strings that are not Unicode text (lone surrogates) are left to the encoder to refuse. Unknown keys are
ignored. Times are milliseconds: since the epoch in deadline_ms, durations elsewhere. Knows neither msgpack,
Kafka nor torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    PlainValidator,
    model_validator,
)

from schemas.plain import quote

VERSION: Final = 1
"""Rises only when a message can no longer be read by the old rules; adding a key is no new version."""

MAX_ID_CHARS: Final = 128
MAX_FIELDS: Final = 256


class Outcome(StrEnum):
    """What became of a request: always exactly one. The list is closed for a version."""

    OK = "ok"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    INVALID = "invalid"
    FAILED = "failed"


class ErrorCode(StrEnum):
    """Why a request was not answered. New codes may be added: readers go by the outcome when in doubt."""

    MALFORMED = "malformed"
    UNSUPPORTED_VERSION = "unsupported_version"
    INVALID_FIELD = "invalid_field"
    UNKNOWN_PIPELINE = "unknown_pipeline"
    REPLY_TOPIC_NOT_ALLOWED = "reply_topic_not_allowed"
    TOO_LARGE = "too_large"
    OVERLOADED = "overloaded"
    SHUTTING_DOWN = "shutting_down"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    INTERNAL = "internal"
    MODEL_OUTPUT = "model_output"

    @property
    def outcome(self) -> Outcome:
        """The one outcome that a request with this error has."""
        return _OUTCOMES.get(self, Outcome.INVALID)


_OUTCOMES: Final = {
    ErrorCode.TOO_LARGE: Outcome.REJECTED,
    ErrorCode.OVERLOADED: Outcome.REJECTED,
    ErrorCode.SHUTTING_DOWN: Outcome.REJECTED,
    ErrorCode.DEADLINE_EXCEEDED: Outcome.EXPIRED,
    ErrorCode.CANCELLED: Outcome.CANCELLED,
    ErrorCode.INTERNAL: Outcome.FAILED,
    ErrorCode.MODEL_OUTPUT: Outcome.FAILED,
}


def _whole(value: object) -> object:
    """Producers whose language has only floats write 1700000000000.0: that is a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _token_ids(value: object) -> tuple[int, ...]:
    """Checked whole: an item at a time costs pydantic more than the rest of a message together."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"should be a list of integers, got {quote(value)}")
    if set(map(type, value)) <= {int} and _in_vocabulary(value):
        return tuple(value)
    index = next(i for i, item in enumerate(value) if type(item) is not int or not _in_vocabulary((item,)))
    raise ValueError(f"item {index} is {quote(value[index])}, not a token id")


def _few(value: object) -> object:
    """Bounds what a wrong map can cost: pydantic reports every value of it."""
    if isinstance(value, dict) and len(value) > MAX_FIELDS:
        raise ValueError(f"{len(value)} fields, more than {MAX_FIELDS}")
    return value


def _in_vocabulary(ids: Sequence[int]) -> bool:
    return not ids or (min(ids) >= 0 and max(ids) < 2**31)


def _or(default: object) -> BeforeValidator:
    """Null means absent, so that a producer may write every key it knows of."""
    return BeforeValidator(lambda value: default if value is None else value)


Text = Annotated[str, Field(strict=True)]
Name = Annotated[str, Field(strict=True, min_length=1, max_length=MAX_ID_CHARS)]
Integer = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**64)]  # what msgpack can hold
Whole = Annotated[Integer, BeforeValidator(_whole)]
Count = Annotated[int, Field(strict=True, ge=0, lt=2**63), BeforeValidator(_whole)]
Duration = Annotated[FiniteFloat, Field(ge=0)]  # milliseconds
TokenIds = Annotated[tuple[int, ...], PlainValidator(_token_ids)]
FieldValue = Annotated[
    Text
    | Integer
    | Annotated[float, Field(strict=True, allow_inf_nan=False)]
    | Annotated[bool, Field(strict=True)],
    Field(union_mode="left_to_right"),
]
RowId = Annotated[Name | Integer, Field(union_mode="left_to_right")]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Sample(_Message):
    """One prompt: exactly one of text, fields (for the pipeline's template, rendered with str), token_ids."""

    id: RowId | None = None
    text: Text | None = None
    fields: Annotated[dict[Text, FieldValue], BeforeValidator(_few)] | None = None
    token_ids: TokenIds | None = None

    @model_validator(mode="after")
    def _exactly_one_content(self) -> Sample:
        if (self.text is not None) + (self.fields is not None) + (self.token_ids is not None) != 1:
            raise ValueError("exactly one of text, fields and token_ids must be given")
        return self


class Request(_Message):
    """One unit of work. With both deadline_ms and timeout_ms given, deadline_ms counts."""

    v: Whole = VERSION
    id: Name
    pipeline: Name
    samples: Annotated[tuple[Sample, ...], Field(fail_fast=True, min_length=1)]
    deadline_ms: Whole | None = None  # epoch ms on Redis' clock
    timeout_ms: Whole | None = None  # from the record's timestamp
    priority: Annotated[Whole, Field(ge=0, le=9), _or(0)] = 0  # lower is sooner
    options: Annotated[dict[Text, Any], _or({})] = {}

    def row_ids(self) -> tuple[str | int, ...]:
        """The `id` of each row of the reply: the sample's own, or its index where it has none."""
        return tuple(index if sample.id is None else sample.id for index, sample in enumerate(self.samples))


class ErrorInfo(_Message):
    """Why there are no results, for the producer; field is the path of the one thing that was wrong."""

    code: Annotated[ErrorCode | Text, Field(union_mode="left_to_right")]
    message: Text
    field: Text | None = None


class Usage(_Message):
    samples: Count = 0
    tokens: Count = 0


class Timing(_Message):
    """Milliseconds in the worker: total_ms from receipt to encoding, the others parts of it."""

    queue_ms: Duration = 0.0
    tokenize_ms: Duration = 0.0
    gpu_ms: Duration = 0.0
    total_ms: Duration = 0.0


class ModelInfo(_Message):
    name: Text
    digest: Text


class Reply(_Message):
    """The answer to one request; results has one map a sample, in request order, each with its `id`."""

    v: Whole = VERSION
    id: Name | None  # None: the request's id could not be read
    outcome: Outcome
    results: Annotated[tuple[dict[Text, Any], ...], _or(())] = ()
    error: ErrorInfo | None = None
    usage: Annotated[Usage, _or(Usage())] = Usage()
    timing: Annotated[Timing, _or(Timing())] = Timing()
    model: ModelInfo | None = None
    attempt: Annotated[Count, Field(ge=1), _or(1)] = 1  # above 1: the record was delivered before
    worker: Text | None = None
