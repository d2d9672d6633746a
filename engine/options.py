"""Settings of one part, written by a person: a frozen pydantic model, its mistakes told as ConfigError.

Every message names the dotted key, quotes the value and, for an unknown name, offers the nearest one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.errors import ConfigError
from engine.mistakes import in_words

ModelT = TypeVar("ModelT", bound=BaseModel)


class Options(BaseModel):
    """Base of all settings: unknown keys are errors, nothing changes after load, no silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, else all of them."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(repr(known_name) for known_name in names)}" if names else "none is known"


def read_options(model: type[ModelT], data: Mapping[str, Any]) -> ModelT:
    """`data` as a `model`; ConfigError about the first mistake, its key relative to `data`."""
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        raise _first_mistake(error, model, data) from None


def _first_mistake(error: ValidationError, model: type[BaseModel], data: Mapping[str, Any]) -> ConfigError:
    details = error.errors(include_url=False)
    # An unknown key first: the usual cause of a missing one is its misspelling.
    detail = next((each for each in details if each["type"] == "extra_forbidden"), details[0])
    key = ".".join(str(part) for part in detail["loc"]) or "settings"
    value: object = detail["input"]
    if detail["type"] == "extra_forbidden":
        reason = "unknown setting; " + suggest(str(detail["loc"][-1]), _keys_beside(detail["loc"], model))
    elif detail["type"] == "missing":
        value, reason = None, in_words(detail)
    else:
        reason = in_words(detail)
    if len(details) > 1:
        reason += f" (and {len(details) - 1} more)"
    return ConfigError(key, value, reason)


def _keys_beside(loc: tuple[int | str, ...], model: type[BaseModel]) -> Iterable[str]:
    """The settings that `model` knows at the place of `loc`'s last part."""
    for part in loc[:-1]:
        annotation = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return ()
        model = annotation
    return model.model_fields
