"""Launches of every Triton operation at real models' shapes, recorded on CPU tensors without a device."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

BF16, F32, E4M3, I32, I8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int32, torch.int8


@dataclass(frozen=True)
class Launch:
    """One kernel, its arguments by position and its constants and options by name."""

    kernel: Any
    args: tuple[Any, ...]
    constants: dict[str, Any]


@dataclass(frozen=True)
class Case:
    """`module` of engine.ops.portable, the arguments of its launcher."""

    name: str
    module: str
    args: tuple[Any, ...]

    @property
    def needs_e4m3(self) -> bool:
        return (
            self.module == "quantise"
            or any(a in ("static", "token") for a in self.args if isinstance(a, str))
            or any(
                a.dtype == E4M3 or (a.shape == (1,) and a.dtype == F32)
                for a in self.args
                if isinstance(a, torch.Tensor)
            )
        )


# heads, kv heads, head_dim, hidden, intermediate
SHAPES = {
    "qwen3": (16, 8, 128, 1024, 3072),
    "qwen2": (14, 2, 64, 896, 4864),
    "smollm2": (9, 3, 64, 576, 1536),
}


def empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def cases() -> Iterator[Case]:
    scale = torch.ones(1)
    for heads, kv, dim in ((16, 8, 128), (14, 2, 64), (9, 3, 64), (32, 8, 128), (12, 12, 64), (8, 1, 128)):
        yield Case(f"beam_attention-{heads}-{kv}-{dim}", "beam_attention", beams(heads, kv, dim))
    yield from selections()
    yield from integers()
    for name, (heads, kv, dim, hidden, middle) in SHAPES.items():
        x, weight = empty(7, hidden), empty(hidden)
        for mode in ("none", "static", "token"):
            given = scale if mode == "static" else None
            yield Case(f"norm-{name}-{mode}", "norm", (x, x, weight, given, 1e-6, mode))
            yield Case(f"silu-{name}-{mode}", "activation", (empty(7, 2 * middle), given, mode))
        yield Case(f"norm-{name}-alone", "norm", (x, None, weight, None, 1e-6, "none"))
        taken = torch.zeros(9, dtype=torch.int64)
        yield Case(f"norm-{name}-taken", "norm", (x, None, weight, None, 1e-6, "none", taken))
        for given in (None, scale):
            rows = (empty(7, heads * dim), given)
            yield Case(f"quantise-{name}-{given is not None}", "quantise", rows)
        tables = (empty(512, dim // 2, dtype=F32), empty(512, dim // 2, dtype=F32))
        qkv, at = empty(7, (heads + 2 * kv) * dim), torch.zeros(7, dtype=torch.int64)
        norms = (empty(dim), empty(dim)) if name == "qwen3" else (None, None)
        yield Case(f"rotary-{name}", "rotary", (qkv, at, *tables, *norms, heads, kv, 1e-6, 0.1))
        cache = empty(2, 4, 7, kv, dim)
        kept = torch.zeros(1, dtype=torch.int64), cache, cache, heads, kv, 1e-6, 0.1, 1
        yield Case(f"kept_rotary-{name}", "kept_rotary", (qkv, at, *tables, *norms, *kept))
        for kind, sizes in (("", (2, 100)), ("-crowded", (20, 2000))):
            given = kept_beams(heads, kv, dim, tables, norms, *sizes)
            yield Case(f"kept_attention-{name}{kind}", "kept_attention", given)
        q, k = empty(7, heads, dim), empty(7, kv, dim)
        cu, tiles = torch.tensor([0, 3, 7], dtype=I32), empty(2, 4, dtype=I32)
        before = (torch.tensor([[-1, 0], [-1, 0]], dtype=I32), empty(40, kv, dim), empty(40, kv, dim))
        for given in (None, scale):
            args = (q, k, k, tiles, cu, given)
            yield Case(f"attention-{name}-{given is not None}", "attention", args)
            yield Case(f"attention-{name}-{given is not None}-prefixes", "attention", (*args, *before))
        yield Case(f"tiles-{name}", "attention_tiles", (cu, at, 21, 256, 512))
        gate_up = empty(2 * middle, hidden)
        yield Case(f"gate_up-{name}", "gate_up", (x, None, gate_up, None, None))
        yield from split_products(name)
        narrow = x.to(E4M3), gate_up.to(E4M3)
        yield Case(f"gate_up-{name}-static", "gate_up", (narrow[0], scale, narrow[1], scale, scale))
        yield Case(
            f"gate_up-{name}-token", "gate_up", (narrow[0], empty(7, 1, dtype=F32), narrow[1], scale, None)
        )


def integers() -> Iterator[Case]:
    """int8: every matrix, and every producer of its inputs, where a shape makes other code of it."""
    for name in ("qwen3", "qwen2"):
        heads, kv, dim, *_ = SHAPES[name]
        q, k = empty(7, heads, dim), empty(7, kv, dim)
        cu, tiles = torch.tensor([0, 3, 7], dtype=I32), empty(2, 4, dtype=I32)
        attended = (q, k, k, tiles, cu, empty(heads, dtype=F32), None, None, None, "heads")
        yield Case(f"attention-{name}-heads", "attention", attended)
    yield Case("silu-qwen2-blocks", "activation", (empty(7, 2 * SHAPES["qwen2"][4]), None, "blocks"))
    for name in ("qwen3", "smollm2"):
        x, weight = empty(7, SHAPES[name][3]), empty(SHAPES[name][3])
        yield Case(f"norm-{name}-rows", "norm", (x, x, weight, None, 1e-6, "rows"))
    yield from integer_products()


def integer_products() -> Iterator[Case]:
    """linear_int8, and gate_up from and to the other types too."""
    for name, (heads, kv, dim, hidden, middle) in SHAPES.items():
        x, rows, blocks = empty(7, hidden), empty(7, 1, dtype=F32), empty(middle // 128, 7, dtype=F32)
        for kind, outputs, width, scale, residual in (
            ("qkv", (heads + 2 * kv) * dim, hidden, rows, None),
            ("o", hidden, heads * dim, None, x),
            ("down", hidden, middle, blocks, x),
        ):
            operands = empty(7, width, dtype=I8), scale, empty(outputs, width, dtype=I8)
            bias = empty(outputs) if name == "qwen2" and kind == "qkv" else None
            args = (*operands, empty(-(-outputs // 128), dtype=F32), bias, residual, kind == "down")
            if name == "qwen3" or bias is not None or (name == "smollm2" and kind == "o"):
                yield Case(f"linear_int8-{name}-{kind}", "linear_int8", args)
        weight, one = empty(2 * middle, hidden), torch.ones(1)
        narrow = x.to(I8), rows, weight.to(I8), empty(middle // 64, dtype=F32)
        if name != "qwen2":
            yield Case(f"gate_up-{name}-int8-blocks", "gate_up", (*narrow, None, True))
        if name == "qwen3":
            yield Case(f"gate_up-{name}-int8", "gate_up", (*narrow, None))
            yield Case(f"gate_up-{name}-int8-static", "gate_up", (*narrow, one))
            yield Case(f"gate_up-{name}-blocks", "gate_up", (x, None, weight, None, None, True))
            e4m3 = x.to(E4M3), rows, weight.to(E4M3), one, None, True
            yield Case(f"gate_up-{name}-token-blocks", "gate_up", e4m3)


def split_products(name: str) -> Iterator[Case]:
    """Of one request's rows, of more, and of a few that have tiles of their own."""
    heads, _, dim, hidden, middle = SHAPES[name]
    weight, scale = empty(hidden), torch.ones(1)
    for rows in (100, 200, *((30,) if name == "smollm2" else ())):
        x, down, output = empty(rows, hidden), (rows, middle), (rows, heads * dim)
        narrow = empty(*down, dtype=E4M3), scale, empty(hidden, middle, dtype=E4M3), scale
        wide = empty(*output), None, empty(hidden, heads * dim), None
        yield Case(f"product_norm-{name}-{rows}-e4m3", "product_norm", (*narrow, x, weight, scale, 1e-6))
        yield Case(f"product_norm-{name}-{rows}", "product_norm", (*wide, x, weight, None, 1e-6))


