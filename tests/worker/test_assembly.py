"""What the parts of a configuration may not say together."""

from __future__ import annotations

import pytest

from engine.errors import ConfigError
from worker.assembly import check_reply_topics


@pytest.mark.parametrize("topic", ["a.requests", "b.requests-dlt"])
def test_replies_do_not_go_where_requests_or_dead_letters_are(topic: str) -> None:
    with pytest.raises(ConfigError, match=f"'{topic}'") as caught:
        check_reply_topics(["replies", topic], ["a.requests", "b.requests"])
    assert caught.value.key == "replies.topics.1"


def test_replies_of_their_own() -> None:
    check_reply_topics(["replies", "requests"], ["a.requests"])
