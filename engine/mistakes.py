"""What pydantic finds wrong with a setting, in the words of whoever wrote it: YAML has lists and maps."""

from __future__ import annotations

import re

from pydantic_core import ErrorDetails

_WORDS = {
    "missing": "required",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a map",
    "mapping_type": "must be a map",
    "model_type": "must be a map",
    "model_attributes_type": "must be a map",
    "dataclass_type": "must be a map",
    "string_type": "must be text",
    "path_type": "must be a path",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
}
_SUBJECT = re.compile(r"^(Input|Value|String|List|Tuple|Dictionary|Set) should ")


def in_words(detail: ErrorDetails) -> str:
    """The reason alone, after `key = value: `. Own validators' words stay as they are."""
    if detail["type"] == "value_error":
        return str(detail.get("ctx", {}).get("error", "")) or detail["msg"].removeprefix("Value error, ")
    return _WORDS.get(detail["type"]) or _SUBJECT.sub("must ", detail["msg"])
