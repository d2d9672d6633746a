"""Eager decoder -> exported graph -> AOTInductor package: dynamic in tokens and samples, no weights inside.

The package asks for its constants by the decoder's own names; whoever runs it supplies them, so that several
runners share one copy.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from engine.packed import MIN_SAMPLES, BatchBounds

_OPTIONS: dict[str, Any] = {
    "aot_inductor.package_constants_in_so": False,
    "cpp.dynamic_threads": True,  # the number of threads is a lane's, not the building machine's
}


def export_decoder(decoder: nn.Module, bounds: BatchBounds, device: torch.device) -> ExportedProgram:
    """The decoder's graph for 2..bounds samples and tokens, and the padding sample that `pack` may add."""
    # torch 2.11 takes the example's sizes for hints: the largest there are.
    num_samples = max(bounds.samples, MIN_SAMPLES) + 1
    num_tokens = max(bounds.tokens + 1, num_samples)
    cu_seqlens = torch.full((num_samples + 1,), num_tokens, dtype=torch.int32, device=device)
    cu_seqlens[:-1] = torch.arange(num_samples, dtype=torch.int32, device=device)
    tokens = torch.zeros(num_tokens, dtype=torch.int64, device=device)
    token_dim = Dim("tokens", min=MIN_SAMPLES, max=num_tokens)
    border_dim = Dim("borders", min=MIN_SAMPLES + 1, max=num_samples + 1)
    with torch.no_grad(), _expected_warnings():
        return torch.export.export(
            decoder,
            (tokens, tokens.clone(), cu_seqlens),
            dynamic_shapes=({0: token_dim}, {0: token_dim}, {0: border_dim}),
        )


def compile_package(exported: ExportedProgram, path: Path, *, as_traced: bool = False) -> None:
    """Minutes of C++ compilation; writes `path`, a .pt2.

    `as_traced`: no strides but those that kernels of our own were traced with.
    """
    options = _OPTIONS | ({"comprehensive_padding": False} if as_traced else {})
    with torch.no_grad(), _expected_warnings():
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=options)


@contextmanager
def _expected_warnings() -> Iterator[None]:
    """torch warns about names of its own that it still uses while it exports."""
    with warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning):
            warnings.filterwarnings("ignore", category=category)
        yield
