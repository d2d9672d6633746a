"""Server processes started by tests: output into a file, a bounded start, a bounded end.

A process that dies or stays silent fails the start with the end of its own output. Where Linux offers
`setpriv`, the process also ends with the test run itself, however that ends.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def free_ports(count: int) -> list[int]:
    """TCP ports of 127.0.0.1 that nobody listened on a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def listens(port: int) -> bool:
    """Whether something accepts connections on this port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def end_of(log: Path, lines: int = 60) -> str:
    """The last lines of a log file, for an error message."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"


class Server:
    """One child process with its log. `start` returns when `ready()` says so."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        prefix = []
        if sys.platform == "linux" and (setpriv := shutil.which("setpriv")):
            prefix = [setpriv, "--pdeathsig", "KILL"]
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
            )

    def wait_ready(self, ready: Callable[[], bool], seconds: float) -> None:
        """Poll `ready` until it is true; RuntimeError with the log when the process ends or time is up."""
        deadline = time.monotonic() + seconds
        while not ready():
            code = self.process.poll()
            if code is not None:
                raise RuntimeError(f"{self.process.args} ended with {code}:\n{end_of(self.log)}")
            if time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self.process.args} not ready in {seconds:g} s:\n{end_of(self.log)}")
            time.sleep(0.05)

    def stop(self, seconds: float = 20.0) -> int:
        """SIGTERM, then SIGKILL after `seconds`; the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()
