"""The demo's sixty requests, as shipped in queries.jsonl: what is sent and what must become of it.

One JSON map a line: id, pipeline, fate (the outcome it must have) and either samples (one map of template
fields each) or, for records that no producer should write, raw_hex with the reason in `why`. The lines of
the burst stand together.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from schemas.messages import Outcome


class Query(BaseModel):
    """One line of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, Field(min_length=1)]
    pipeline: str
    fate: Outcome
    burst: bool = False  # sent without waiting for anyone's reply
    samples: tuple[dict[str, str], ...] = ()
    raw_hex: str | None = None
    why: str | None = None

    @model_validator(mode="after")
    def _samples_or_raw(self) -> Query:
        if bool(self.samples) == (self.raw_hex is not None):
            raise ValueError("exactly one of samples and raw_hex must be given")
        return self

    @property
    def raw(self) -> bytes | None:
        """The record's value where it is given byte by byte."""
        return None if self.raw_hex is None else bytes.fromhex(self.raw_hex)

    @property
    def text(self) -> str:
        """What the person searched for, for the table."""
        return self.samples[0]["query"] if self.samples else f"({self.why})"


def read_queries() -> tuple[Query, ...]:
    """The shipped file, checked."""
    lines = files("tools.demo").joinpath("queries.jsonl").read_text(encoding="utf-8").splitlines()
    one = TypeAdapter(Query)
    return tuple(one.validate_json(line) for line in lines if line.strip())
