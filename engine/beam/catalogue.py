"""The items of a running pipeline, watched: a changed file is loaded beside, and swapped in when it is good.

A thread of the catalogue's own looks at the file every few seconds (inode, size, time of change) and loads a
new one once two looks agree, so that one being written is left alone. Serving never waits: `current` is one
reference, replaced whole. Who runs a batch takes it once; an old version lives until its last batch lets go,
and loading needs memory for both. A file that cannot be served is refused, logged and counted; the old stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TypeAlias

from engine.beam.compiled_items import load_items
from engine.beam.item_set import ItemSet
from engine.beam.items import ItemRules
from engine.beam.legal import LegalTensors
from engine.errors import ConfigError, ItemFileError

logger = logging.getLogger(__name__)

POLL_SECONDS = 3.0
LOAD_ATTEMPTS = 3  # of the first load, if the file changes under it

Place: TypeAlias = Callable[[LegalTensors], LegalTensors]
Signature: TypeAlias = tuple[int, int, int, int]


def as_they_are(tensors: LegalTensors) -> LegalTensors:
    return tensors


class ItemCatalogue:
    """`place` puts tensors where the search reads them; it is called on the thread that loads."""

    def __init__(
        self,
        path: Path,
        rules: ItemRules,
        *,
        place: Place = as_they_are,
        poll_seconds: float | None = None,
    ) -> None:
        """Loads the file on the caller's thread, then begins to look. ConfigError about `items`."""
        self.path = path
        self.num_swaps = 0
        self.num_refusals = 0
        self._rules = rules
        self._place = place
        self._poll_seconds = POLL_SECONDS if poll_seconds is None else poll_seconds
        self._looking = Lock()
        self._stop = Event()
        try:
            self._current, self._handled = self._load_first()
        except ItemFileError as error:
            raise ConfigError("items", str(path), str(error).removeprefix(f"{path}: ")) from error
        self._seen = self._handled
        logger.info("items: version %s; %s", self._current.version, _describe(self._current))
        self._thread = Thread(target=self._watch, name=f"items-{path.name}", daemon=True)
        self._thread.start()

    @property
    def current(self) -> ItemSet:
        """The version to use for a whole batch; any thread."""
        return self._current

    def counters(self) -> dict[str, int]:
        """For a node that serves these items."""
        return {"items_swapped": self.num_swaps, "items_refused": self.num_refusals}

    def look(self) -> bool:
        """One look at the file, which may load it; whether a new version is being served now. Any thread."""
        with self._looking:
            signature = _sign(self.path)
            if signature == self._handled or signature != self._seen:  # the same, or not settled yet
                self._seen = signature
                return False
            return self._swap(signature)

    def close(self) -> None:
        """Look no more; a load under way ends by itself. Idempotent."""
        self._stop.set()

    def _load_first(self) -> tuple[ItemSet, Signature | None]:
        for _ in range(LOAD_ATTEMPTS):
            signature = _sign(self.path)
            items = self._load()
            if _sign(self.path) == signature:
                break
        return items, signature

    def _load(self) -> ItemSet:
        items = load_items(self.path, self._rules)
        return replace(items, tensors=self._place(items.tensors))

    def _swap(self, signature: Signature | None) -> bool:
        old = self._current
        items, error = None, None
        try:
            items = self._load()
        except Exception as caught:  # noqa: BLE001 - whatever is wrong with a new file, the old one is served on
            error = caught
        if _sign(self.path) != signature:  # written while it was read: neither good nor bad
            return False
        self._handled = signature
        if items is None:
            self.num_refusals += 1
            logger.error("items: refused, version %s is served on: %s", old.version, error)
        elif items.digest != old.digest:
            self._current = items
            self.num_swaps += 1
            logger.info("items: version %s replaces %s; %s", items.version, old.version, _describe(items))
            return True
        return False

    def _watch(self) -> None:
        while not self._stop.wait(self._poll_seconds):
            self.look()


def _sign(path: Path) -> Signature | None:
    """What changes when a file does; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _describe(items: ItemSet) -> str:
    sizes = f"{items.host_bytes} bytes on the host, {items.device_bytes} on the device"
    return f"{items.num_items} items, {len(items.trie.leaf_nodes)} sequences, {sizes}"
