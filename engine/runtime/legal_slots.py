"""Where captured searches read legal sequences: two places of a fixed capacity, so that one can be refilled
while the other is searched.

Graphs are captured over both. A version is copied into the place that is not being served, once no batch uses
it any more; a batch that took an older version of that place is refused and takes the current one. So a graph
never reads two versions, and serving never waits for a copy. A version that does not fit gets a larger place,
over which graphs are captured anew. Any thread; `place` from one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition

import torch
from torch import Tensor

from engine.beam.legal import LegalTensors

ROOM = 1.25  # of the first version's size: what the next ones may grow by
PATIENCE_S = 60.0  # a batch takes milliseconds: one that takes longer is stuck


class StaleLegalError(RuntimeError):
    """The version that a batch took is being replaced: take the current one."""


@dataclass(frozen=True)
class PlacedLegal(LegalTensors):
    """A version in place `slot`; `generation` counts what was put there."""

    slots: LegalSlots
    slot: int
    generation: int


class LegalSlots:
    """`recapture` is told of a place that has moved, before anything in it is searched."""

    def __init__(self, device: torch.device, recapture: Callable[[LegalSlots, int], None]) -> None:
        self._device, self._recapture = device, recapture
        self._places: list[LegalTensors | None] = [None, None]
        self._generations, self._users = [0, 0], [0, 0]
        self._moved = [False, False]  # places over which no graphs were captured yet
        self._changed = Condition()

    def place(self, tensors: LegalTensors, served: LegalTensors | None) -> PlacedLegal:
        """A copy of `tensors`, beside `served`. TimeoutError where a batch does not end."""
        slot = 1 - served.slot if isinstance(served, PlacedLegal) else 0
        with self._changed:
            self._generations[slot] += 1  # from here on no batch takes what is there
            if not self._changed.wait_for(lambda: self._users[slot] == 0, PATIENCE_S):
                raise TimeoutError(f"a batch still searches items that were replaced {PATIENCE_S:.0f} s ago")
        if served is None:
            self._places = [_make_place(tensors, self._device) for _ in range(2)]
        place = self._places[slot]
        assert place is not None
        if not _fits(tensors, place):
            place = self._places[slot] = _make_place(tensors, self._device)
            self._moved[slot] = True
        if self._moved[slot]:  # now, or in an earlier call whose captures failed
            self._recapture(self, slot)
            self._moved[slot] = False
        filled = self._fill(place, tensors)
        offsets, tokens, children = filled
        return PlacedLegal(offsets, tokens, children, tensors.max_degree, self, slot, self._generations[slot])

    def _fill(self, place: LegalTensors, tensors: LegalTensors) -> list[Tensor]:
        """The place's tensors, as long as what was copied into them; waits for the copies."""
        names = ("offsets", "tokens", "children")
        pairs = [(getattr(place, name), getattr(tensors, name)) for name in names]
        filled = [target[: len(source)] for target, source in pairs]
        stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            for front, (_, source) in zip(filled, pairs, strict=True):
                front.copy_(source)
        if stream is not None:
            stream.synchronize()
        return filled

    def whole(self, slot: int) -> LegalTensors:
        """A place with all its capacity: what a graph is captured over."""
        place = self._places[slot]
        assert place is not None
        return place

    @contextmanager
    def use(self, placed: PlacedLegal) -> Iterator[None]:
        """While a batch searches it; StaleLegalError where it is on its way out."""
        with self._changed:
            if self._generations[placed.slot] != placed.generation:
                raise StaleLegalError
            self._users[placed.slot] += 1
        try:
            yield
        finally:
            with self._changed:
                self._users[placed.slot] -= 1
                self._changed.notify_all()


def _make_place(tensors: LegalTensors, device: torch.device) -> LegalTensors:
    nodes, edges = (int(len(x) * ROOM) + 1024 for x in (tensors.offsets, tensors.tokens))
    offsets, tokens, children = (
        torch.zeros(size, dtype=torch.int32, device=device) for size in (nodes, edges, edges)
    )
    if device.type == "cuda":  # lanes and copies have streams of their own
        torch.cuda.current_stream(device).synchronize()
    degrees = tuple(1 << degree.bit_length() for degree in tensors.max_degree)
    return LegalTensors(offsets, tokens, children, degrees)


def _fits(tensors: LegalTensors, place: LegalTensors) -> bool:
    return (
        len(tensors.offsets) <= len(place.offsets)
        and len(tensors.tokens) <= len(place.tokens)
        and len(tensors.max_degree) <= len(place.max_degree)
        and all(a <= b for a, b in zip(tensors.max_degree, place.max_degree, strict=False))
    )
