"""The done prefix under any order of completion, with gaps, and across epochs."""

from __future__ import annotations

from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from worker.offsets import MAX_OWNERS, OffsetTracker, Place, Progress

P0, P1 = TopicPartition("requests", 0), TopicPartition("requests", 1)


def took(tracker: OffsetTracker, partition: TopicPartition, offset: int) -> Place:
    place = tracker.take(partition, offset)
    assert place is not None
    return place


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_the_commit_is_the_first_record_not_done(steps: list[int], random: object) -> None:
    tracker = OffsetTracker()
    tracker.begin(P0, Progress(10))
    offsets, at = [], 10
    for step in steps:  # a step over 1 is a gap
        at += step
        offsets.append(at)
    places = {offset: took(tracker, P0, offset) for offset in offsets}
    order = list(offsets)
    random.shuffle(order)  # type: ignore[attr-defined]
    done: set[int] = set()
    for offset in order:
        tracker.done(places[offset])
        done.add(offset)
        left = [each for each in offsets if each not in done]
        expected = left[0] if left else offsets[-1] + 1
        assert tracker.to_commit()[P0].offset == expected
        assert tracker.num_open == len(left)


def test_a_gap_before_the_first_record_is_passed_only_when_it_is_taken() -> None:
    tracker = OffsetTracker()
    tracker.begin(P0, Progress(5))
    place = took(tracker, P0, 9)
    assert tracker.to_commit()[P0].offset == 9  # nothing exists in 5..8
    tracker.done(place)
    assert tracker.to_commit()[P0] == Progress(10)


def test_older_epochs_commit_nothing() -> None:
    tracker = OffsetTracker()
    tracker.begin(P0, Progress(0))
    old = took(tracker, P0, 0)
    tracker.end([P0])
    tracker.done(old)
    tracker.begin(P0, Progress(0))
    again = took(tracker, P0, 0)
    tracker.done(old)
    assert tracker.to_commit() == {P0: Progress(0, (1,))}
    assert not tracker.current(old)
    assert tracker.current(again)
    tracker.done(again)
    assert tracker.to_commit()[P0].offset == 1


def test_the_next_owner_knows_what_it_gets_again_and_how_often() -> None:
    stored = Progress(0)
    for owner in range(1, 4):  # each takes one record more and is lost
        tracker = OffsetTracker()
        tracker.begin(P0, stored)
        assert [took(tracker, P0, offset).attempt for offset in range(owner)] == [
            owner - offset for offset in range(owner)
        ]
        stored = tracker.to_commit()[P0]
    assert stored == Progress(0, (3, 2, 1))


def test_what_is_done_or_given_back_untouched_counts_for_nothing() -> None:
    tracker = OffsetTracker()
    tracker.begin(P0, Progress(0))
    places = [took(tracker, P0, offset) for offset in range(6)]
    for place in (places[0], places[3]):
        tracker.done(place)
    for place in (places[2], places[4], places[5]):
        tracker.release(place)
    assert tracker.to_commit() == {P0: Progress(1, (2,))}  # only 1 is in the middle of something
    tracker.release(places[1])
    assert tracker.to_commit() == {P0: Progress(1)}


def test_the_third_time_is_suspect_until_it_is_passed() -> None:
    tracker = OffsetTracker()
    tracker.begin(P0, Progress(5, (9, 7)))
    assert tracker.suspect
    assert [took(tracker, P0, offset).attempt for offset in (5, 6)] == [3, 3]
    assert not tracker.suspect
    assert [took(tracker, P0, offset).attempt for offset in (7, 8, 9)] == [2, 2, 1]


def test_only_so_many_lost_owners_are_remembered() -> None:
    tracker = OffsetTracker()
    tracker.begin(P0, Progress(0, tuple(range(100, 50, -1))))
    took(tracker, P0, 0)
    assert tracker.to_commit()[P0].taken == tuple(range(100, 100 - MAX_OWNERS, -1))


def test_a_topic_made_anew_starts_over() -> None:
    tracker = OffsetTracker()
    tracker.begin(P0, Progress(100))
    old = took(tracker, P0, 100)
    fresh = took(tracker, P0, 0)
    tracker.done(old)
    assert tracker.to_commit()[P0].offset == 0
    tracker.done(fresh)
    assert tracker.to_commit()[P0].offset == 1


def test_markers_at_the_end_are_skipped_only_when_nothing_is_open() -> None:
    tracker = OffsetTracker()
    tracker.begin(P0, Progress(0))
    place = took(tracker, P0, 0)
    tracker.skip_to(P0, 2)
    assert tracker.to_commit()[P0].offset == 0
    tracker.done(place)
    tracker.skip_to(P0, 2)
    assert tracker.to_commit()[P0].offset == 2
    tracker.skip_to(P1, 7)  # not ours: nothing happens
    assert tracker.partitions == {P0}


def test_only_news_is_committed_and_the_window_counts_what_would_come_again() -> None:
    tracker = OffsetTracker()
    tracker.begin(P0, Progress(0))
    tracker.begin(P1, Progress(0))
    places = [took(tracker, P0, offset) for offset in range(3)]
    tracker.done(places[1])
    assert tracker.num_uncommitted == 3
    first = tracker.to_commit()
    assert first == {P0: Progress(0, (3,))}
    tracker.committed(first)
    assert tracker.to_commit() == {}
    tracker.done(places[0])
    second = tracker.to_commit()
    tracker.committed(second)
    assert second == {P0: Progress(2, (3,))}
    assert tracker.num_uncommitted == 1
    assert tracker.next_offsets() == {P0: 3, P1: 0}


def test_a_partition_without_a_commit_gets_one_so_that_its_lag_can_be_told() -> None:
    tracker = OffsetTracker()
    tracker.begin_first(P0, 7)
    assert tracker.to_commit() == {P0: Progress(7)}


def test_a_record_of_a_partition_that_is_not_ours_is_refused() -> None:
    assert OffsetTracker().take(P0, 0) is None


class Group(RuleBasedStateMachine):
    """A consumer losing and getting a partition: the commit never passes a record that is not done."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = OffsetTracker()
        self.stored = Progress(0)
        self.position = 0
        self.places: list[Place] = []
        self.finished: set[int] = set()  # offsets whose reply was acked at least once
        self.assign()

    @property
    def committed(self) -> int:
        return self.stored.offset

    def assign(self) -> None:
        self.tracker.begin(P0, self.stored)
        self.position = self.committed

    @rule(gap=st.integers(0, 3))
    def take(self, gap: int) -> None:
        self.finished.update(range(self.position, self.position + gap))  # never existed
        offset = self.position + gap
        self.places.append(took(self.tracker, P0, offset))
        self.position = offset + 1

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.places) - 1))
        place = self.places.pop(index)
        self.tracker.done(place)
        self.finished.add(place.offset)

    @rule()
    def commit(self) -> None:
        progress = self.tracker.to_commit()
        self.tracker.committed(progress)
        if P0 in progress:
            assert progress[P0].offset >= self.committed
            assert all(taken > progress[P0].offset for taken in progress[P0].taken)
            self.stored = progress[P0]

    @rule(commits=st.booleans())
    def rebalance(self, commits: bool) -> None:
        if commits:
            self.commit()
        self.tracker.end([P0])
        self.assign()

    @invariant()
    def nothing_lost(self) -> None:
        assert all(offset in self.finished for offset in range(self.committed))
        assert self.tracker.num_open <= len(self.places)


TestGroup = Group.TestCase