def beams(heads: int, kv: int, dim: int) -> tuple[torch.Tensor, ...]:
    """Two prompts of 50 beams each, four slots, as boundgen::tiled_beam_attention takes them."""
    q, k, v = empty(100, heads + 2 * kv, dim).split([heads, kv, kv], dim=1)
    prompts, suffixes = empty(2, 7, kv, dim), empty(2, 4, 100, kv, dim)
    cu = torch.tensor([0, 3, 7], dtype=I32)
    return (q, k, v, *prompts, *suffixes, empty(4, 100, dtype=torch.int64), cu)


def kept_beams(
    heads: int, kv: int, dim: int, tables: Any, norms: Any, prompts: int = 2, rows: int = 100
) -> tuple[Any, ...]:
    """The same from the projection on, in the second of two layers."""
    qkv, at, slot = empty(rows, (heads + 2 * kv) * dim), *torch.zeros(2, rows, dtype=torch.int64)
    suffixes, kept = empty(2, 2, 4, rows, kv, dim), empty(2, 2, 1, 3 * prompts, kv, dim)
    ancestors, cu = empty(4, rows, dtype=torch.int64), 3 * torch.arange(prompts + 1, dtype=I32)
    return (
        qkv, at, *tables, *norms, slot[:1], *suffixes, *kept, ancestors, cu, heads, kv, 1e-6, 1, 512,
    )  # fmt: skip


