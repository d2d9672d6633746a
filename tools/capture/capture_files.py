"""Writing and reading capture files. One thread each; a reader never changes a file.

With rotation FILE.ext becomes FILE-00001.ext, FILE-00002.ext, ..., each with a header of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgpack

from tools.capture.records import MAX_RECORD_BYTES, Captured, CaptureError, CaptureHeader, parse
from tools.errors import UserError

READ_BYTES = 1 << 20


class CaptureWriter:
    """A context manager. Everything `put` before a `flush` survives the end of this process.

    UserError from any of its methods where the disk takes no more.
    """

    def __init__(
        self, path: Path, header: CaptureHeader, *, rotate_bytes: int | None, overwrite: bool
    ) -> None:
        """UserError unless the path can be written and nothing is lost by it."""
        self.files: list[Path] = []
        self.num_bytes = 0
        self._path = path
        self._header = header.pack()
        self._rotate_bytes = rotate_bytes
        self._file: BinaryIO | None = None
        self._size = 0
        if not path.parent.is_dir():
            raise UserError(f"--output = {str(path)!r}: its directory does not exist")
        earlier = sorted(path.parent.glob(f"{path.stem}-[0-9][0-9][0-9][0-9][0-9]{path.suffix}"))
        if not rotate_bytes:
            earlier = [path] if path.exists() else []
        if earlier and not overwrite:
            raise UserError(
                f"--output = {str(path)!r}: {earlier[0].name} exists; another name, or --overwrite"
            )
        for each in earlier:
            each.unlink()

    def __enter__(self) -> CaptureWriter:
        self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            with self._told():
                self._file.close()

    def put(self, record: Captured) -> None:
        """Keep one record, in the next file if this one is full."""
        packed = record.pack()
        full = self._rotate_bytes is not None and self._size + len(packed) > self._rotate_bytes
        if full and self._size > len(self._header):
            self._begin()
        self._write(packed)

    def flush(self) -> None:
        assert self._file is not None, "inside the context"
        with self._told():
            self._file.flush()

    def _begin(self) -> None:
        if self._file is not None:
            with self._told():
                self._file.close()
        path = self._path
        if self._rotate_bytes is not None:
            path = path.with_name(f"{path.stem}-{len(self.files) + 1:05d}{path.suffix}")
        try:
            self._file = path.open("xb")
        except OSError as error:
            raise UserError(f"--output = {str(path)!r}: cannot be written: {error.strerror}") from error
        self.files.append(path)
        self._size = 0
        self._write(self._header)

    def _write(self, packed: bytes) -> None:
        assert self._file is not None, "inside the context"
        with self._told():
            self._file.write(packed)
        self._size += len(packed)
        self.num_bytes += len(packed)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """UserError where the disk takes no more: then nothing is written to this file again."""
        try:
            yield
        except OSError as error:
            file, self._file = self._file, None
            with suppress(OSError):  # it would write what is left in its buffer
                if file is not None:
                    file.close()
            kept = "what came before is kept, up to the last whole record"
            raise UserError(f"{self.files[-1]}: {error.strerror}; {kept}") from error


@dataclass
class CaptureReader:
    """One file, read from its beginning as often as needed. `cut_bytes`: what a broken end left over."""

    path: Path
    headers: list[CaptureHeader] = field(default_factory=list)
    cut_bytes: int = 0

    def records(self) -> Iterator[tuple[int, Captured]]:
        """(its place in the file in bytes, the record). UserError for a file that is no capture."""
        self.headers, self.cut_bytes = [], 0
        try:
            with self.path.open("rb") as file:
                yield from self._read(file)
        except OSError as error:
            raise UserError(f"{self.path}: not a capture that can be read: {error.strerror}") from error
        except CaptureError as error:
            raise UserError(f"{self.path}: not a capture that can be read: {error}") from error

    def record_at(self, place: int) -> Captured:
        """The record at a place that `records` told."""
        with self.path.open("rb") as file:
            file.seek(place)
            found = parse(_unpacker(file).unpack())
        assert isinstance(found, Captured), "records told this place"
        return found

    def _read(self, file: BinaryIO) -> Iterator[tuple[int, Captured]]:
        unpacker = _unpacker(file)
        place = 0
        while True:
            try:
                found = parse(unpacker.unpack())
            except msgpack.OutOfData:
                break
            except (ValueError, msgpack.UnpackException) as error:
                raise CaptureError(f"at byte {place:,}: {error}") from error
            if isinstance(found, CaptureHeader):
                self.headers.append(found)
            elif not self.headers:
                raise CaptureError("does not begin with a header")
            elif found is not None:
                yield place, found
            place = unpacker.tell()
        self.cut_bytes = self.path.stat().st_size - place
        if not self.headers:
            raise CaptureError("is empty" if not self.cut_bytes else "ends within its header")


def _unpacker(file: BinaryIO) -> msgpack.Unpacker:
    return msgpack.Unpacker(file, read_size=READ_BYTES, max_buffer_size=MAX_RECORD_BYTES)
