"""HTTP for machines: /metrics (Prometheus), /health (alive: the watchdog's view), /ready (serving).

Answers say why not, as JSON. On the event loop, so a blocked loop also fails the liveness probe by silence.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from worker.settings import HttpSettings

log = structlog.get_logger(__name__)

Reasons = Callable[[], list[str]]
"""What is wrong; empty: nothing."""


class Probes:
    """The server; `port` is known after start (0 in the settings takes a free one)."""

    def __init__(
        self, settings: HttpSettings, registry: CollectorRegistry, health: Reasons, ready: Reasons
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._health = health
        self._ready = ready
        self._runner: web.AppRunner | None = None
        self.port = settings.port

    async def start(self) -> None:
        """Listen. OSError names the setting that stands in the way."""
        if not self._settings.enabled:
            return
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._answer_health)
        app.router.add_get("/ready", self._answer_ready)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._settings.host, self._settings.port).start()
        except (OSError, UnicodeError) as error:
            raise _unable(self._settings, error) from error
        self.port = self._runner.addresses[0][1]
        log.info("listening for probes", host=self._settings.host, port=self.port)

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _answer_health(self, _: web.Request) -> web.Response:
        return _verdict("healthy", self._health())

    async def _answer_ready(self, _: web.Request) -> web.Response:
        return _verdict("ready", self._ready())


def _unable(settings: HttpSettings, error: OSError | UnicodeError) -> OSError:
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number) if number and number > 0 else str(error)  # not a number: no such host
    port_is_at_fault = number in (errno.EADDRINUSE, errno.EACCES)
    setting = f"http.port = {settings.port}" if port_is_at_fault else f"http.host = {settings.host!r}"
    return OSError(f"{setting}: {reason}")


def _verdict(word: str, reasons: list[str]) -> web.Response:
    return web.json_response({word: not reasons, "reasons": reasons}, status=503 if reasons else 200)