def selections() -> Iterator[Case]:
    """Two requests: first expansions and later ones, an 8-bit product and its pool, legal sequences that may
    end."""
    for beams, count, legal in ((1, 100, False), (100, 328, False), (1, 1, True), (512, 1564, True)):
        logits, scores = (torch.empty(2, beams, *more, device="meta") for more in ((151936,), ()))
        narrow = logits.bfloat16(), (None if beams == 1 else scores)
        given = (*narrow, scores, None, None, None, None, 0, 0, count)
        if legal:
            edges = torch.empty(1000, dtype=I32, device="meta")
            given = (logits, None, scores, scores.bool(), scores.long(), edges, edges, 30_000, 7, count)
        yield Case(f"beam_select-{beams}-{count}-{legal}", "beam_select", given)
    yield from rescorings()
    best, beams = empty(2, 100, dtype=F32), empty(2, 100, dtype=torch.int64)
    flags, widths, edges = empty(2, dtype=torch.bool), empty(2, dtype=torch.int64), empty(9, dtype=I32)
    before = (best, beams, beams, flags, empty(2, 100, 5, dtype=torch.int64), beams)
    plain = (None, None, flags, widths, None, None, None, None, 7, 2)
    legal = (beams.bool(), beams, flags, widths, edges, edges, edges, widths, 7, 2)
    yield Case("beam_follow-plain", "beam_follow", (*before, *plain))
    yield Case("beam_follow-legal", "beam_follow", (*before, *legal))
    ancestors, tokens = empty(4, 200, dtype=torch.int64), empty(2, 100, 5, dtype=torch.int64)
    for step in (0, 1, 2):
        given = (ancestors if step else None, beams, tokens, 4, step)
        yield Case(f"beam_advance-{step}", "beam_advance", given)
    yield Case("beam_positions", "beam_positions", (torch.tensor([0, 3, 7], dtype=I32), 4, 99))
    yield Case("beam_follow-1", "beam_follow", (*before, *legal[:-2], 1, 1))


def rescorings() -> Iterator[Case]:
    """Two requests: a first expansion, later ones of a head's row in one block and in two, and everything."""
    for beams, hidden, pool, legal in ((1, 896, 328, False), (100, 8192, 328, False), (512, 576, 1564, True)):
        pairs = torch.empty(2, pool, device="meta")
        state = torch.empty(2, beams, device="meta")
        widths, places = torch.empty(2, dtype=torch.int64, device="meta"), pairs.long()
        rows = (torch.empty(*size, hidden, dtype=BF16, device="meta") for size in ((2, beams), (151936,)))
        tree = (None,) * 4
        if legal:
            edges = torch.empty(1000, dtype=I32, device="meta")
            tree = state.bool(), state.long(), edges, edges
        given = (
            *rows, pairs, places, places, state, widths.bool(), state, widths, *tree,
            151936, 7, 3, 28, 128, 100,
        )  # fmt: skip
        yield Case(f"beam_rescore-{beams}-{hidden}-{legal}", "beam_rescore", given)


class _Recorder:
    def __init__(self, kernel: Any, found: list[Launch]) -> None:
        self.kernel, self.found = kernel, found

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **constants: self.found.append(Launch(self.kernel, args, constants))


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Callable[[Case, int], list[Launch]]:
    """What a case's launcher would launch on a device of that capability."""

    def run(case: Case, arch: int) -> list[Launch]:
        module = importlib.import_module(f"engine.ops.portable.{case.module}")
        monkeypatch.setattr(module, "capability", lambda _: arch, raising=False)
        monkeypatch.setattr(module, "starts_early", lambda _: arch >= 90, raising=False)
        found: list[Launch] = []
        if hasattr(module, "wrap_triton"):
            monkeypatch.setattr(module, "wrap_triton", lambda kernel: _Recorder(kernel, found))
            module._launch.launch(*case.args)
        else:  # an operation that Python launches
            for name in getattr(module, "KERNELS", ("kernel",)):
                monkeypatch.setattr(module, name, _Recorder(getattr(module, name), found))
            module.launch(*case.args)
        return found

    return run


@pytest.fixture
def poison() -> Iterator[None]:
    """Everything that torch.empty returns is NaN, or its integers' maximum, until it is written."""
    torch.manual_seed(0)
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = before


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", list(cases()), ids=lambda case: case.name)
