"""One run: read, select, guard, and in earnest send.

Everything is on one event loop. A run ends when every partition is read to the end it had at the beginning,
at the limit, when told to stop (after the record under way), or when Kafka takes nothing any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from tools.broker_state import Options, count_partitions
from tools.errors import UserError
from tools.redrive.letters import Letter
from tools.redrive.pacing import Pacer
from tools.redrive.reading import Counts, LetterReader, StalledError, open_reader
from tools.redrive.selection import Selection, Span
from tools.redrive.sending import Destination, LetterRefusedError, Sender, open_sender
from tools.redrive.tally import Left, Tally

REACH_SECONDS = 30.0
Told = Callable[[Letter, Destination | Left], None]


@dataclass(frozen=True)
class Plan:
    """What to do. `send` False: a dry run. `max_attempts`: letters that have been one so often stay. `rate` a
    second, 0 without limit. `limit`: the most letters to send."""

    topics: tuple[str, ...]
    span: Span
    selection: Selection
    send: bool
    max_attempts: int
    rate: float
    limit: int | None


async def redrive(options: Options, plan: Plan, stop: asyncio.Event, told: Told) -> Tally:
    """`told` hears what becomes of each selected letter. UserError for what can be mended before anything is
    sent; what happens afterwards is in Tally.stopped."""
    counts = await reach(options)
    sender: AbstractAsyncContextManager[Sender | None] = open_sender(options) if plan.send else nullcontext()
    async with open_reader(options, plan.topics, counts, plan.span) as reader, sender as sending:
        tally = Tally({place: start for place, (start, _) in reader.ranges.items()})
        run = Run(plan, counts, sending, tally, stop, told)
        try:
            await run.go(reader)
        except (KafkaError, StalledError, TimeoutError, OSError) as error:
            tally.error = f"{type(error).__name__}: {error}".rstrip(": ")
        return tally


async def reach(options: Options) -> Counts:
    """Topics and their partitions; UserError where nobody answers."""
    try:
        async with asyncio.timeout(REACH_SECONDS):
            return await count_partitions(options)
    except (KafkaError, OSError) as error:
        servers = options["bootstrap_servers"]
        raise UserError(f"no Kafka at {servers}: {type(error).__name__}: {error}") from error


class Run:
    """`sender` None: a dry run, which does all but send."""

    def __init__(
        self,
        plan: Plan,
        counts: Counts,
        sender: Sender | None,
        tally: Tally,
        stop: asyncio.Event,
        told: Told,
    ) -> None:
        self._plan = plan
        self._counts = counts
        self._sender = sender
        self._tally = tally
        self._stop = stop
        self._told = told
        self._pacer = Pacer(plan.rate if sender else 0, sleep=self._wait)

    async def go(self, reader: LetterReader) -> None:
        """Raises what reading and sending raise; the tally is true then as well."""
        tally = self._tally
        async with aclosing(reader.letters()) as letters:
            async for letter in letters:
                if tally.sent == self._plan.limit:
                    tally.stopped = "limit"
                    return
                if self._stop.is_set() or not await self._take(letter):
                    tally.stopped = "signal"
                    return
                tally.read += 1
                tally.next_offsets[TopicPartition(letter.topic, letter.partition)] = letter.offset + 1
        for place, (_, end) in reader.ranges.items():
            tally.next_offsets[place] = end

    async def _take(self, letter: Letter) -> bool:
        """One letter; False if the run was told to stop before it went."""
        if not self._plan.selection.matches(letter):
            return True
        fate = self._decide(letter)
        if isinstance(fate, Destination) and self._sender is not None:
            await self._pacer.turn()
            if self._stop.is_set():
                return False
            try:
                await self._sender.send(letter, fate)
            except LetterRefusedError as error:
                self._tally.refusal = str(error)
                fate = "refused"
        self._tally.select(letter, fate)
        self._told(letter, fate)
        return True

    def _decide(self, letter: Letter) -> Destination | Left:
        """The letter's own place as far as it still exists, or why it stays."""
        origin = letter.origin
        if origin is None or not origin.topic:
            return "no_origin"
        if origin.topic == letter.topic:
            return "origin_is_dead_letters"
        if origin.topic not in self._counts:
            return "topic_missing"
        if origin.attempts >= self._plan.max_attempts:
            return "attempts"
        known = origin.partition is not None and 0 <= origin.partition < self._counts[origin.topic]
        return Destination(origin.topic, origin.partition if known else None)

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)
