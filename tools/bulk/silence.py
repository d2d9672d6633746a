"""Tells the person at the terminal that no worker answers, long before the run gives up.

On the scorer's event loop. The group's lag is looked up only when there is something to tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka.errors import KafkaError
from rich.console import Console

from tools.broker_state import committed_lag, count_partitions

FIRST_S = 10.0
AGAIN_S = 60.0
CHECK_S = 1.0
LOOK_S = 5.0


def tell(text: str) -> None:
    """One line on standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True, markup=False).print(text)


@dataclass(frozen=True)
class SilenceWatch:
    """What workers read. `options` are aiokafka's connection arguments."""

    options: Mapping[str, Any]
    group: str
    topic: str

    async def run(self, silent_s: Callable[[], float]) -> None:
        """Until cancelled. `silent_s`: how long those who wait have waited for any answer; 0: nobody does."""
        next_s = FIRST_S
        while True:
            await asyncio.sleep(CHECK_S)
            now_s = silent_s()
            if now_s < FIRST_S:
                next_s = FIRST_S
            elif now_s >= next_s:
                next_s = now_s + AGAIN_S
                backlog = await self._backlog()
                tell(f"no answer for {now_s:.0f} s: is a worker running? {backlog}; still waiting")

    async def _backlog(self) -> str:
        try:
            async with asyncio.timeout(LOOK_S):
                partitions = (await count_partitions(self.options))[self.topic]
                lag = await committed_lag(self.options, self.group, self.topic, partitions)
        except (KafkaError, OSError, KeyError):
            return f"group {self.group} should read topic {self.topic}"
        return f"group {self.group} is {lag.behind} records behind on topic {self.topic}"
