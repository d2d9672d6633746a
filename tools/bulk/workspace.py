"""The folder beside the output where an unfinished run lives, its lock and its journal.

`<output>.bulk/` holds `lock`, `journal.jsonl` and the finished part files. The lock is the kernel's (flock):
it goes with the process, however that ends. The journal's first line says which run it is, every other line
is a part that lies on the disk whole; a line is written after its part, both synced. So after a kill at any
moment the journal is true, and what it does not name is thrown away and done again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from engine.disk import writing
from tools.errors import UserError

JOURNAL, LOCK = "journal.jsonl", "lock"


@dataclass(frozen=True)
class PartRecord:
    """One finished part; errors counts its failed rows by code."""

    part: int
    first_row: int
    num_rows: int
    file: str
    num_bytes: int
    errors: dict[str, int]
    models: list[str]


class Workspace:
    """Everything about an unfinished run that survives it. One thread; `add` is the writer's."""

    def __init__(self, output: Path) -> None:
        """`output` is resolved, so that every name of one file leads to one workspace."""
        self.folder = output.with_name(f"{output.name}.bulk")
        self.records: list[PartRecord] = []
        self.redone: str | None = None  # what an earlier run had done and this one does again, and why
        self._journal = self.folder / JOURNAL
        self._lock: int | None = None

    @property
    def rows_done(self) -> int:
        return sum(record.num_rows for record in self.records)

    def __enter__(self) -> Workspace:
        """Take the lock. UserError while another run holds it."""
        while self._lock is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = self._try_lock()
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is None:
            return
        for path in self.folder.glob("*.tmp"):  # begun and not finished, as on a full disk
            path.unlink()
        if not self._journal.exists():  # nothing to go on with: neither a folder nor what a kill left in it
            self._remove_strangers()
            (self.folder / LOCK).unlink()
            self.folder.rmdir()
        os.close(self._lock)
        self._lock = None

    def open(self, settings: Mapping[str, Any], *, restart: bool, may_begin: Callable[[], None]) -> None:
        """Begin, or go on where the journal ends. UserError if it is the journal of another run, or what
        `may_begin` raises where there is nothing to go on with."""
        found = None if restart else self._read_journal()
        if found is None:
            may_begin()
            self.records = []
        else:
            if not found:
                raise UserError(f"{self._journal} is damaged; throw the unfinished run away: --restart")
            differing = [key for key in settings if found.get(key) != settings[key]]
            if differing:
                raise UserError(
                    f"{self.folder} holds an unfinished run with other {', '.join(differing)}; "
                    "go on with what it had, or throw it away: --restart"
                )
            self._keep_whole_parts()
        self._write_journal(settings)
        self._remove_strangers()

    def add(self, record: PartRecord) -> None:
        """Note a part whose file lies on the disk."""
        with writing(self._journal), self._journal.open("a") as file:
            file.write(json.dumps(asdict(record)) + "\n")
            sync(file)
        self.records.append(record)

    def path(self, name: str) -> Path:
        return self.folder / name

    def finish(self) -> None:
        """The final file is in place: nothing will go on from here, and leaving takes the folder away."""
        self._journal.unlink()
        self.records = []

    def _try_lock(self) -> int | None:
        path = self.folder / LOCK
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # a run that ended just now has taken its folder away
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                os.truncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
                return descriptor
        except BlockingIOError:
            owner = path.read_text().strip() or "unknown"
            os.close(descriptor)
            raise UserError(f"another run writes to this output: process {owner} holds {path}") from None
        except FileNotFoundError:
            pass
        os.close(descriptor)
        return None

    def _read_journal(self) -> dict[str, Any] | None:
        """The settings of the run that was here; `records` as far as the journal can be read."""
        try:
            lines = self._journal.read_bytes().split(b"\n")[:-1]  # what has no line end was not finished
            settings: dict[str, Any] = json.loads(lines[0])
            self.records = [PartRecord(**json.loads(line)) for line in lines[1:]]
        except FileNotFoundError:
            return None
        except (ValueError, IndexError, TypeError):
            return None if not self._journal.read_bytes().strip() else {}
        return settings

    def _keep_whole_parts(self) -> None:
        """A file that is gone or has another size, as after a power cut, and all behind it are done again."""
        for index, record in enumerate(self.records):
            path = self.path(record.file)
            size = path.stat().st_size if path.is_file() else None
            if size != record.num_bytes:
                found = "is missing" if size is None else f"has {size:,} bytes, not {record.num_bytes:,}"
                rows = sum(each.num_rows for each in self.records[index:])
                self.redone = (
                    f"{path} {found}: its rows and those after it, {rows:,} in all, are scored again"
                )
                self.records = self.records[:index]
                return

    def _write_journal(self, settings: Mapping[str, Any]) -> None:
        lines = [dict(settings), *map(asdict, self.records)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_file(self._journal, text.encode())

    def _remove_strangers(self) -> None:
        kept = {JOURNAL, LOCK, *(record.file for record in self.records)}
        for path in self.folder.iterdir():
            if path.name not in kept:
                path.unlink() if path.is_file() else shutil.rmtree(path)


def write_file(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    beside = path.with_name(f"{path.name}.tmp")
    with writing(beside), beside.open("wb") as file:
        file.write(content)
        sync(file)
    put_in_place(beside, path)


def put_in_place(beside: Path, path: Path) -> None:
    """Rename within a folder, and have the folder know it after a power cut."""
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sync(file: IO[Any]) -> None:
    """What was written is on the disk when this returns."""
    file.flush()
    os.fsync(file.fileno())


def digest(settings: Mapping[str, Any]) -> str:
    """Of everything that a run's results depend on: 16 hex digits, the run's name in request ids."""
    return hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode()).hexdigest()[:16]
