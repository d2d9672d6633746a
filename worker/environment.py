"""Which variables of the environment look like settings and are none: their writer believes them in force.

Known are every setting's own name, what other parts of the project read, and what Kubernetes adds for
services whose name begins with ours (`BOUNDGEN_SERVICE_HOST`, `BOUNDGEN_REDIS_PORT=tcp://...`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

PREFIX = "BOUNDGEN_"
DELIMITER = "__"
OTHERS = re.compile(r"CACHE|TEST_\w+|HOPPER_LIBRARY")
SERVICE_LINK = re.compile(r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
SECRETS = ("password", "url")  # settings whose name holds one of these are never quoted, not even when wrong


def strange_variables(model: type[BaseModel], environment: Mapping[str, str]) -> Iterator[str]:
    """A `NAME = value: reason` line for each. Keys below a section of `model` are left to its validation."""
    names = list(_variables(model, PREFIX))
    for name, value in environment.items():
        rest = name.removeprefix(PREFIX)
        if rest == name or name in names or _is_of_others(rest, value):
            continue
        section, _, below = rest.partition(DELIMITER)
        if below and section.lower() in model.model_fields:
            continue
        known = {each.replace(DELIMITER, "_"): each for each in names}
        close = difflib.get_close_matches(name.replace(DELIMITER, "_"), known, n=1, cutoff=0.8)
        what = "section" if below else "setting"
        ending = f"did you mean {known[close[0]]}?" if close else f"known: {', '.join(model.model_fields)}"
        yield f"{name}{shown(name, value)}: no such {what}; {ending}"


def shown(name: str, value: object) -> str:
    """` = value`, or nothing where that may be a secret."""
    return "" if any(word in name.lower() for word in SECRETS) else f" = {value!r:.80}"


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a field of this type holds, if it does."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in getattr(annotation, "__args__", ()):
        if (found := model_in(part)) is not None:
            return found
    return None


def _is_of_others(rest: str, value: str) -> bool:
    if OTHERS.fullmatch(rest) or SERVICE_LINK.fullmatch(rest):
        return True
    return rest.endswith("PORT") and SERVICE_ADDRESS.match(value) is not None


def _variables(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for key, field in model.model_fields.items():
        name = prefix + key.upper()
        yield name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _variables(field.annotation, name + DELIMITER)
