"""The shape of a DAG by names: are all inputs there, is it free of cycles, what comes after what, where it
ends."""

from __future__ import annotations

import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Protocol, TypeAlias

from engine.errors import ConfigError
from engine.options import suggest

Edges: TypeAlias = Mapping[str, tuple[str, ...]]  # node -> its inputs


class Producer(Protocol):
    """A node, as far as its end is looked for."""

    produces: type


NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def sort_edges(edges: Edges, root: str) -> tuple[str, ...]:
    """Every node after its inputs; `root` is what all of them start from and no node's name.

    ConfigError for a bad name, an unknown or repeated input, and a cycle (which the message shows).
    """
    if not edges:
        raise ConfigError("nodes", dict(edges), "a pipeline has at least one node")
    for name, inputs in edges.items():
        _check_names(name, inputs, edges, root)
    try:
        order = TopologicalSorter(edges).static_order()
        return tuple(name for name in order if name != root)
    except CycleError as error:
        cycle = list(reversed(error.args[1]))  # as written: each reads the next
        reason = f"a cycle: {' reads '.join(cycle)}"
        raise ConfigError(f"nodes.{cycle[0]}.inputs", list(edges[cycle[0]]), reason) from None


def find_sink(nodes: Mapping[str, Producer], edges: Edges, rows: type) -> str:
    """The only node that nobody reads, which gives `rows`; ConfigError where there is none or another one."""
    read = {source for inputs in edges.values() for source in inputs}
    unread = [name for name in nodes if name not in read]
    sinks = [name for name in unread if issubclass(nodes[name].produces, rows)]
    if not sinks:
        last = unread[-1]
        reason = f"gives {nodes[last].produces.__name__}, which no node reads: end the pipeline in an encoder"
        raise ConfigError(f"nodes.{last}", type(nodes[last]).__name__, reason)
    if len(sinks) > 1:
        raise ConfigError(
            "nodes", sinks, "several nodes give rows and none reads them: join them in one encoder"
        )
    for name in unread:
        if name != sinks[0]:
            raise ConfigError(f"nodes.{name}", type(nodes[name]).__name__, "unused: no node reads it")
    return sinks[0]


def _check_names(name: str, inputs: tuple[str, ...], edges: Edges, root: str) -> None:
    if name == root:
        raise ConfigError(f"nodes.{name}", name, "reserved: it is the name of the request itself")
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"nodes.{name}", name, "a name has letters, digits, _ and -, and starts with a letter"
        )
    for position, source in enumerate(inputs):
        key = f"nodes.{name}.inputs"
        if source != root and source not in edges:
            raise ConfigError(key, source, "no such node; " + suggest(source, [root, *edges]))
        if source in inputs[:position]:
            raise ConfigError(key, source, "given twice")
