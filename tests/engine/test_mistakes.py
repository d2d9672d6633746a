"""pydantic's findings in the words of a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from engine.mistakes import in_words


class Inner(BaseModel):
    depth: int = 1


class Written(BaseModel):
    names: tuple[str, ...] = ()
    sizes: list[int] = Field([], min_length=0, max_length=1)
    inner: Inner = Inner()
    folders: dict[str, Path] = {}
    kind: Literal["a", "b"] = "a"
    share: float = Field(0.5, gt=0)
    on: bool = True
    word: str = Field("x", min_length=1)

    @field_validator("word")
    @classmethod
    def _no_blank(cls, word: str) -> str:
        if " " in word:
            raise ValueError("has a blank")
        return word


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("names", 5, "must be a list"),
        ("names", [5], "must be text"),
        ("sizes", "x", "must be a list"),
        ("sizes", ["x"], "must be a whole number"),
        ("sizes", [1.5], "must be a whole number"),
        ("sizes", [1, 2], "must have at most 1 item after validation, not 2"),
        ("inner", 5, "must be a map"),
        ("folders", 5, "must be a map"),
        ("folders", {"a": 5}, "must be a path"),
        ("kind", "c", "must be 'a' or 'b'"),
        ("share", "x", "must be a number"),
        ("share", 0, "must be greater than 0"),
        ("on", "x", "must be true or false"),
        ("word", "", "must have at least 1 character"),
        ("word", "a b", "has a blank"),
    ],
)
def test_in_words(key: str, value: Any, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Written(**{key: value})
    (detail,) = caught.value.errors()
    assert in_words(detail).startswith(said)
