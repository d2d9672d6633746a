"""Accuracy against speed as one SVG text: a dot a plan, the budget a line. Needs nothing but a browser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 80, 190, 46, 60


@dataclass(frozen=True)
class Dot:
    """speed: times bf16's; kl: mean KL of the next token."""

    name: str
    speed: float
    kl: float
    chosen: bool = False


def draw(title: str, dots: Sequence[Dot], budget_kl: float, speed: str) -> str:
    """SVG text; KL on a logarithmic axis, best at the bottom right, `speed` below the other. ValueError
    without dots."""
    if not dots:
        raise ValueError("dots: none given")
    kls = [max(dot.kl, 1e-7) for dot in dots] + [max(budget_kl, 1e-7)]
    low, high = math.floor(math.log10(min(kls))), math.ceil(math.log10(max(kls)) + 1e-9)
    slow, fast = min(0.95, *(dot.speed for dot in dots)), max(1.05, *(dot.speed for dot in dots)) * 1.03

    def x(speed: float) -> float:
        return LEFT + (speed - slow) / (fast - slow) * (WIDTH - LEFT - RIGHT)

    def y(kl: float) -> float:
        share = (math.log10(max(kl, 1e-7)) - low) / max(high - low, 1)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="14">{escape(title)}</text>',
    ]
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for tick in range(math.ceil(slow * 10), math.floor(fast * 10) + 1):
        at, bottom = x(tick / 10), HEIGHT - BOTTOM
        parts.append(f'<path d="M{at:.1f} {bottom}v5" stroke="#888"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 20}" text-anchor="middle">{tick / 10:g}x</text>')
    line = y(budget_kl)
    parts.append(f'<path d="M{LEFT} {line:.1f}H{WIDTH - RIGHT}" stroke="#c33" stroke-dasharray="6 4"/>')
    parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{line + 4:.1f}" fill="#c33">budget {budget_kl:g}</text>')
    for dot in dots:
        colour, size = ("#06c", 7) if dot.chosen else ("#555", 5)
        place = f'cx="{x(dot.speed):.1f}" cy="{y(dot.kl):.1f}"'
        parts.append(f'<circle {place} r="{size}" fill="{colour}"/>')
        label = f'x="{x(dot.speed) + 10:.1f}" y="{y(dot.kl) - 6:.1f}"'
        parts.append(f'<text {label} fill="{colour}">{escape(dot.name)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 14}" text-anchor="middle">{escape(speed)}</text>')
    parts.append(
        f'<text x="{LEFT}" y="{TOP - 6}">KL of the next token against float32 (emulated)</text></svg>'
    )
    return "\n".join(parts) + "\n"
