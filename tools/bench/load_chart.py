"""Throughput against latency of every mix as one SVG text, from the JSON lines of `bench engine --shape`.

Needs nothing but a browser. A line a mix and result, a dot a loop with its requests in flight beside it; left
and up is better.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from tools.bench.mix_loops import MEAN_MS
from tools.errors import UserError, told

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960, 480, 70, 330, 50, 56
COLOURS = ("#06c", "#c33", "#283", "#a3a", "#b70", "#088", "#555", "#940")
STEPS = (1, 2, 2.5, 5, 10)  # of an axis, times a power of ten


@dataclass(frozen=True)
class Series:
    """Loops of one mix in one result, by requests in flight: (in flight, mean ms, requests a second)."""

    name: str
    points: tuple[tuple[int, float, float], ...]


def read_result(path: Path) -> dict[str, Any]:
    """The last line of a file that a benchmark wrote; UserError where that is not such a result."""
    try:
        lines = path.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(told(error) if isinstance(error, OSError) else f"{path}: is no text") from None
    try:
        result = json.loads(next(line for line in reversed(lines) if line.strip()))
        series_of(result)
    except (StopIteration, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: its last line is no result of bench engine --shape ({type(error).__name__})"
        ) from None
    found: dict[str, Any] = result
    return found


def series_of(result: Mapping[str, Any]) -> list[Series]:
    """Of one result, mixes in their order."""
    what = f"{result['shape']} {result['precision']} {' and '.join(result['kernels'])}"
    mixes: dict[str, list[tuple[int, float, float]]] = {}
    for row in result["loops"]:
        point = (int(row["in_flight"]), float(row["mean_ms"]), float(row["requests_per_s"]))
        mixes.setdefault(row["mix"], []).append(point)
    return [Series(f"{mix}, {what}", tuple(sorted(points))) for mix, points in mixes.items()]


def draw(title: str, series: Sequence[Series]) -> str:
    """SVG text, both axes from zero; ValueError without a point."""
    points = [point for each in series for point in each.points]
    if not points:
        raise ValueError("series: no loops")
    slowest = max(MEAN_MS * 1.1, *(mean for _, mean, _ in points)) * 1.02
    most = max(rate for _, _, rate in points) * 1.05
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(mean: float) -> float:
        return LEFT + mean / slowest * (right - LEFT)

    def y(rate: float) -> float:
        return bottom - rate / most * (bottom - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>',
        f'<text x="{LEFT}" y="{TOP - 8}">requests of 15 samples a second</text>',
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 14}" text-anchor="middle">mean latency, ms</text>',
    ]
    for tick in ticks(most):
        parts.append(f'<path d="M{LEFT} {y(tick):.1f}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in ticks(slowest):
        parts.append(f'<path d="M{x(tick):.1f} {bottom}v5" stroke="#888"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{bottom + 20}" text-anchor="middle">{tick:g}</text>')
    at = x(MEAN_MS)
    parts.append(f'<path d="M{at:.1f} {TOP}V{bottom}" stroke="#888" stroke-dasharray="6 4"/>')
    for index, each in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{x(mean):.1f},{y(rate):.1f}" for _, mean, rate in each.points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        for count, mean, rate in each.points:
            parts.append(f'<circle cx="{x(mean):.1f}" cy="{y(rate):.1f}" r="4" fill="{colour}"/>')
            label = f'x="{x(mean) + 6:.1f}" y="{y(rate) - 5:.1f}" font-size="10"'
            parts.append(f'<text {label} fill="{colour}">{count}</text>')
        where = f'x="{right + 12}" y="{TOP + 18 * index}" font-size="11"'
        parts.append(f'<text {where} fill="{colour}">{escape(each.name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def ticks(most: float) -> list[float]:
    """Round numbers from 0 to `most`, at most ten."""
    power = 10.0 ** math.floor(math.log10(most / 8))
    step = next(power * each for each in STEPS if power * each * 9 >= most)
    return [round(step * i, 10) for i in range(math.floor(most / step) + 1)]


def draw_results(results: Sequence[Mapping[str, Any]], chart: Path) -> None:
    """One chart of all; UserError where there is nothing to draw or it cannot be written."""
    series = [each for result in results for each in series_of(result)]
    if not series:
        raise UserError("--chart: the results hold no closed loops")
    cards = sorted({str(result.get("gpu")) for result in results})
    try:
        chart.write_text(draw(f"Closed loops, {', '.join(cards)}", series))
    except OSError as error:
        raise UserError(f"--chart: {told(error)}") from None
