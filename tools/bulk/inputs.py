"""Which files are read: one file or a directory of parts, their format by suffix, their identity."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tools.errors import UserError

Format = Literal["jsonl", "parquet"]
Compression = Literal["gzip", "zstd"]
COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
KNOWN = "known are .jsonl (or .ndjson, .json), also with .gz or .zst, and .parquet"


@dataclass(frozen=True)
class Kind:
    """A file's format and compression."""

    format: Format
    compression: Compression | None

    @classmethod
    def of(cls, path: Path, option: str) -> Kind:
        """By suffix, whatever its case; UserError for one that is not known."""
        suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
        compression = COMPRESSIONS.get(suffixes[-1]) if suffixes else None
        if compression is not None:
            suffixes.pop()
        format_ = FORMATS.get(suffixes[-1]) if suffixes else None
        if format_ is None or (format_ == "parquet" and compression is not None):
            raise UserError(f"{option} = {str(path)!r}: a file of what kind? {KNOWN}")
        return cls(format_, compression)


@dataclass(frozen=True)
class InputFile:
    """One file; name is relative to the directory that was given."""

    path: Path
    name: str
    kind: Kind
    num_bytes: int
    modified_ns: int

    @property
    def identity(self) -> list[object]:
        """What must not change between a run and its continuation."""
        return [self.name, self.num_bytes, self.modified_ns]


def find_inputs(given: Path) -> tuple[InputFile, ...]:
    """The file, or all files below the directory in the order of their names; those that begin with . or _
    (what writers leave beside their parts) do not count. UserError for anything that cannot be read."""
    if given.is_dir():
        paths = sorted(path for path in given.rglob("*") if path.is_file() and not _hidden(path, given))
        if not paths:
            raise UserError(f"--input = {str(given)!r}: the directory has no files")
    elif given.is_file():
        paths = [given]
    else:
        raise UserError(f"--input = {str(given)!r}: there is no such file or directory")
    files = tuple(_describe(path, given) for path in paths)
    if len({file.kind.format for file in files}) > 1:
        raise UserError(
            f"--input = {str(given)!r}: holds both JSONL and Parquet; score them one after the other"
        )
    return files


def check_apart(files: tuple[InputFile, ...], given: Path, output: Path) -> None:
    """UserError if writing `output` (resolved) would destroy an input or become one."""
    if given.is_dir() and output.is_relative_to(given.resolve()):
        text = "lies inside the directory of --input, where it would be read as a part; write it elsewhere"
        raise UserError(f"--output = {str(output)!r}: {text}")
    for file in files:
        if file.path.resolve() == output or (output.exists() and output.samefile(file.path)):
            raise UserError(f"--output = {str(output)!r}: is the same file as --input {str(file.path)!r}")


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.relative_to(root).parts)


def _describe(path: Path, given: Path) -> InputFile:
    status = path.stat()
    name = path.name if path == given else path.relative_to(given).as_posix()
    return InputFile(path, name, Kind.of(path, "--input"), status.st_size, status.st_mtime_ns)
