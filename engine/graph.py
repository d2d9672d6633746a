"""The static DAG of a pipeline: the Node protocol, what is checked at load, and the order of running.

Knows nodes only by their protocol; kinds are resolved elsewhere. Everything is decided at load: a graph
that validated cannot fail for its shape while serving.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Executor
from enum import Enum
from typing import ClassVar

REQUEST = "request"  # the reserved input: the request's own samples


class Stage(Enum):
    """PREPARE runs once a request, before batching; EXECUTE runs on a batch of whole requests."""

    PREPARE = "prepare"
    EXECUTE = "execute"


class Node(ABC):
    """One step of a pipeline.

    `run` gets one tuple of input values a request and returns one value a request in the same order;
    a value may instead be an exception (InputError, NodeError): that request alone fails.
    It is called on a thread of `executor` (None: the pipeline's own host threads), by several threads at once
    for different batches, and must keep no state between calls.
    """

    stage: ClassVar[Stage] = Stage.EXECUTE
    consumes: ClassVar[tuple[type, ...]]  # what each input may be
    produces: ClassVar[type]
    max_inputs: ClassVar[int] = 1
    is_model: ClassVar[bool] = False  # launches a model: dropped requests must not reach it, runs are counted
    executor: Executor | None = None

    @abstractmethod
    def run(self, requests: Sequence[tuple[object, ...]]) -> Sequence[object]: ...
