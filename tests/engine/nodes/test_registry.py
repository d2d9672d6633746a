"""Kinds: ours by name, the user's own by `module:Class`."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.nodes.encoder import Encoder
from engine.nodes.registry import find_kind

OWN = """
from engine.graph import Node
from engine.values import Rows, Scores

class Good(Node):
    consumes = (Scores,)
    produces = Rows
    def run(self, requests):
        return []

class NoRun(Node):
    consumes = (Scores,)
    produces = Rows

class NoConsumes(Node):
    produces = Rows
    def run(self, requests):
        return []

class Plain:
    pass
"""


def test_ours_by_name() -> None:
    assert find_kind("encoder") is Encoder


def test_the_users_own(user_modules: Path) -> None:
    (user_modules / "own_nodes.py").write_text(OWN)
    assert find_kind("own_nodes:Good").__name__ == "Good"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("encodr", "did you mean 'encoder'.*module:Class"),
        ("nowhere_at_all:Node", "no module 'nowhere_at_all': install it"),
        ("own_nodes.deeper:Node", "own_nodes"),
        ("own_nodes:God", "has no 'God'; did you mean 'Good'"),
        ("own_nodes:Plain", "not a subclass of engine.graph.Node"),
        ("own_nodes:__name__", "not a subclass"),
        ("own_nodes:NoRun", "does not define run"),
        ("own_nodes:NoConsumes", "does not define consumes"),
        ("needs_more:Node", "importing 'needs_more' failed: No module named 'not_installed'"),
        ("breaks:Node", "importing 'breaks' failed: ZeroDivisionError"),
        (":Node", "failed"),
        (".relative:Node", "failed"),
    ],
)
def test_mistakes_are_named(user_modules: Path, kind: str, words: str) -> None:
    (user_modules / "own_nodes.py").write_text(OWN)
    (user_modules / "needs_more.py").write_text("import not_installed")
    (user_modules / "breaks.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match=words) as caught:
        find_kind(kind)
    assert (caught.value.key, caught.value.value) == ("kind", kind)
