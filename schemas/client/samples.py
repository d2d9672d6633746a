"""What callers may write for a request, made into the wire's models."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from schemas.codec import describe
from schemas.messages import Request, Sample
from schemas.plain import quote

AnySample = Sample | str | Mapping[str, str | int | float | bool]
"""A Sample as it is, a string for its text, a mapping for its fields."""


def build_request(pipeline: str, samples: Iterable[AnySample], id: str | None, **rest: Any) -> Request:  # noqa: A002 - the wire's word
    """A request, with a new id where none is given. Raises ValueError naming and quoting what is wrong."""
    if isinstance(samples, (str, bytes, Mapping, Sample)) or not isinstance(samples, Iterable):
        raise ValueError(f"samples: should be a list of samples, got {quote(samples)}")
    request_id = uuid.uuid4().hex if id is None else id
    try:
        parts = tuple(_as_sample(index, sample) for index, sample in enumerate(samples))
        return Request(id=request_id, pipeline=pipeline, samples=parts, **rest)
    except ValidationError as error:
        field, text = describe(error)
        raise ValueError(f"{field}: {text}") from None


def _as_sample(index: int, sample: object) -> Sample:
    if isinstance(sample, Sample):
        return sample
    if not isinstance(sample, (str, Mapping)):
        text = f"should be a Sample, a string or a mapping of fields, got {quote(sample)}"
        raise ValueError(f"samples[{index}]: {text}")
    try:
        return Sample(text=sample) if isinstance(sample, str) else Sample(fields=dict(sample))
    except ValidationError as error:
        field, text = describe(error)
        raise ValueError(f"samples[{index}].{field}: {text}") from None
