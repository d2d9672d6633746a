"""No garbage collection while a thread captures CUDA graphs.

A collection may free an old graph or event, which the driver forbids on a thread that captures: the capture
is lost ("operation not permitted when stream is capturing"). Any thread; captures of a process take turns.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_TURN = Lock()


@contextmanager
def quiet_collector() -> Iterator[None]:
    """What is garbage now is collected before; then nothing is until the end."""
    with _TURN:
        collects = gc.isenabled()
        gc.collect()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()
