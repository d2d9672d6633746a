"""CUDA graphs acted out on the CPU: a capture notes every operation, a replay runs them again on the same
tensors.

Enough for the lanes' own logic on a machine without a device: which buffers, which graph, whose results.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


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
        "graph_pool_handle": object, "mem_get_info": lambda _: (0, 0),
    }  # fmt: skip
    for name, value in acted.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name in ("zeros", "empty"):
        real = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, _real=real, pin_memory=False, **k: _real(*a, **k))
