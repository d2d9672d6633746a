"""Nodes for tests of the worker: a model of known cost that can be held, and that tells what reached it.

A sample is text "NUMBER" or "NUMBER hold". Each NUMBER that reaches the model is a line of the file `ran`.
A batch with a held sample waits until the file `release` exists (30 s at most). Every row echoes its number.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engine.errors import InputError
from engine.graph import Capacity, Node, NodeContext, Stage
from engine.options import Options
from engine.pipeline_config import PipelineConfig
from engine.values import Rows, Samples, Tokens

HOLD_SECONDS = 30.0


def numbers_pipeline(model: str = "fixed_cost:FixedCost", **options: object) -> PipelineConfig:
    """Numbers in front of a model of the given kind and options."""
    bounds = {"samples": 4, "tokens_per_sample": 2, "tokens_per_request": 8}
    nodes = {
        "numbers": {"kind": "fixed_cost:Numbers"},
        "model": {"kind": model, "inputs": ["numbers"], **options},
    }
    return PipelineConfig.model_validate({"name": "numbers", "bounds": bounds, "nodes": nodes})


class Numbers(Node):
    """Samples -> Tokens: (number,) or (number, 1) where the batch is to be held."""

    stage = Stage.PREPARE
    consumes = (Samples,)
    produces = Tokens

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        return [Tokens(tuple(map(read_sample, samples.samples))) for (samples,) in requests]


def read_sample(sample: Any) -> tuple[int, ...]:
    number, *hold = (sample.text or "").split()
    if not number.isdecimal():
        raise InputError("invalid", f"{number!r} is not a number", "samples")
    return (int(number), 1) if hold else (int(number),)


class FixedCostOptions(Options):
    """`sleep_ms` a batch; `requests` the most in one batch; `batches` the most under way."""

    sleep_ms: float = 0
    requests: int = 16
    batches: int = 1
    ran: str
    release: str = ""


class FixedCost(Node):
    """Tokens -> Rows."""

    Options = FixedCostOptions
    consumes = (Tokens,)
    produces = Rows
    is_model = True

    def __init__(self, options: FixedCostOptions, context: NodeContext) -> None:
        self.capacity = Capacity(
            options.requests * context.bounds.tokens_per_request, options.requests, options.batches
        )
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="fixed-cost")
        self._sleep_s = options.sleep_ms / 1000
        self._ran, self._release = Path(options.ran), Path(options.release)
        self._lock = threading.Lock()

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        samples = [sample for (tokens,) in requests for sample in tokens.ids]
        with self._lock, self._ran.open("a") as ran:
            ran.writelines(f"{number}\n" for number, *_ in samples)
        give_up = time.monotonic() + HOLD_SECONDS
        while any(len(sample) > 1 for sample in samples) and not self._release.exists():
            if time.monotonic() > give_up:
                raise TimeoutError(f"{self._release} did not appear")
            time.sleep(0.005)
        time.sleep(self._sleep_s)
        return [Rows(tuple({"number": number} for number, *_ in tokens.ids)) for (tokens,) in requests]

    def close(self) -> None:
        self.executor.shutdown(wait=False)
