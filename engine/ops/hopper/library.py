"""Loads compiled kernel libraries and calls their entry points through ctypes.

Contract: a library is known by its digest, the string that exported graphs carry; `load` makes a file
available under its digest for the rest of the process (as loading code always is; nothing is ever unloaded).
Calls only enqueue on the given stream: they may run under graph capture, on any thread. A failed launch is a
RuntimeError that names the entry point and the CUDA error.
"""

import ctypes
from pathlib import Path
from typing import Any

import torch

ELEMENT_CODES = {torch.float8_e4m3fn: 0, torch.bfloat16: 1, torch.int8: 2}  # numbers.cuh: kCode
ELEMENT_NAMES = {torch.float8_e4m3fn: "E4m3", torch.bfloat16: "Bf16", torch.int8: "Int8"}
_ERRORS = {
    9000: "the library holds no kernel of this shape",
    9001: "the driver has no cuTensorMapEncodeTiled",
}
_LOADED: dict[str, ctypes.CDLL] = {}


class _Call(ctypes.Structure):
    """A C struct whose fields are given as `name: kind` letters: p pointer, i int, f float."""

    KINDS = {"p": ctypes.c_void_p, "i": ctypes.c_int, "f": ctypes.c_float}  # noqa: RUF012 - ctypes wants plain classes


def _fields(spec: str) -> list[tuple[str, Any]]:
    return [(name, _Call.KINDS[kind]) for kind, name in (part.split(":") for part in spec.split())]


class GemmCall(_Call):
    """gemm.cuh: GemmCall."""

    _fields_ = _fields("p:a p:w i:m i:n i:k i:tile i:element i:output i:max_sms i:dependent p:stream")


class ResidualParams(_Call):
    """epilogue_residual.cuh: ResidualParams."""

    _fields_ = _fields(
        "p:x p:x_out p:x8 p:partials p:scales p:before p:row_scales p:block_scales f:inv_width f:eps i:rows"
    )


class GateUpParams(_Call):
    """epilogue_gate_up.cuh: GateUpParams."""

    _fields_ = _fields("p:partials p:h p:scales p:row_scales p:block_scales f:inv_width f:eps i:rows")


class QkvParams(_Call):
    """epilogue_qkv.cuh: QkvParams."""

    _fields_ = _fields(
        "p:partials p:out p:scales p:head_weight p:bias p:cosines p:sines p:positions p:row_scales "
        "f:inv_width f:eps f:head_eps i:num_q i:num_kv i:head_norm"
    )


class ChainCall(ctypes.Structure):
    """chain.cuh: ChainCall."""

    _fields_ = (
        ("a", ctypes.c_void_p * 4),
        ("w", ctypes.c_void_p * 4),
        ("n", ctypes.c_int * 4),
        ("k", ctypes.c_int * 4),
        ("m", ctypes.c_int),
        ("tile", ctypes.c_int),
        ("head_dim", ctypes.c_int),
        ("max_sms", ctypes.c_int),
        ("dependent", ctypes.c_int),
        ("scratch", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("o", ResidualParams),
        ("gate_up", GateUpParams),
        ("down", ResidualParams),
        ("qkv", QkvParams),
    )


class AttentionCall(_Call):
    """attention.cu: AttentionCall."""

    _fields_ = _fields(
        "p:qkv p:constant p:items p:offsets p:out p:scales i:tokens i:constant_rows i:num_q i:num_kv "
        "i:head_dim i:output i:num_blocks i:dependent p:stream"
    )


class PlanCall(_Call):
    """batch.cu: PlanCall."""

    _fields_ = _fields(
        "p:cu_seqlens p:prefixes p:items p:offsets i:samples i:tokens i:num_q i:num_kv i:num_blocks p:stream"
    )


class ClearCall(_Call):
    """batch.cu: ClearCall."""

    _fields_ = _fields("p:data i:bytes p:stream")


class RowsCall(_Call):
    """batch.cu: RowsCall."""

    _fields_ = _fields(
        "p:source p:ids p:x p:x8 p:partials p:scales p:row_scales i:rows i:width i:output p:stream"
    )


def file_name(digest: str) -> str:
    """Of a compiled library."""
    return f"hopper-{digest}.so"


def load(path: Path) -> str:
    """Make a compiled library available; returns its digest, from its name; OSError where it cannot be
    loaded."""
    digest = path.stem.removeprefix("hopper-")
    if digest not in _LOADED:
        _LOADED[digest] = ctypes.CDLL(str(path))
    return digest


def call(library: str, entry: str, *arguments: ctypes.Structure | int) -> None:
    """Call `entry` of a loaded library; structures go by pointer."""
    if library not in _LOADED:
        raise ValueError(f"library {library!r} is not loaded; loaded: {sorted(_LOADED)}")
    passed = [ctypes.byref(a) if isinstance(a, ctypes.Structure) else ctypes.c_int(a) for a in arguments]
    error = getattr(_LOADED[library], entry)(*passed)
    if error:
        meaning = _ERRORS.get(error, "a cudaError, or 9100 + CUresult of the tensor map")
        raise RuntimeError(f"{entry}: error {error} ({meaning})")


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Device address of a tensor, or null."""
    return None if tensor is None or tensor.numel() == 0 else tensor.data_ptr()


def current_stream(tensor: torch.Tensor) -> int:
    """Handle of the tensor's device's current stream."""
    return int(torch.cuda.current_stream(tensor.device).cuda_stream)


def check(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise ValueError unless `tensor` is contiguous, 16-byte aligned, of this shape (-1: any) and type."""
    fits = tensor.dim() == len(shape) and all(
        want in (-1, have) for want, have in zip(shape, tensor.shape, strict=True)
    )
    if not fits or tensor.dtype != dtype:
        raise ValueError(f"{name} is {tuple(tensor.shape)} {tensor.dtype}, wanted {shape} {dtype}")
    if not tensor.is_contiguous() or tensor.data_ptr() % 16:
        raise ValueError(
            f"{name} has strides {tensor.stride()}, address {tensor.data_ptr():#x}: "
            "wanted contiguous, 16-byte aligned"
        )


def check_element(name: str, dtype: torch.dtype) -> None:
    """Raise ValueError unless `dtype` is an element type the kernels multiply."""
    if dtype not in ELEMENT_CODES:
        raise ValueError(f"{name} is {dtype}, wanted one of {list(ELEMENT_CODES)}")
