"""Places of legal sequences: graphs read what was captured last, whatever failed before."""

from __future__ import annotations

import pytest
import torch

from eager_beams import items
from engine.runtime.legal_slots import LegalSlots


class Capturing:
    """Notes which memory graphs over a place would read; the next capture fails on demand."""

    def __init__(self) -> None:
        self.fails = False
        self.read: dict[int, int] = {}

    def __call__(self, slots: LegalSlots, slot: int) -> None:
        if self.fails:
            raise RuntimeError("out of memory")
        self.read[slot] = slots.whole(slot).tokens.data_ptr()


def test_a_capture_that_failed_is_made_up_for_before_the_place_is_served() -> None:
    capturing = Capturing()
    slots = LegalSlots(torch.device("cpu"), capturing)
    served = slots.place(items(0, 50), None)
    for slot in (0, 1):  # as a pipeline does when it opens
        capturing(slots, slot)
    capturing.fails = True
    with pytest.raises(RuntimeError, match="out of memory"):
        slots.place(items(10, 5000), served)
    capturing.fails = False
    grown = slots.place(items(20, 5000), served)
    assert grown.slot == 1
    assert capturing.read[1] == grown.tokens.data_ptr()
