"""Closed loops of every mix through an artifact's lanes: requests a second, latency, what was computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from engine.artifact import Artifact
from engine.models.architecture import Architecture
from engine.prefixes import EIGHT_BITS, Prefixes, Rules
from engine.runtime.lanes import LanePool
from tools.bench.closed_loop import run_closed_loop
from tools.bench.mixes import Mix
from tools.bench.shapes import count_packed

MEAN_MS = 20.0  # the latency at which mixes are compared
LABELS = 2  # rows of the head


def run_mixes(
    artifact: Artifact, pool: LanePool, mixes: Iterable[Mix], in_flight: Sequence[int], seconds: float,
    line: Callable[[str], None],
) -> list[dict[str, Any]]:  # fmt: skip
    """A row a loop, told as it ends. Two label rows for a head; what samples share is computed once where the
    artifact's package can."""
    assert artifact.head_weight is not None
    rows = artifact.head_weight[:LABELS].t().contiguous()

    def head(hidden: Tensor) -> tuple[Tensor, ...]:
        return (hidden @ rows,)

    pool.prepare(head)
    a = Architecture.from_manifest(artifact.manifest.architecture)
    found = []
    for mix in mixes:
        prefixes = prefixes_of(artifact, pool, mix)
        gflop = gflop_a_request(a, mix, prefixes)
        for count in in_flight:
            load = run_closed_loop(
                pool, head, mix.requests, in_flight=count, seconds=seconds, bounds=artifact.bounds,
                prefixes=prefixes,
            )  # fmt: skip
            row = {"mix": mix.name, **asdict(load), "tflops": load.requests_per_s * gflop / 1e3}
            line(loop_line(row))
            found.append(row)
    return found


def prefixes_of(artifact: Artifact, pool: LanePool, mix: Mix) -> Prefixes:
    """As a prefill node packs: nothing is shared where the package takes no prefixes."""
    if not pool.takes_prefixes:
        return Prefixes()
    rules = EIGHT_BITS if artifact.quantises else Rules()
    ids = mix.constant[: pool.most_constant]
    constant = artifact.constant_prefix(ids) if len(ids) >= rules.min_constant else None
    return Prefixes(constant, rules, pool.most_segments)


def gflop_a_request(a: Architecture, mix: Mix, prefixes: Prefixes) -> float:
    """Computed ones, the mean of the mix."""
    flops = [count_packed(a, prefixes.pack([request])[0]).flops for request in mix.requests]
    return sum(flops) / len(flops) / 1e9


def best_under(rows: Iterable[Mapping[str, Any]], mean_ms: float = MEAN_MS) -> dict[str, Any]:
    """Mix -> its loop of most requests a second among those of a lower mean latency, None where none was."""
    best: dict[str, Any] = {}
    for row in rows:
        known = best.setdefault(row["mix"], None)
        faster = known is None or row["requests_per_s"] > known["requests_per_s"]
        if row["mean_ms"] < mean_ms and faster:
            best[row["mix"]] = dict(row)
    return best


def loop_line(row: Mapping[str, Any]) -> str:
    return (
        f"{row['mix']}, {row['in_flight']} in flight: {row['requests_per_s']:.0f} requests/s, "
        f"mean {row['mean_ms']:.1f} ms, p99 {row['p99_ms']:.1f} ms, {row['batch_requests']:.1f} a batch, "
        f"{row['tflops']:.0f} computed TFLOP/s, {row['saved_share']:.0%} of the tokens saved"
    )


def best_line(mix: str, row: Mapping[str, Any] | None) -> str:
    if row is None:
        return f"{mix}: no loop had a mean < {MEAN_MS:g} ms"
    return (
        f"{mix}: most requests/s at mean < {MEAN_MS:g} ms: {row['requests_per_s']:.0f} "
        f"({row['in_flight']} in flight, mean {row['mean_ms']:.1f} ms, p99 {row['p99_ms']:.1f} ms)"
    )
