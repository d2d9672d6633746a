"""What changed between then and now is named where replies show it."""

from __future__ import annotations

import pytest

from schemas.messages import Outcome, Reply
from tools.replay.changes import Changes


def reply(version: str | None) -> Reply:
    found: dict[str, object] = {"id": 0, "beams": []}
    return Reply(
        id="r", outcome=Outcome.OK, results=(found if version is None else found | {"item_version": version},)
    )


@pytest.mark.parametrize(
    ("was", "now", "what"),
    [
        ("5e0c", "917b", "items"),
        ("5e0c", "5e0c", "unknown"),
        (None, None, "unknown"),
        ("5e0c", None, "unknown"),
    ],
)
def test_another_item_file_is_a_cause(was: str | None, now: str | None, what: str) -> None:
    changes = Changes({}, {})
    for _ in range(3):
        changes.see("recall", reply(was), reply(now), differs=True)
    found = changes.found()
    assert [each.what for each in found] == [what]
    if what == "items":
        assert found[0].text == "item file changed: version 5e0c -> 917b (3 replies)"
