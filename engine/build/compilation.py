"""Eager decoder -> exported graph -> AOTInductor package: dynamic in tokens and samples, no weights inside.

The package asks for its constants by the decoder's own names; whoever runs it supplies them, so that several
runners share one copy.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from engine.build.array_names import lasting_array_names
from engine.disk import writing
from engine.packed import MIN_SAMPLES, NO_PREFIX, BatchBounds

_OPTIONS: dict[str, Any] = {
    "aot_inductor.package_constants_in_so": False,
    "cpp.dynamic_threads": True,  # the number of threads is a lane's, not the building machine's
    # It takes a view of a single value (small_vectors) for a tensor to be filled in anew at every run, by a
    # kernel of its own: three a layer.
    "joint_graph_constant_folding": False,
}


def export_decoder(
    decoder: nn.Module, bounds: BatchBounds, device: torch.device, no_constant: Tensor | None = None
) -> ExportedProgram:
    """The decoder's graph for 2..bounds segments and tokens, and the padding segment that `pack` may add.

    With `no_constant` (engine.models.decoder), an example of keys and values, the graph takes prefixes.
    """
    # torch 2.11 takes the example's sizes for hints: the largest there are.
    num_segments = max(bounds.segments, MIN_SAMPLES) + 1
    num_tokens = max(bounds.tokens + 1, num_segments)
    cu_seqlens = torch.full((num_segments + 1,), num_tokens, dtype=torch.int32, device=device)
    cu_seqlens[:-1] = torch.arange(num_segments, dtype=torch.int32, device=device)
    tokens = torch.zeros(num_tokens, dtype=torch.int64, device=device)
    token_dim = Dim("tokens", min=MIN_SAMPLES, max=num_tokens)
    border_dim = Dim("borders", min=MIN_SAMPLES + 1, max=num_segments + 1)
    inputs: list[Tensor] = [tokens, tokens.clone(), cu_seqlens]
    shapes: list[dict[int, Dim]] = [{0: token_dim}, {0: token_dim}, {0: border_dim}]
    if no_constant is not None:
        prefixes = torch.tensor([NO_PREFIX] * num_segments, dtype=torch.int32, device=device)
        longest = max(bounds.tokens_per_sample, MIN_SAMPLES + 1)
        inputs += [prefixes, no_constant[:, :, :1].expand(-1, -1, longest, -1, -1).contiguous()]
        shapes.append({0: Dim("prefixes", min=MIN_SAMPLES, max=num_segments)})
        shapes.append({2: Dim("constant", min=MIN_SAMPLES, max=longest)})
    with torch.no_grad(), expected_warnings():
        return torch.export.export(decoder, tuple(inputs), dynamic_shapes=tuple(shapes))


def compile_package(exported: ExportedProgram, path: Path, *, as_traced: bool = False) -> None:
    """Minutes of C++ compilation; writes `path`, a .pt2.

    `as_traced`: no strides but those that kernels of our own were traced with. OSError with `path` where it
    cannot be written: torch would end the process there, so it writes to memory (no weights are inside).
    """
    made = io.BytesIO()
    options = _OPTIONS | ({"comprehensive_padding": False} if as_traced else {})
    with torch.no_grad(), expected_warnings(), lasting_array_names():
        torch._inductor.aoti_compile_and_package(exported, package_path=made, inductor_configs=options)
    with writing(path):
        path.write_bytes(made.getbuffer())


@contextmanager
def expected_warnings() -> Iterator[None]:
    """torch warns about names of its own that it still uses while it exports."""
    with warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning):
            warnings.filterwarnings("ignore", category=category)
        yield
