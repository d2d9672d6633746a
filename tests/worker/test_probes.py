"""The three addresses that machines ask, and that a taken port is an error."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from worker.metrics import WorkerMetrics
from worker.probes import Probes
from worker.settings import HttpSettings


@asynccontextmanager
async def probing(sick: list[str], unready: list[str]) -> AsyncIterator[tuple[Probes, WorkerMetrics]]:
    metrics = WorkerMetrics()
    probes = Probes(HttpSettings(port=0), metrics.registry, lambda: sick, lambda: unready)
    await probes.start()
    try:
        yield probes, metrics
    finally:
        await probes.close()


async def get(probes: Probes, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{probes.port}{path}") as answer,
    ):
        return answer.status, await answer.text()


async def test_a_well_worker() -> None:
    async with probing([], []) as (probes, metrics):
        metrics.for_pipeline("p").records.inc()
        assert await get(probes, "/health") == (200, '{"healthy": true, "reasons": []}')
        assert await get(probes, "/ready") == (200, '{"ready": true, "reasons": []}')
        status, text = await get(probes, "/metrics")
        assert status == 200
        assert 'boundgen_records_total{pipeline="p"} 1.0' in text


async def test_reasons_are_told() -> None:
    async with probing(["stuck"], ["no partitions", "ending"]) as (probes, _):
        assert await get(probes, "/health") == (503, '{"healthy": false, "reasons": ["stuck"]}')
        assert await get(probes, "/ready") == (
            503,
            '{"ready": false, "reasons": ["no partitions", "ending"]}',
        )


async def test_a_taken_port_is_an_error() -> None:
    async with probing([], []) as (probes, metrics):
        second = Probes(HttpSettings(port=probes.port), metrics.registry, list, list)
        with pytest.raises(OSError, match=f"http.port = {probes.port}: Address already in use"):
            await second.start()
        await second.close()


async def test_turned_off_it_listens_nowhere() -> None:
    probes = Probes(HttpSettings(enabled=False), WorkerMetrics().registry, list, list)
    await probes.start()
    await probes.close()
