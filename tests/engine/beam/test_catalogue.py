"""Swapping items under way: real files, real threads; no batch sees two versions, no bad file is served."""

from __future__ import annotations

import gc
import json
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.beam.catalogue import ItemCatalogue
from engine.beam.compiled_items import write_compiled
from engine.beam.item_set import ItemSet, compile_items
from engine.beam.items import ItemRules
from engine.beam.legal import LegalTensors
from engine.errors import ConfigError

RULES = ItemRules(num_tokens=2, vocab_size=1000)
NEVER = 3600.0  # the test looks itself
DEADLINE_SECONDS = 60.0


def put(path: Path, generation: int, num_items: int = 50) -> None:
    """Replace the file: every id and the first token of every sequence tell the generation."""
    rows = [{"item_id": f"g{generation}-{i}", "token_ids": [generation, i]} for i in range(num_items)]
    beside = path.with_suffix(".new")
    beside.write_text("".join(json.dumps(row) + "\n" for row in rows))
    beside.replace(path)


def generation_of(items: ItemSet) -> int:
    """Checks that tensors, leaves and ids are of one file."""
    (token,) = items.tensors.tokens[: items.tensors.offsets[1]].tolist()
    leaves = items.trie.leaf_nodes.tolist()
    assert {str(ids[0]).split("-")[0] for ids in items.item_ids(leaves)} == {f"g{token}"}
    assert len(leaves) == len(items.tensors.tokens) - 1
    return int(token)


def until(condition: Callable[[], bool]) -> None:
    stop = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < stop
        time.sleep(0.002)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    put(tmp_path / "items.jsonl", 1)
    return tmp_path / "items.jsonl"


@pytest.fixture
def catalogue(path: Path) -> Iterator[ItemCatalogue]:
    opened = ItemCatalogue(path, RULES, poll_seconds=NEVER)
    yield opened
    opened.close()


def test_a_new_file_is_served_after_two_looks_that_agree(catalogue: ItemCatalogue, path: Path) -> None:
    assert not catalogue.look()
    put(path, 2)
    assert not catalogue.look()
    assert generation_of(catalogue.current) == 1
    assert catalogue.look()
    assert generation_of(catalogue.current) == 2
    assert not catalogue.look()
    assert catalogue.counters() == {"items_swapped": 1, "items_refused": 0}


def test_a_file_that_grows_between_looks_is_left_alone(catalogue: ItemCatalogue, path: Path) -> None:
    whole = path.read_text().replace("g1", "g2").replace("[1,", "[2,").splitlines(keepends=True)
    path.write_text("")
    for line in whole:  # each state of it is a good file by itself
        with path.open("a") as file:
            file.write(line)
        assert not catalogue.look()
    assert catalogue.look()
    assert len(catalogue.current.ids) == len(whole)


def test_a_batch_keeps_its_version_and_the_last_one_frees_it(catalogue: ItemCatalogue, path: Path) -> None:
    batch = catalogue.current
    old = weakref.ref(batch.trie)
    put(path, 2)
    catalogue.look()
    assert catalogue.look()
    assert generation_of(batch) == 1
    gc.collect()
    assert old() is not None
    del batch
    gc.collect()
    assert old() is None


def test_a_bad_file_is_refused_once_and_the_old_one_stays(
    catalogue: ItemCatalogue, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    version = catalogue.current.version
    path.write_text('{"item_id": "x", "token_ids": [2, 1000]}\n')
    with caplog.at_level(logging.ERROR):
        for _ in range(4):
            assert not catalogue.look()
    (record,) = caplog.records
    assert "row 1, token_ids = [2, 1000]: token id 1000 is outside the vocabulary" in record.getMessage()
    assert f"version {version} is served on" in record.getMessage()
    assert catalogue.num_refusals == 1
    assert generation_of(catalogue.current) == 1
    put(path, 3)
    catalogue.look()
    assert catalogue.look()
    assert generation_of(catalogue.current) == 3


def test_a_file_that_goes_is_told_once_and_may_come_back(
    catalogue: ItemCatalogue, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.unlink()
    with caplog.at_level(logging.ERROR):
        for _ in range(4):
            catalogue.look()
    assert len(caplog.records) == catalogue.num_refusals == 1
    assert generation_of(catalogue.current) == 1
    put(path, 2)
    catalogue.look()
    assert catalogue.look()


def test_the_same_content_again_is_no_new_version(catalogue: ItemCatalogue, path: Path) -> None:
    before = catalogue.current
    put(path, 1)
    catalogue.look()
    assert not catalogue.look()
    assert catalogue.current is before
    compiled = path.with_name("compiled")
    write_compiled(compiled, compile_items(path, RULES), RULES)
    compiled.replace(path)
    catalogue.look()
    assert not catalogue.look()
    assert catalogue.current is before
    assert catalogue.num_swaps == 0


def test_an_unexpected_error_is_a_refusal_too(path: Path) -> None:
    calls = 0

    def place(tensors: LegalTensors) -> LegalTensors:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise MemoryError("the device is full")
        return tensors

    catalogue = ItemCatalogue(path, RULES, place=place, poll_seconds=NEVER)
    put(path, 2)
    catalogue.look()
    assert not catalogue.look()
    assert catalogue.num_refusals == 1
    assert generation_of(catalogue.current) == 1
    catalogue.close()


def test_a_first_file_that_is_bad_is_a_mistake_in_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"items = '.*/none': cannot be read: No such file"):
        ItemCatalogue(tmp_path / "none", RULES)


def test_batches_on_many_threads_see_whole_versions_while_the_file_is_replaced(path: Path) -> None:
    """Readers take one snapshot a batch and look at all of it, while a writer replaces the file and the
    catalogue's own thread swaps."""
    catalogue = ItemCatalogue(path, RULES, poll_seconds=0.01)
    stop = threading.Event()
    seen: list[set[int]] = [set() for _ in range(4)]
    failures: list[BaseException] = []

    def batches(found: set[int]) -> None:
        last = 0
        try:
            while not stop.is_set():
                items = catalogue.current
                generation = generation_of(items)
                assert generation >= last
                assert generation_of(items) == generation
                last = generation
                found.add(generation)
        except BaseException as error:  # noqa: BLE001 - told by the test's own thread
            failures.append(error)

    readers = [threading.Thread(target=batches, args=(found,)) for found in seen]
    for reader in readers:
        reader.start()
    try:
        for generation in range(2, 10):
            put(path, generation)
            until(lambda: generation_of(catalogue.current) == generation or bool(failures))  # noqa: B023
            until(lambda: all(generation in found for found in seen) or bool(failures))  # noqa: B023
    finally:
        stop.set()
        for reader in readers:
            reader.join(DEADLINE_SECONDS)
        catalogue.close()
    assert not failures
    assert all(found >= set(range(2, 10)) for found in seen)
    assert catalogue.num_swaps == 8
    assert catalogue.num_refusals == 0
