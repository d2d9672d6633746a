"""Searches bounded by an item file: what they find are items, whole and of one version."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from engine.beam.catalogue import ItemCatalogue
from engine.beam.compiled_items import load_items
from engine.beam.item_set import ItemSet
from engine.beam.items import ItemRules
from table_models import TokenIds, plain_search, random_logits, run_table

VOCABULARY = 12
END_TOKEN = 11
PROMPTS: list[TokenIds] = [(1, 2), (3,), (0, 0, 4)]
FINISH = ItemRules(num_tokens=4, vocab_size=VOCABULARY, end_tokens=(END_TOKEN,))


def draw(seed: int, num_items: int, *, shorter: bool) -> list[TokenIds]:
    """Sequences of four tokens, some the same; with `shorter` half of them end early in the end token."""
    rng = np.random.default_rng(seed)
    drawn: list[TokenIds] = []
    for number in range(num_items):
        tokens = tuple(rng.integers(0, END_TOKEN, 4).tolist())
        drawn.append((*tokens[: rng.integers(0, 3)], END_TOKEN) if shorter and number % 2 else tokens)
    return drawn


def write(path: Path, items: list[TokenIds], prefix: str) -> dict[TokenIds, list[str]]:
    """The file replaced, and the ids of each sequence."""
    ids: dict[TokenIds, list[str]] = {}
    lines = []
    for number, tokens in enumerate(items):
        ids.setdefault(tokens, []).append(f"{prefix}{number}")
        lines.append(json.dumps({"item_id": f"{prefix}{number}", "token_ids": tokens}) + "\n")
    path.with_name("new").write_text("".join(lines))
    path.with_name("new").replace(path)
    return ids


def check(items: ItemSet, ids: dict[TokenIds, list[str]], width: int, ends: list[int] | None) -> None:
    """The search is the plain one over exactly these sequences, and gives exactly their ids."""

    def allowed(sequence: TokenIds) -> set[int]:
        size = len(sequence)
        return {each[size] for each in ids if len(each) > size and each[:size] == sequence}

    logits = random_logits(VOCABULARY, seed=2)
    found, failed = run_table(PROMPTS, logits, width, 3, end_tokens=ends, legal=items.tensors)
    assert not failed.any()
    for prompt, mine in zip(PROMPTS, found, strict=True):
        expected = plain_search(prompt, logits, width, 3, ends=ends, allowed=allowed)
        assert mine.tokens == [sequence for sequence, *_ in expected]
        assert items.item_ids(mine.nodes) == [ids[sequence] for sequence in mine.tokens]


@pytest.mark.parametrize("width", [1, 7, 300])
@pytest.mark.parametrize("shorter", [False, True])
def test_finds_the_items_of_its_file(tmp_path: Path, width: int, shorter: bool) -> None:
    ids = write(tmp_path / "items", draw(1, 200, shorter=shorter), "a")
    assert any(len(each) > 1 for each in ids.values()) or not shorter
    check(load_items(tmp_path / "items", FINISH), ids, width, [END_TOKEN])


def test_nothing_finishes_early_where_all_have_one_length(tmp_path: Path) -> None:
    ids = write(tmp_path / "items", draw(4, 200, shorter=False), "a")
    check(load_items(tmp_path / "items", ItemRules(4, VOCABULARY)), ids, 300, None)


def test_a_batch_goes_on_with_its_version_while_the_file_changes(tmp_path: Path) -> None:
    old_ids = write(tmp_path / "items", draw(1, 80, shorter=True), "old")
    catalogue = ItemCatalogue(tmp_path / "items", FINISH, poll_seconds=3600)
    batch = catalogue.current
    new_ids = write(tmp_path / "items", draw(2, 80, shorter=True), "new")
    catalogue.look()
    assert catalogue.look()
    check(batch, old_ids, 50, [END_TOKEN])
    check(catalogue.current, new_ids, 50, [END_TOKEN])
    assert batch.version != catalogue.current.version
    catalogue.close()
