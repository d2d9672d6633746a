"""What may be committed: per partition the contiguous prefix of records that are done.

Pure bookkeeping, no I/O; used by the event loop's thread alone. Offsets may have gaps (compaction,
transaction markers): only offsets that were really taken count. Each assignment of a partition is an epoch of
its own; a record of an older epoch can no longer change what is committed.

Beside the offset a commit tells how far this owner and earlier ones had taken records when they were last
heard of. So the next owner knows which records it gets again, and how often they were lost that way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count

from aiokafka import TopicPartition

MAX_OWNERS = 16  # how many lost owners are remembered
SUSPECT_ATTEMPT = 3  # a record taken for the third time may be what ended its owners


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record came from and under which epoch. `attempt` n: n-1 owners had taken it and were lost
    with it, as far as they had committed."""

    partition: TopicPartition
    offset: int
    epoch: int
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """`offset`: the first record that is not done. `taken`: for each owner that is or was in the middle of
    something, one past the last record it had taken; descending, all above `offset`."""

    offset: int
    taken: tuple[int, ...] = ()


class PartitionOffsets:
    """One partition in one epoch: taken records in order, those of them that are done, and the commit."""

    def __init__(
        self, epoch: int, position: int, earlier: tuple[int, ...] = (), committed: Progress | None = None
    ) -> None:
        self.epoch = epoch
        self.next = position
        self._first = position
        self._earlier = tuple(sorted(earlier, reverse=True))
        self._open: deque[int] = deque()  # taken and not in the done prefix, ascending
        self._done: set[int] = set()  # done ahead of the prefix
        self._released: set[int] = set()  # taken and given back before anything was done with them
        self._uncommitted: deque[int] = deque()  # taken and at or past the committed offset
        self._committed = committed

    @property
    def num_open(self) -> int:
        """Records taken and not done."""
        return len(self._open) - len(self._done)

    @property
    def num_uncommitted(self) -> int:
        """Records that would come again if this process died now."""
        return len(self._uncommitted)

    @property
    def progress(self) -> Progress:
        """What a commit would say now. Its offset never falls within an epoch."""
        offset = self._open[0] if self._open else self.next
        taken = (self._in_the_middle_of(), *self._earlier)
        ahead = sorted((each for each in taken if each > offset), reverse=True)
        return Progress(offset, tuple(ahead[:MAX_OWNERS]))

    @property
    def changed(self) -> bool:
        """Whether a commit would say something new."""
        return self.progress != self._committed

    @property
    def suspect(self) -> bool:
        """Whether the next record may be one that ended its owners."""
        return self.attempt(self.next) >= SUSPECT_ATTEMPT

    def attempt(self, offset: int) -> int:
        return 1 + sum(taken > offset for taken in self._earlier)

    def take(self, offset: int) -> None:
        assert offset >= self.next, f"offset {offset} was taken before"
        self._open.append(offset)
        self._uncommitted.append(offset)
        self.next = offset + 1

    def done(self, offset: int) -> None:
        self._done.add(offset)
        while self._open and self._open[0] in self._done:
            self._done.remove(self._open.popleft())

    def release(self, offset: int) -> None:
        self._released.add(offset)

    def skip_to(self, position: int) -> None:
        """Nothing lies between the last record taken and `position`; only believed while nothing is open."""
        if not self._open:
            self.next = max(self.next, position)

    def committed(self, progress: Progress) -> None:
        self._committed = progress
        while self._uncommitted and self._uncommitted[0] < progress.offset:
            self._uncommitted.popleft()

    def _in_the_middle_of(self) -> int:
        """One past the last record that something is being done with."""
        if not self._released:
            return self.next
        kept = (each for each in reversed(self._open) if each not in self._done | self._released)
        return next((each + 1 for each in kept), self._first)


class OffsetTracker:
    """All partitions that one consumer holds."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, PartitionOffsets] = {}
        self._epochs = count(1)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._partitions)

    @property
    def num_open(self) -> int:
        return sum(each.num_open for each in self._partitions.values())

    @property
    def num_uncommitted(self) -> int:
        return sum(each.num_uncommitted for each in self._partitions.values())

    @property
    def suspect(self) -> bool:
        """Whether a record that is next in some partition may have ended its owners."""
        return any(each.suspect for each in self._partitions.values())

    def begin(self, partition: TopicPartition, committed: Progress) -> None:
        """A new epoch where the group's commit says."""
        self._partitions[partition] = PartitionOffsets(
            next(self._epochs), committed.offset, committed.taken, committed
        )

    def begin_first(self, partition: TopicPartition, position: int) -> None:
        """A new epoch of a partition without a commit; `position` is committed so that lag can be told."""
        self._partitions[partition] = PartitionOffsets(next(self._epochs), position)

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        """The partitions are no longer ours: their records in flight can commit nothing any more."""
        for partition in partitions:
            self._partitions.pop(partition, None)

    def take(self, partition: TopicPartition, offset: int) -> Place | None:
        """A record was read. None: the partition is not ours (any more).

        An offset lower than expected means that the topic was made anew: that is an epoch of its own.
        """
        state = self._partitions.get(partition)
        if state is None:
            return None
        if offset < state.next:
            state = self._partitions[partition] = PartitionOffsets(next(self._epochs), offset)
        state.take(offset)
        return Place(partition, offset, state.epoch, state.attempt(offset))

    def current(self, place: Place) -> bool:
        """Whether the record still belongs to this consumer."""
        state = self._partitions.get(place.partition)
        return state is not None and state.epoch == place.epoch

    def done(self, place: Place) -> None:
        """The record's outcome is settled (its reply acked, or dead, or given up). Once a record."""
        if self.current(place):
            self._partitions[place.partition].done(place.offset)

    def release(self, place: Place) -> None:
        """The record is given back untouched: whoever gets it next gets it as if for the first time."""
        if self.current(place):
            self._partitions[place.partition].release(place.offset)

    def skip_to(self, partition: TopicPartition, position: int) -> None:
        """The consumer's own position, which also passes transaction markers and compacted ends."""
        if partition in self._partitions:
            self._partitions[partition].skip_to(position)

    def progress(self) -> dict[TopicPartition, Progress]:
        """What a commit would say now."""
        return {partition: each.progress for partition, each in self._partitions.items()}

    def next_offsets(self) -> dict[TopicPartition, int]:
        """Where reading goes on."""
        return {partition: state.next for partition, state in self._partitions.items()}

    def to_commit(self) -> dict[TopicPartition, Progress]:
        """What is new since the last commit."""
        return {partition: each.progress for partition, each in self._partitions.items() if each.changed}

    def committed(self, progress: Mapping[TopicPartition, Progress]) -> None:
        """These commits were acknowledged."""
        for partition, each in progress.items():
            if partition in self._partitions:
                self._partitions[partition].committed(each)
