"""A row's sample as the wire carries it, or why no worker would take it: such a row is not sent. Pure."""

from __future__ import annotations

from pydantic import ValidationError

from schemas.codec import describe
from schemas.messages import ErrorCode, Sample
from schemas.plain import Limits
from tools.bulk.rows import BulkSample, RowError

RECORD_BYTES = 900_000  # Kafka's default for a record is 1,048,576; the rest is for names and ids


def to_wire(sample: BulkSample, limits: Limits) -> Sample | RowError:
    """`limits` are those that the workers decode with."""
    most = min(limits.max_bytes, RECORD_BYTES)
    total = 5 * len(sample.token_ids or ())
    for name, value in {"text": sample.text, **(sample.fields or {})}.items():
        try:
            size = len(value.encode()) if isinstance(value, str) else 9
        except UnicodeEncodeError:
            return RowError(ErrorCode.INVALID_FIELD, f"{name}: not Unicode text (a lone surrogate)", name)
        if size > limits.max_text_bytes:
            message = f"{name}: {size} bytes of text, a worker reads {limits.max_text_bytes}"
            return RowError(ErrorCode.TOO_LARGE, f"{message} (limits.max_text_bytes)", name)
        total += len(name) + size
    if total > most:
        return RowError(ErrorCode.TOO_LARGE, f"{total} bytes, a request may have {most}")
    try:
        return Sample(text=sample.text, fields=sample.fields, token_ids=sample.token_ids)
    except ValidationError as error:
        field, text = describe(error)
        return RowError(ErrorCode.INVALID_FIELD, f"{field}: {text}", field)
