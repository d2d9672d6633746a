"""One batch on its way through the EXECUTE nodes of a graph.

Every node starts on its own executor as soon as its last input is there, so branches run concurrently and
no thread waits. One lock guards what is counted; nodes run outside it. The future always gets one result a
request, whatever a node does.

Where a node runs in two parts, lanes may take the next batch before this one's results are there: `on_turn`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from threading import Lock

from engine.answers import Answer, Dropped, Failure, Prepared, Result
from engine.errors import InputError, NodeError
from engine.graph import Counted, Graph, Node, Stage
from engine.prefixes import Saved
from engine.values import Rows

logger = logging.getLogger(__name__)

FAILED = "node %r failed; its %d requests fail with it"


class _RequestState:
    """A request in the batch: its values so far, and its end if that came early."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.values = dict(prepared.values)
        self.model_runs = 0
        self.saved = Saved()
        self.dropped = False
        self.failure: Exception | None = None

    @property
    def alive(self) -> bool:
        return not self.dropped and self.failure is None


class Execution:
    """Runs `batch` through `graph` once. `future` is done when every node has run or been skipped."""

    def __init__(
        self,
        graph: Graph,
        batch: Sequence[Prepared],
        host: Executor,
        on_turn: Callable[[], None] | None = None,
    ) -> None:
        self.future: Future[list[Result]] = Future()
        self._graph = graph
        self._host = host
        self._requests = [_RequestState(prepared) for prepared in batch]
        self._lock = Lock()
        self._gpu_s = 0.0
        self._settled = False
        execute = graph.names(Stage.EXECUTE)
        self._num_left = len(execute)
        self._on_turn = on_turn
        halved = any(graph.nodes[name].finisher is not None for name in execute)
        # Nodes whose lanes this batch still needs; where none tells that before its results, nobody asks.
        self._on_lanes = {name for name in execute if graph.nodes[name].is_model} if halved else set()
        self._waits = {name: sum(source in execute for source in graph.inputs[name]) for name in execute}
        self._readers = {
            name: [other for other in execute if name in graph.inputs[other]] for name in execute
        }

    def start(self) -> None:
        """Launch what needs nothing but prepared values; returns at once."""
        self.future.set_running_or_notify_cancel()  # from here on nobody can cancel it
        ready = [name for name, waits in self._waits.items() if waits == 0]
        for name in ready:
            self._start(name)
        if not self._waits:
            self._settle()

    def abandon(self, reason: str) -> None:
        """Give every request without an end a Failure now; nodes still running finish unheard."""
        with self._lock:
            for request in self._requests:
                if request.alive:
                    request.failure = NodeError(reason)
        self._settle()

    def _start(self, name: str) -> None:
        node = self._graph.nodes[name]
        try:
            (node.executor or self._host).submit(self._run, name, node)
        except RuntimeError as error:  # the executor has been shut down
            self._fail(self._requests, NodeError(f"node {name!r} cannot start: {error}"))
            self._finish(name)

    def _run(self, name: str, node: Node) -> None:
        requests = [request for request in self._requests if self._admit(request, name, node)]
        if not requests:
            self._finish(name)
            return
        started, sources = time.perf_counter(), self._graph.inputs[name]
        inputs = [tuple(request.values[source] for source in sources) for request in requests]
        if node.finisher is None:
            self._complete(name, requests, started, lambda: node.run(inputs))
            return
        try:
            rest = node.begin(inputs)
        except Exception as error:
            logger.exception(FAILED, name, len(requests))
            self._fail_with(name, requests, error)
            self._finish(name)
            return
        self._leave_lane(name)
        try:
            node.finisher.submit(self._complete, name, requests, started, rest)
        except RuntimeError:  # it has been shut down: then here
            self._complete(name, requests, started, rest)

    def _complete(
        self,
        name: str,
        requests: Sequence[_RequestState],
        started: float,
        values: Callable[[], Sequence[object]],
    ) -> None:
        node = self._graph.nodes[name]
        try:
            self._collect(name, node, requests, values())
        except Exception as error:  # a node's bug must not take the worker along
            logger.exception(FAILED, name, len(requests))
            self._fail_with(name, requests, error)
        if node.is_model:
            with self._lock:
                self._gpu_s += time.perf_counter() - started
        self._finish(name)

    def _admit(self, request: _RequestState, name: str, node: Node) -> bool:
        """Whether the request takes part in this node's run; asks `wanted` before a model."""
        if not request.alive or not node.is_model:
            return request.alive
        try:
            wanted = request.prepared.wanted()
        except Exception:  # the caller's function: only its own request may suffer
            logger.exception("wanted() failed before node %r; its request fails", name)
            self._fail([request], NodeError("wanted() failed"))
            return False
        with self._lock:
            request.dropped = request.dropped or not wanted
            if request.alive:
                request.model_runs += 1
            return request.alive

    def _collect(
        self, name: str, node: Node, requests: Sequence[_RequestState], values: Sequence[object]
    ) -> None:
        if len(values) != len(requests):
            raise ValueError(f"{len(values)} values for {len(requests)} requests")
        for request, given in zip(requests, values, strict=True):
            value = given
            if isinstance(given, Counted):
                value = given.value
                with self._lock:
                    request.saved += given.saved
            if isinstance(value, Exception):
                self._fail([request], value)
            elif not isinstance(value, node.produces):
                raise TypeError(f"a value of type {type(value).__name__}, not {node.produces.__name__}")
            else:
                request.values[name] = value
                if request.prepared.observe is not None:
                    request.prepared.observe(name, value)

    def _fail_with(self, name: str, requests: Sequence[_RequestState], error: Exception) -> None:
        self._fail(requests, NodeError(f"node {name!r} failed: {type(error).__name__}"))

    def _fail(self, requests: Sequence[_RequestState], error: Exception) -> None:
        with self._lock:
            for request in requests:
                request.failure = request.failure or error

    def _leave_lane(self, name: str) -> None:
        with self._lock:
            last = self._on_lanes == {name}
            self._on_lanes.discard(name)
        if last and self._on_turn is not None:
            try:
                self._on_turn()
            except Exception:  # the caller's function: the batch goes on
                logger.exception("on_turn() failed behind node %r", name)

    def _finish(self, name: str) -> None:
        self._leave_lane(name)
        with self._lock:
            self._num_left -= 1
            done = self._num_left == 0
            ready = []
            for reader in self._readers[name]:
                self._waits[reader] -= 1
                if self._waits[reader] == 0:
                    ready.append(reader)
        for reader in ready:
            self._start(reader)
        if done:
            self._settle()

    def _settle(self) -> None:
        with self._lock:
            if self._settled:
                return
            self._settled = True
            results = [self._result(request) for request in self._requests]
        self.future.set_result(results)  # outside the lock: it runs the caller's callbacks

    def _result(self, request: _RequestState) -> Result:
        if request.dropped:
            return Dropped(request.model_runs)
        if request.failure is None:
            rows = request.values[self._graph.sink]
            assert isinstance(rows, Rows)
            if len(rows.rows) == request.prepared.num_samples:
                return Answer(rows.rows, request.model_runs, self._gpu_s * 1e3, request.saved)
            request.failure = NodeError(f"{len(rows.rows)} rows for {request.prepared.num_samples} samples")
        return _failure(request.failure, request.model_runs)


def _failure(error: Exception, model_runs: int) -> Failure:
    if isinstance(error, InputError):
        return Failure(str(error), error.code, error.field, model_runs)
    if isinstance(error, NodeError):
        return Failure(str(error), error.code, None, model_runs)
    return Failure(f"{type(error).__name__}: {error}", "internal", None, model_runs)
