"""Orthogonal matrices folded into a decoder's weights, so that no channel of an 8-bit input stands out.

    stream:  x -> x R       embedding E R, readers W diag(norm) R, writers R^T W; all norm weights become one
    heads:   v -> v Q       rows of v by Q^T, columns of the output projection by Q, a head at a time
    after the final norm:   hidden = (rows R) unrotate,  unrotate = R^T diag(final norm)

RMSNorm without a bias passes any rotation, for it only knows the row's length; rope and head norms act on q
and k, which are rotated nowhere. What the package returns, and so every head on top of it with its tied
embedding or label rows, is that of the plain model. Sums in float64, results in float32,
on the weights' device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.architecture import Architecture
from engine.models.weights import EMBEDDING

FINAL_NORM = "norm.weight"


@dataclass(frozen=True)
class Rotated:
    """`weights`: names of the plain decoder; `unrotate`[H, H] is applied to the last tokens' normed rows."""

    weights: dict[str, Tensor]
    unrotate: Tensor


def hadamard(size: int) -> Tensor:
    """float32[size, size], symmetric and orthogonal; ValueError unless `size` is a power of two."""
    if size < 1 or size & (size - 1):
        raise ValueError(f"size = {size!r}: a Hadamard matrix here needs a power of two")
    matrix: Tensor = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    scaled: Tensor = matrix / size**0.5
    return scaled


def flat_orthogonal(size: int, seed: int = 0) -> Tensor:
    """float64[size, size]: a Hadamard matrix (all entries of one magnitude) with random signs, where Paley's
    construction and doubling give one of that size, else a random orthogonal matrix.

    A channel that stands out, or a direction, becomes one magnitude everywhere, where a random matrix leaves
    some channels three times that: on SmolLM2 23% less squared rounding error, 30% less with `axes`.
    """
    odd = size // (size & -size)
    order = odd
    while order < size and odd > 1 and not (order % 4 == 0 and _is_prime(order - 1)):
        order *= 2
    if odd > 1 and not (order % 4 == 0 and _is_prime(order - 1)):
        return random_orthogonal(size, seed)
    core = _paley(order - 1) if odd > 1 else torch.ones(1, 1, dtype=torch.float64)
    whole = torch.kron(core / order**0.5, hadamard(size // order).double())
    signs = torch.randint(0, 2, (size, 1), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1.0
    flat: Tensor = signs.double() * whole
    return flat


def _paley(prime: int) -> Tensor:
    """A Hadamard matrix of order prime + 1, for primes that are 3 modulo 4: entries 1 and -1."""
    squares = {number * number % prime for number in range(1, prime)}
    row = torch.tensor([1.0 if number in squares else -1.0 for number in range(prime)], dtype=torch.float64)
    row[0] = 1.0
    matrix = torch.ones(prime + 1, prime + 1, dtype=torch.float64)
    matrix[1:, 0] = -1.0
    for index in range(prime):
        matrix[index + 1, 1:] = row.roll(index)
    return matrix


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, int(number**0.5) + 1))


def random_orthogonal(size: int, seed: int = 0) -> Tensor:
    """float64[size, size], of any size; the same for the same seed and LAPACK."""
    generator = torch.Generator().manual_seed(seed)
    q, r = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    signed: Tensor = q * r.diagonal().sign()
    return signed


def why_not(weights: Mapping[str, Tensor]) -> str | None:
    """Why no rotation can pass through a decoder with these tensors, or None."""
    biased = sorted(name for name in weights if name.endswith("norm.bias"))
    if biased:
        return f"{biased[0]}: a norm with a bias (or a mean) depends on the channels, which a rotation mixes"
    return None


def rotate(
    weights: Mapping[str, Tensor], architecture: Architecture, axes: Tensor | None = None, seed: int = 0,
    *, still: bool = False,
) -> Rotated:  # fmt: skip
    """The same function with a rotated stream and rotated heads; ValueError with the reason of why_not.

    axes[H, H]: an orthonormal basis, columns, whose directions are spread evenly (principal_axes); None: the
    channels as they are. `still`: the heads alone, the stream keeps its channels.
    """
    if (reason := why_not(weights)) is not None:
        raise ValueError(reason)
    a, device = architecture, weights[EMBEDDING].device
    if still:
        stream = torch.eye(a.hidden_size, dtype=torch.float64, device=device)
    else:
        stream = flat_orthogonal(a.hidden_size, seed).to(device)
    if axes is not None:
        stream = axes.double() @ stream
    head = flat_orthogonal(a.head_dim, seed + 1).to(device)

    def wide(name: str) -> Tensor:
        return weights[name].double()

    rotated = {EMBEDDING: (wide(EMBEDDING) @ stream).float()}
    for layer in range(a.num_layers):
        prefix = f"layers.{layer}."
        for norm, reader in (("attention_norm", "attention.qkv"), ("mlp_norm", "gate_up")):
            rotated[f"{prefix}{reader}.weight"] = (
                wide(f"{prefix}{reader}.weight") * wide(f"{prefix}{norm}.weight")
            ) @ stream
            rotated[f"{prefix}{norm}.weight"] = torch.ones(a.hidden_size, device=device)
        for writer in ("output", "down"):
            rotated[f"{prefix}{writer}.weight"] = stream.T @ wide(f"{prefix}{writer}.weight")
            if (bias := f"{prefix}{writer}.bias") in weights:
                rotated[bias] = wide(bias) @ stream
        _rotate_heads(rotated, prefix, weights, a, head)
        rotated |= {name: tensor.float() for name, tensor in rotated.items() if name.startswith(prefix)}
    rotated[FINAL_NORM] = torch.ones(a.hidden_size, device=device)
    kept = {name: tensor.float() for name, tensor in weights.items() if name not in rotated}
    return Rotated(kept | rotated, (stream.T * wide(FINAL_NORM)).float())


def _rotate_heads(
    rotated: dict[str, Tensor], prefix: str, weights: Mapping[str, Tensor], a: Architecture, head: Tensor
) -> None:
    """v's rows and the output projection's columns; v's bias with its rows."""
    first = a.q_width + a.kv_width
    qkv = rotated[f"{prefix}attention.qkv.weight"]
    v = qkv[first:].reshape(a.num_kv_heads, a.head_dim, -1)
    rotated[f"{prefix}attention.qkv.weight"] = torch.cat([qkv[:first], (head.T @ v).flatten(0, 1)])
    if (name := f"{prefix}attention.qkv.bias") in weights:
        bias = weights[name].double()[first:].reshape(a.num_kv_heads, a.head_dim) @ head
        rotated[name] = torch.cat([weights[name].double()[:first], bias.flatten()])
    output = rotated[f"{prefix}output.weight"].reshape(-1, a.num_heads, a.head_dim) @ head
    rotated[f"{prefix}output.weight"] = output.flatten(1)
