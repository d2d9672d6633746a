"""What `bench engine` prints: the physics first, then each side, then the JSON line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tools.bench.engine_run import Timed


@dataclass(frozen=True)
class Work:
    """What one round is made of; padded_tokens is what the peer computes for the same samples."""

    requests: int
    samples: int
    tokens: int
    padded_tokens: int
    useful_flops: float
    ceiling_flops_s: float


def physics_lines(work: Work, gemm: str) -> list[str]:
    """What the round costs at least, before anything is measured."""
    gflops, ceiling = work.useful_flops / 1e9, work.ceiling_flops_s / 1e9
    least = work.useful_flops / work.ceiling_flops_s
    return [
        f"one round: {work.requests} requests, {work.samples} samples, {work.tokens} tokens",
        f"useful work: {gflops:,.0f} GFLOP (valid tokens, causal attention, label rows); "
        f"{work.padded_tokens / work.tokens:.2f} times the tokens when each request is padded",
        f"ceiling: {ceiling:,.0f} GFLOP/s, {gemm}: at least {least:.2f} s a round, "
        f"{work.samples / least:,.1f} samples/s",
    ]


def side_line(side: Timed, work: Work) -> str:
    """One side's median, spread and share of the ceiling."""
    rate = work.useful_flops / side.median
    return (
        f"{side.name}: {work.samples / side.median:,.1f} samples/s, median {side.median:.2f} s a round "
        f"({min(side.seconds):.2f} to {max(side.seconds):.2f}), {rate / 1e9:,.0f} useful GFLOP/s, "
        f"{rate / work.ceiling_flops_s:.0%} of the ceiling"
    )


def results(sides: Sequence[Timed], work: Work, difference: float) -> dict[str, object]:
    """The numbers of the JSON line; ratio is samples/s of the first side over the second's.

    The ratio a computed token counts the peer's padding as work done: what is left of the ratio when not
    padding is taken out of it.
    """
    ours, peer = sides
    return {
        "ratio": round(peer.median / ours.median, 3),
        "ratio_per_computed_token": round(peer.median / ours.median * work.tokens / work.padded_tokens, 3),
        "samples_per_s": round(work.samples / ours.median, 2),
        "peer_samples_per_s": round(work.samples / peer.median, 2),
        "share_of_ceiling": round(work.useful_flops / ours.median / work.ceiling_flops_s, 3),
        "peer_share_of_ceiling": round(work.useful_flops / peer.median / work.ceiling_flops_s, 3),
        "ceiling_gflops_s": round(work.ceiling_flops_s / 1e9, 1),
        "useful_gflop": round(work.useful_flops / 1e9, 1),
        "padding_factor": round(work.padded_tokens / work.tokens, 3),
        "samples": work.samples,
        "tokens": work.tokens,
        "rounds": len(ours.seconds),
        "max_abs_logprob_difference": float(f"{difference:.2e}"),
    }
