"""What survives a kill: whatever the moment, the final file is that of an uninterrupted run."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

KILLS = 20
ROWS = 3000
PART_ROWS = 128
BATCH_ROWS = 16
MOST_PARTS = 4  # finished before a kill; the moment within the next part is drawn, too
LONGEST_S = 0.1  # a part takes 64 ms and more
SEED = 4


def test_twenty_kills_at_any_moment_leave_each_row_once(desk: Any) -> None:
    """A run that ends between two kills is checked and begun again."""
    numbers = random.Random(SEED).sample(range(10**6), ROWS)
    desk.write_rows("in.jsonl", numbers)
    assert desk.bulk("in.jsonl", "whole.jsonl", "--part-rows", str(PART_ROWS)).status == 0
    whole = desk.path("whole.jsonl").read_bytes()
    desk.path("ran").unlink()
    desk.configure(sleep_ms=8)
    assert [row["response"]["body"]["number"] for row in desk.read("whole.jsonl")] == numbers
    moments = random.Random(SEED)
    output, journal = desk.path("out.jsonl"), desk.path("out.jsonl.bulk") / "journal.jsonl"
    kills = finished = furthest = 0
    while kills < KILLS or journal.exists() or not finished:
        process = desk.start("in.jsonl", "out.jsonl", "--part-rows", str(PART_ROWS))
        if kills >= KILLS:
            process.join()
        else:
            target = count_parts(journal) + moments.randint(0, MOST_PARTS)
            while process.is_alive() and count_parts(journal) < target:
                time.sleep(0.002)
            process.join(moments.uniform(0, LONGEST_S))
        if process.is_alive():
            process.kill()
            process.join()
            assert process.exitcode == -signal.SIGKILL
            kills += 1
        if journal.exists():
            furthest = max(furthest, count_parts(journal))
        elif output.exists():
            assert output.read_bytes() == whole
            output.unlink()
            finished += 1
        else:
            assert process.exitcode == -signal.SIGKILL, process.exitcode
    assert furthest > 5
    again = Counter(desk.ran())
    assert set(again) == set(numbers)
    wasted = again.total() - finished * ROWS
    assert wasted <= kills * (PART_ROWS + 3 * BATCH_ROWS)  # one part a kill, and the batches behind it


def count_parts(journal: Path) -> int:
    """Finished parts; the journal's first line says which run it is."""
    try:
        return max(0, journal.read_bytes().count(b"\n") - 1)
    except FileNotFoundError:
        return 0
