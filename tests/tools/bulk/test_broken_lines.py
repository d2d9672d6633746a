"""What is read of a line that is no row: what is whole, within its object."""

import pytest

from tools.bulk.broken_lines import readable_columns


@pytest.mark.parametrize(
    ("line", "columns"),
    [
        (b'{"custom_id": "b", "text": "x', {"custom_id": "b"}),
        (b'{"text": "x", "custom_id": "b', {"text": "x"}),
        (b'{"text": "x"} "custom_id": "b",', {"text": "x"}),  # behind the object's end
        (b'{"text": "x}", "custom_id": "b"} trailing', {"text": "x}", "custom_id": "b"}),
        (b'{"a": {"custom_id": "no"}, "custom_id": "b", ', {"a": {"custom_id": "no"}, "custom_id": "b"}),
        (b'{"custom_id": "\xff", "text": "x"}', {"text": "x"}),
        (b'["custom_id", "b"]', {}),
        (b"", {}),
    ],
)
def test_what_is_whole_is_read(line: bytes, columns: dict[str, object]) -> None:
    assert readable_columns(line) == columns
