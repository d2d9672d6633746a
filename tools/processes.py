"""Child processes that a command starts: output into a file, a bounded start, a bounded end.

A child gets a session of its own, so that Ctrl-C reaches only the command, which then stops its children in
the right order. Where Linux offers `setpriv`, a child also ends with the command itself, however that ends.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

POLL_SECONDS = 0.05
STOP_SECONDS = 20.0  # for an orderly end
ABORT_SECONDS = 3.0  # after an error or Ctrl-C nobody waits for it


class ChildError(RuntimeError):
    """A child process ended, or was not ready in time; the text holds the end of its own output."""


class Child:
    """One running child process; a context manager that stops it on the way out."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        prefix = []
        if sys.platform == "linux" and (setpriv := shutil.which("setpriv")):
            prefix = [setpriv, "--pdeathsig", "KILL"]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.stop(STOP_SECONDS if kind is None else ABORT_SECONDS)

    def wait_ready(self, ready: Callable[[], bool], seconds: float) -> None:
        """Poll `ready` until it is true. Raises ChildError when the child ends first or time is up."""
        deadline = time.monotonic() + seconds
        while not ready():
            self.check_running()
            if time.monotonic() > deadline:
                raise ChildError(f"{self.name} was not ready within {seconds:g} s. {self.last_words()}")
            time.sleep(POLL_SECONDS)

    def check_running(self) -> None:
        """Raises ChildError if the process has ended."""
        status = self.process.poll()
        if status is not None:
            raise ChildError(f"{self.name} ended with status {status}. {self.last_words()}")

    def cpu_seconds(self) -> float | None:
        """Processor time used so far by the process and its threads; None where the system does not say."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime, proc(5)

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """SIGTERM, then SIGKILL after `seconds`; returns the exit status. May be called again."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()

    def last_words(self, lines: int = 40) -> str:
        """The end of its output, for an error message."""
        text = self.log.read_text(errors="replace").splitlines()[-lines:]
        return f"The end of {self.log}:\n" + "\n".join(text) if text else "It printed nothing."


def free_ports(count: int) -> list[int]:
    """TCP ports of 127.0.0.1 that nobody listened on a moment ago, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def listens(port: int) -> bool:
    """Whether something accepts connections on this port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
