"""A TCP proxy with faults, for what Redis and Kafka do on a bad day.

Runs its own event loop on its own thread, so it works whatever the test's loop is doing. Modes:
  pass     forward both ways
  refuse   nothing listens: connections are refused, open ones are reset
  swallow  accept, read, forward nothing and answer nothing (a black hole); open connections too
  delay    forward both ways, each chunk `delay_s` later
Methods may be called from any thread and return when the change is in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Literal

Mode = Literal["pass", "refuse", "swallow", "delay"]


class TcpProxy:
    """127.0.0.1:`port` -> `target_host`:`target_port`. Counts the connections it accepted."""

    def __init__(self, target_port: int, port: int = 0, target_host: str = "127.0.0.1") -> None:
        self.target = (target_host, target_port)
        self.port = port
        self.mode: Mode = "pass"
        self.delay_s = 0.0
        self.accepted = 0
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._thread.start()
        self._call(self._listen())

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def set_mode(self, mode: Mode, delay_s: float = 0.0) -> None:
        """Change what happens to open and new connections alike."""
        self._call(self._set_mode(mode, delay_s))

    def reset_connections(self) -> None:
        """Drop every open connection; the mode stays."""
        self._call(self._drop())

    def close(self) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._drop()

    async def _set_mode(self, mode: Mode, delay_s: float) -> None:
        self.mode, self.delay_s = mode, delay_s
        if mode == "refuse":
            await self._stop()
        elif self._server is None:
            await self._listen()

    async def _drop(self) -> None:
        handlers = list(self._handlers)
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        handler = asyncio.ensure_future(self._serve(reader, writer))
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        try:
            up_reader, upstream = await asyncio.open_connection(*self.target)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._copy(reader, upstream))
                both.create_task(self._copy(up_reader, writer))
        except* OSError:
            pass  # either side went away: the other is closed below
        finally:
            for each in (writer, upstream):
                if each is not None:
                    each.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1 << 16):
            if self.mode == "swallow":
                continue
            if self.mode == "delay":
                await asyncio.sleep(self.delay_s)
            writer.write(chunk)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()
