"""From a request's samples to prompts: which template a sample takes, and what fills its fields.

Everything a producer can get wrong in a sample ends here as InputError naming samples[i] and the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, TypeAlias

from engine.errors import InputError
from engine.nodes.specials import SpecialTokens
from engine.nodes.template import Template
from engine.values import Sample

SpecialsPolicy: TypeAlias = Literal["strip", "error", "allow"]


@dataclass(frozen=True)
class FilledTemplate:
    """A template and the text of each of its fields."""

    template: Template
    values: Mapping[str, str]

    @property
    def longest(self) -> int:
        """Characters of the longest value."""
        return max(map(len, self.values.values()))

    def clipped(self, num_chars: int) -> dict[str, str]:
        """The values, none with more than `num_chars` characters."""
        return {field: value[:num_chars] for field, value in self.values.items()}


def fill_template(
    index: int, sample: Sample, templates: Sequence[Template], specials: SpecialTokens, policy: SpecialsPolicy
) -> FilledTemplate:
    """The first template whose fields sample number `index` has. `text` is the field named text.

    Fields that no template names are left alone: another node of the pipeline may read them.
    """
    given: Mapping[str, object]
    given = {"text": sample.text} if sample.text is not None else (sample.fields or {})
    template = next((each for each in templates if all(field in given for field in each.fields)), None)
    if template is None:
        raise _missing_field(index, given, templates)
    values = {}
    for field in template.fields:
        key = f"samples[{index}].text" if sample.text is not None else f"samples[{index}].fields.{field}"
        values[field] = _guarded(key, _as_text(key, given[field]), specials, policy)
    return FilledTemplate(template, values)


def check_token_ids(index: int, token_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """The ids of sample number `index`, each in range."""
    key = f"samples[{index}].token_ids"
    if not token_ids:
        raise InputError("invalid", f"{key} is empty", key)
    for token_id in token_ids:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise InputError(
                "invalid", f"{key}: {token_id!r} is not a token id from 0 to {vocab_size - 1}", key
            )
    return tuple(token_ids)


def _missing_field(index: int, given: Mapping[str, object], templates: Sequence[Template]) -> InputError:
    """About the template that lacks least."""
    lacking = min(([field for field in each.fields if field not in given] for each in templates), key=len)
    field = lacking[0]
    hint = f"the sample has {_names(given, field)}" if given else "the sample has no fields"
    message = f"samples[{index}].fields.{field} is missing: the pipeline's template needs it; {hint}"
    return InputError("invalid", message, f"samples[{index}].fields.{field}")


def _names(given: Mapping[str, object], field: str) -> str:
    """The sample's fields, the ones most like `field` first; bounded, for producers choose them."""
    near = get_close_matches(field, given, n=3)
    names = [*near, *(name for name in given if name not in near)]
    shown = [repr(name[:60]) + "..." * (len(name) > 60) for name in names[:3]]
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(shown) + rest


def _as_text(key: str, value: object) -> str:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InputError("invalid", f"{key}: not Unicode text (a lone surrogate)", key) from None
        return value
    if isinstance(value, bool | int | float):
        return str(value)
    raise InputError("invalid", f"{key} = {value!r}: must be text, a number or a boolean", key)


def _guarded(key: str, text: str, specials: SpecialTokens, policy: SpecialsPolicy) -> str:
    if policy == "strip":
        return specials.remove(text)
    if policy == "error" and (found := specials.find(text)):
        raise InputError("invalid", f"{key} contains the special token {found!r}", key)
    return text
