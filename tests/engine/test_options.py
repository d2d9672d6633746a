"""A person's mistakes in settings, told by key and value."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field, field_validator

from engine.errors import ConfigError
from engine.options import Options, read_options, suggest


class Inner(Options):
    depth: int = Field(ge=1)


class Outer(Options):
    name: str = "x"
    inner: Inner = Inner(depth=1)
    sizes: list[int] = Field(default=[])

    @field_validator("name")
    @classmethod
    def _no_blank(cls, name: str) -> str:
        if " " in name:
            raise ValueError("has a blank")
        return name


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"nane": "y"}, "nane = 'y': unknown setting; did you mean 'name'?"),
        ({"zzz": 1}, "zzz = 1: unknown setting; known: 'name', 'inner', 'sizes'"),
        ({"inner": {"dept": 1}}, "inner.dept = 1: unknown setting; did you mean 'depth'? (and 1 more)"),
        ({"inner": {}}, "inner.depth = None: required"),
        ({"inner": {"depth": 0}}, "inner.depth = 0: must be greater than or equal to 1"),
        ({"sizes": [1, "2"]}, "sizes.1 = '2': must be a whole number"),
        ({"name": "a b"}, "name = 'a b': has a blank"),
    ],
)
def test_the_first_mistake_is_told(data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options(Outer, data)
    assert str(caught.value) == message


def test_suggestions() -> None:
    assert suggest("promt", ["prompt", "model"]) == "did you mean 'prompt'?"
    assert suggest("q", []) == "none is known"


def test_an_error_seen_from_outside_names_its_place_and_file() -> None:
    error = ConfigError("k", 0, "must be positive").under("nodes.model", Path("a.yaml"))
    assert str(error) == "a.yaml: nodes.model.k = 0: must be positive"
    assert str(error.under("", Path("b.yaml"))) == "a.yaml: nodes.model.k = 0: must be positive"
