"""How many multiprocessors the launches made on this thread may take, for graphs that run beside others.

An exported graph has no argument for it, so the ops ask here, while a lane captures. A context variable: it
holds for the thread (or task) that set it and ends with the `with`; a compiled package calls its ops on the
thread that runs it. It limits how many blocks a launch has, not where they run, and no block waits for one
that has not begun (csrc/chain.cuh): it changes when a result is there, never what it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_limit: ContextVar[int] = ContextVar("sm_limit", default=0)


@contextmanager
def sm_limit(count: int) -> Iterator[None]:
    """Within it at most `count` multiprocessors, at least 2 (a cluster); 0: all."""
    if count < 0 or count == 1:
        raise ValueError(f"sm_limit({count}): must be at least 2, or 0 for all")
    token = _limit.set(count)
    try:
        yield
    finally:
        _limit.reset(token)


def current_limit() -> int:
    """Of the calling thread; 0: none."""
    return _limit.get()
