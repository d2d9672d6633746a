"""CUDA graphs acted out on the CPU: a capture notes every operation, a replay runs them again on the same
tensors.

Enough for the lanes' own logic on a machine without a device: which buffers, which graph, whose results.
`acted_chip` adds a clock: how long graphs of all and of half of a chip take, alone and at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from eager_beams import EagerBeams, OpenBeams, TinyModel, make_beams, make_model
from engine.ops.hopper.sm_limit import current_limit


class _Notes(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


class ActedGraph:
    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"  # other lanes may allocate meanwhile
        self.pool, self._notes = pool, _Notes()
        self._notes.__enter__()

    def capture_end(self) -> None:
        self._notes.__exit__(None, None, None)

    def replay(self) -> None:
        for func, args, kwargs, out in self._notes.calls:
            given = {
                x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if torch.is_tensor(x)
            }
            for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if torch.is_tensor(old) and old.untyped_storage().data_ptr() not in given:
                    old.copy_(new)


class ActedStream:
    def __init__(self, device: Any = None) -> None:
        self.device = torch.device("cpu")

    def synchronize(self) -> None:
        pass

    def wait_stream(self, other: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass


class ActedEvent:
    def __init__(self, enable_timing: bool = False) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: Any) -> float:
        return 1.0


@pytest.fixture
def acted_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def enter(_: Any) -> Iterator[None]:
        yield

    acted = {
        "CUDAGraph": ActedGraph, "Stream": ActedStream, "Event": ActedEvent, "stream": enter, "device": enter,
        "set_stream": lambda _: None,
        "graph_pool_handle": object, "mem_get_info": lambda _: (0, 0),
    }  # fmt: skip
    for name, value in acted.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name in ("zeros", "empty"):
        real = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, _real=real, pin_memory=False, **k: _real(*a, **k))


@dataclass
class ActedChip:
    """Graphs of the whole chip run one after another, limited ones beside each other. A batch of n tokens
    takes wave_ms for every `wave` of them, and at least that; on `limit` of the 132 multiprocessors as much
    longer, but not where that fills less than a wave."""

    wave: int = 1024
    wave_ms: float = 10.0
    free_ms: float = 0.0  # when the last graph of the whole chip ends
    ends_ms: dict[int, float] = field(default_factory=dict)  # by stream
    current: Any = None
    limits: list[int] = field(default_factory=list)  # of the graphs that were replayed

    def run(self, tokens: int, limit: int) -> None:
        self.limits.append(limit)
        stream = id(self.current)
        took = self.wave_ms * max(1.0, tokens / self.wave * (132 / limit if limit else 1))
        begin = max(
            self.ends_ms.get(stream, 0.0), self.free_ms if limit else max([0.0, *self.ends_ms.values()])
        )
        self.ends_ms[stream] = begin + took
        if not limit:
            self.free_ms = begin + took


@pytest.fixture
def acted_chip(acted_cuda: None, monkeypatch: pytest.MonkeyPatch) -> ActedChip:
    chip = ActedChip()

    class ChipGraph(ActedGraph):
        def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
            self.limit = current_limit()
            super().capture_begin(pool, capture_error_mode)

        def replay(self) -> None:
            super().replay()
            copied = self._notes.calls[0][3]  # a model's graph begins with its inputs' way to the device
            if copied.dtype == torch.uint8:
                chip.run(copied.numel() // 16, self.limit)

    class ChipStream(ActedStream):
        def wait_stream(self, other: Any) -> None:
            chip.ends_ms[id(self)] = max(chip.ends_ms.get(id(each), 0.0) for each in (self, other))

        def wait_event(self, event: Any) -> None:
            chip.ends_ms[id(self)] = max(chip.ends_ms.get(id(self), 0.0), event.at)

    class ChipEvent(ActedEvent):
        def record(self, stream: Any = None) -> None:
            self.at = chip.ends_ms.get(id(stream), 0.0)

        def elapsed_time(self, other: Any) -> float:
            return float(other.at - self.at)

    @contextmanager
    def enter(stream: Any) -> Iterator[None]:
        before, chip.current = chip.current, stream
        yield
        chip.current = before

    for name, value in {
        "CUDAGraph": ChipGraph,
        "Event": ChipEvent,
        "Stream": ChipStream,
        "stream": enter,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return chip


@pytest.fixture
def open_beams(acted_cuda: None) -> Iterator[OpenBeams]:
    """Their pools are closed after the test."""
    del acted_cuda
    with ExitStack() as opened:

        def make(model: TinyModel, lanes: int = 2) -> EagerBeams:
            made = make_beams(model, lanes)
            opened.callback(made.pool.close)
            return made

        yield make


@pytest.fixture
def beams(open_beams: OpenBeams) -> EagerBeams:
    return open_beams(make_model())
