"""Writing where the disk may be full: errors name the file, and a full disk is recognised whoever says so.

A write that fails carries no file's name in Python, and safetensors, torch and compilers tell of a full disk
in words of their own. Standard library alone, so that the command line may look at it first.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # EFBIG: over a limit of the process (ulimit -f)
FULL_BYTES = 1 << 20  # less free than this, and a writer that died without a word died of it
_WORDS = (*(os.strerror(number) for number in FULL), str(signal.strsignal(signal.SIGXFSZ)))
_NUMBER = re.compile(r"\(os error (\d+)\)")  # how Rust's libraries end


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What fails in here because of the system becomes an OSError that names `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        if error.errno in FULL:
            error.strerror = os.strerror(error.errno)
        raise
    except Exception as error:
        if (number := _NUMBER.search(str(error))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def is_full(error: BaseException | None) -> bool:
    """Whether a full disk, a quota or a limit is behind it."""
    return any(
        getattr(each, "errno", None) in FULL or any(words in str(each) for words in _WORDS)
        for each in _chain(error)
    )


def unwritten(error: BaseException | None) -> str | None:
    """The file that could not be written, where the error or what is behind it says which."""
    for each in _chain(error):
        if isinstance(each, OSError) and each.errno in FULL and each.filename is not None:
            return str(each.filename2 or each.filename)  # of a copy the second one is written
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def full_folders(folders: Iterable[Path]) -> list[Path]:
    """Those on a disk that has no room left."""
    return [path for path in folders if path.is_dir() and shutil.disk_usage(path).free < FULL_BYTES]
