"""What a run read, sent and left where it was, for people and for scripts. Bounded, however much it read."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from aiokafka import TopicPartition

from tools.redrive.letters import Letter
from tools.redrive.sending import Destination

Left = Literal["no_origin", "origin_is_dead_letters", "topic_missing", "attempts", "refused"]
LEFT: dict[Left, str] = {
    "no_origin": "have no header that says where they come from",
    "origin_is_dead_letters": "come from the topic that they are in, they say",
    "topic_missing": "come from a topic that does not exist any more",
    "attempts": "have been dead letters as often as --max-attempts allows",
    "refused": "were refused by their topic",
}
MAX_KINDS = 1000
OTHERS = "(others)"


@dataclass
class Tally:
    """Counts of one run. `next_offsets`: where to go on, of every partition that is read."""

    next_offsets: dict[TopicPartition, int]
    read: int = 0
    selected: int = 0
    sent: int = 0  # in a dry run: would be
    moved: int = 0  # sent, but not to their own partition, which does not exist any more
    left: Counter[Left] = field(default_factory=Counter)
    destinations: Counter[str] = field(default_factory=Counter)
    exceptions: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    stopped: Literal["limit", "signal"] | None = None
    error: str | None = None  # Kafka's, that ended the run
    refusal: str | None = None  # the last one's reason
    started_s: float = field(default_factory=time.monotonic)

    def select(self, letter: Letter, fate: Destination | Left) -> None:
        """A letter that is meant, and what became of it."""
        self.selected += 1
        if isinstance(fate, Destination):
            self.sent += 1
            self.moved += fate.partition is None
            self.destinations[_kind(self.destinations, fate.topic)] += 1
        else:
            self.left[fate] += 1
        origin = letter.origin
        name = (None if origin is None else origin.exception_class) or "(no exception named)"
        name = _kind(self.exceptions, name)
        self.exceptions[name] += 1
        self.examples.setdefault(name, "" if origin is None else (origin.message or ""))

    def summary(self, dry_run: bool) -> dict[str, object]:
        """For --json."""
        return {
            "dry_run": dry_run,
            "read": self.read,
            "selected": self.selected,
            "sent": 0 if dry_run else self.sent,
            "would_send": self.sent if dry_run else 0,
            "moved": self.moved,
            "left": {name: self.left[name] for name in LEFT if self.left[name]},
            "destinations": dict(self.destinations.most_common()),
            "exceptions": dict(self.exceptions.most_common()),
            "stopped": "error" if self.error else self.stopped,
            "error": self.error or self.refusal,
            "next": {f"{each.topic}:{each.partition}": at for each, at in self.next_offsets.items()},
            "seconds": round(time.monotonic() - self.started_s, 3),
        }

    def lines(self, dry_run: bool) -> list[str]:
        """For a person."""
        would = "would go" if dry_run else "went"
        shown = [f"{self.read:,} dead letters read, {self.selected:,} selected, {self.sent:,} {would} back"]
        shown += [f"  {count:,} to {topic}" for topic, count in self.destinations.most_common()]
        if self.moved:
            shown.append(f"  {self.moved:,} of them to another partition: their own does not exist any more")
        for name, text in LEFT.items():
            if self.left[name]:
                reason = f" (the last one: {self.refusal})" if name == "refused" else ""
                shown.append(f"{self.left[name]:,} stay: they {text}{reason}")
        if self.exceptions:
            shown.append("why the selected ones are dead letters:")
            for exception, count in self.exceptions.most_common(20):
                joined = ": " if count == 1 else ", such as: "  # messages of one class differ
                example = self.examples[exception][:160]
                shown.append(f"  {count:,} {exception}{joined if example else ''}{example}")
        return shown

    def going_on(self) -> str:
        """The options that make another run begin where this one ended."""
        places = self.next_offsets.items()
        return " ".join(f"--from-offset {each.topic}:{each.partition}={at}" for each, at in places)


def _kind(counts: Counter[str], name: str) -> str:
    return name if name in counts or len(counts) < MAX_KINDS else OTHERS
