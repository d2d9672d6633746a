"""Rows out of beams, through the encoder node, with items of a real file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.beam.item_set import ItemSet, compile_items
from engine.beam.items import ItemRules
from engine.errors import ConfigError
from engine.graph import Source
from engine.values import Beams, Rows, SampleBeams, Scores

ONE = {"search": Source(Beams)}
WORDS = ("<end>", " red", " shoe", " s", "\ufffd")


def decode(sequences: Sequence[Sequence[int]]) -> list[str]:
    return ["".join(WORDS[token] for token in tokens) for tokens in sequences]


SEARCHED = SampleBeams(
    token_ids=torch.tensor([[1, 2, 3], [2, 0, 0], [1, 4, 4]]),
    lengths=torch.tensor([3, 2, 3]),
    scores=torch.tensor([-0.5, -1.25, -2.0]),
    finished=torch.tensor([False, True, False]),
    leaves=None,
)
BEAMS = Beams((SEARCHED, SEARCHED), decode=decode)


@pytest.fixture
def items(tmp_path: Path) -> ItemSet:
    rows = [("a", [1, 2, 3]), ("b", [2, 0]), ("c", [1, 2, 3]), ("d", [1, 4, 4])]
    lines = [json.dumps({"item_id": item, "token_ids": ids}) for item, ids in rows]
    (tmp_path / "items").write_text("\n".join(lines))
    return compile_items(tmp_path / "items", ItemRules(num_tokens=3, vocab_size=5, end_tokens=(0,)))


def encode(node: Any, beams: Beams) -> tuple[dict[str, Any], ...]:
    (rows,) = node.run([(beams,)])
    assert isinstance(rows, Rows)
    return rows.rows


def test_sequences_texts_and_scores_best_first(make_node: Any) -> None:
    first, second = encode(make_node("encoder", ONE), BEAMS)
    assert first == second
    assert first == {
        "beams": [
            {"token_ids": [1, 2, 3], "text": " red shoe s", "score": -0.5},
            {"token_ids": [2, 0], "text": " shoe<end>", "score": -1.25},
            {"token_ids": [1, 4, 4], "text": " red\ufffd\ufffd", "score": -2.0},
        ]
    }


def test_texts_of_tokens_and_no_texts(make_node: Any) -> None:
    (row, _) = encode(make_node("encoder", ONE, output="beams", tokens=True), BEAMS)
    assert [beam["tokens"] for beam in row["beams"]] == [
        [" red", " shoe", " s"],
        [" shoe", "<end>"],
        [" red", "\ufffd", "\ufffd"],
    ]
    for bare in (
        encode(make_node("encoder", ONE, texts=False), BEAMS),
        encode(make_node("encoder", ONE, tokens=True), replace(BEAMS, decode=None)),
    ):
        assert set(bare[0]["beams"][0]) == {"token_ids", "score"}


@pytest.mark.parametrize(("config", "request_", "kept"), [(2, None, 2), (2, 1, 1), (2, 3, 2), (None, 2, 2)])
def test_the_smaller_top_n_cuts(make_node: Any, config: int | None, request_: int | None, kept: int) -> None:
    rows = encode(make_node("encoder", ONE, top_n=config), replace(BEAMS, top_n=request_))
    assert [len(row["beams"]) for row in rows] == [kept, kept]


def test_items_of_each_sequence_and_the_version_they_are_of(make_node: Any, items: ItemSet) -> None:
    found = items.trie.find(
        SEARCHED.token_ids.masked_fill(torch.tensor([[0, 0, 0], [0, 0, 1], [0, 0, 0]]) > 0, -1).numpy()
    )
    beams = Beams((replace(SEARCHED, leaves=torch.from_numpy(found)),), legal=items, decode=decode)
    (row,) = encode(make_node("encoder", ONE), beams)
    assert [beam["item_ids"] for beam in row["beams"]] == [["a", "c"], ["b"], ["d"]]
    assert row["item_version"] == items.version
    (row,) = encode(make_node("encoder", ONE, top_n=1), beams)
    assert [beam["item_ids"] for beam in row["beams"]] == [["a", "c"]]


def test_fewer_legal_sequences_than_asked_for_or_none(make_node: Any, items: ItemSet) -> None:
    none = SampleBeams(
        *(x[:0] for x in vars(SEARCHED).values() if x is not None), torch.zeros(0, dtype=torch.int64)
    )
    (row,) = encode(make_node("encoder", ONE, top_n=5, tokens=True), Beams((none,), items, decode))
    assert row == {"beams": [], "item_version": items.version}


@pytest.mark.parametrize(
    ("settings", "key"), [({"top_n": 3}, "top_n"), ({"texts": False}, "texts"), ({"tokens": True}, "tokens")]
)
def test_settings_of_beams_are_not_for_scores(make_node: Any, settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key} = .*: is for output: beams, which no input has"):
        make_node("encoder", {"model": Source(Scores)}, **settings)


def test_top_n_of_zero(make_node: Any) -> None:
    with pytest.raises(ConfigError, match="top_n = 0"):
        make_node("encoder", ONE, top_n=0)
