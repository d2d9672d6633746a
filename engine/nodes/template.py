"""A prompt template: the pipeline's own words with named {fields} between them; {{ and }} are braces.

Immutable after parsing; knows nothing of tokens. Rendering puts every value in as it is, without formatting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter


@dataclass(frozen=True)
class Template:
    """literals[i] comes before fields[i]; one more literal ends the prompt."""

    literals: tuple[str, ...]
    fields: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """ValueError says what is wrong with `text`."""
        literals, fields = [""], []
        try:
            parts = list(Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"{error}; a literal brace is written {{{{ or }}}}") from None
        for literal, field, spec, conversion in parts:
            literals[-1] += literal
            if field is None:
                continue
            if not field.isidentifier() or spec or conversion:
                raise ValueError(
                    f"{{{field}}} is not a plain field name; a literal brace is written {{{{ or }}}}"
                )
            fields.append(field)
            literals.append("")
        if not fields:
            raise ValueError("has no {field}: every prompt would be the same")
        return cls(tuple(literals), tuple(fields))

    def render(self, values: Mapping[str, str]) -> str:
        """The whole prompt; `values` has every field."""
        pieces = [self.literals[0]]
        for field, literal in zip(self.fields, self.literals[1:], strict=True):
            pieces += (values[field], literal)
        return "".join(pieces)

    def render_around(self, field: str, values: Mapping[str, str]) -> tuple[str, str]:
        """What comes before and after `field`, which the template has once."""
        place = self.fields.index(field)
        before = Template(self.literals[: place + 1], self.fields[:place])
        after = Template(self.literals[place + 1 :], self.fields[place + 1 :])
        return before.render(values), after.render(values)
