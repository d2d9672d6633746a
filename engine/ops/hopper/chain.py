"""o, gate_up, down and the next layer's qkv as one launch: the same arithmetic as the four ops, without the
gaps between them.

    y, x8, p  = residual(a, o, x)        h = gate_up(x8 or y, p)        z, z8, p2 = residual(h, down, y)
    qkv(z8 or z, p2)

A tile waits for its own rows of the product before it. Any number of these may run at once: tiles are dealt
by tickets (the argument is in csrc/chain.cuh). All four matrices must share one element type, and in int8 the
scales of rows must be predicted; otherwise the ops are launched one by one. `scratch` is consumed: row
`index` must be zero, as hopper_scratch leaves it once a forward pass, and serves one launch.
"""

import ctypes

import torch
from torch import Tensor

from engine.ops.hopper import tiles
from engine.ops.hopper.gate_up import gate_up_reference
from engine.ops.hopper.library import (
    ELEMENT_NAMES,
    ChainCall,
    GateUpParams,
    QkvParams,
    ResidualParams,
    call,
    check,
    check_element,
    current_stream,
    pointer,
)
from engine.ops.hopper.products import BLOCK_COLUMNS, check_scales, has_factor
from engine.ops.hopper.qkv import qkv_reference
from engine.ops.hopper.residual import residual_reference
from engine.ops.hopper.scratch import PHASES, num_counters

Outputs = tuple[Tensor, Tensor, Tensor]


@torch.library.custom_op("boundgen::hopper_chain", mutates_args=(), device_types="cuda")
def chain(  # noqa: PLR0913, PLR0917 - an exported graph passes tensors and numbers, not objects
    library: str,
    a: Tensor,
    x: Tensor,
    o: Tensor,
    o_scales: Tensor,
    gate_up: Tensor,
    gate_up_scales: Tensor,
    down: Tensor,
    down_scales: Tensor,
    qkv: Tensor,
    qkv_scales: Tensor,
    head_weight: Tensor,
    bias: Tensor | None,
    cosines: Tensor,
    sines: Tensor,
    positions: Tensor,
    work: Tensor,
    index: int,
    num_q: int,
    num_kv: int,
    eps: float,
    head_eps: float,
    max_sms: int = 0,
    before: Tensor | None = None,
) -> Outputs:
    """a [T, num_q D], x bf16[T, H], the matrices and scales of the four ops, work int32 of hopper_scratch,
    before: partials of x, in int8 -> (z bf16[T, H], qkv bf16[T, N], partials of z).
    """
    check_element("a", a.dtype)
    element, (m, attended), hidden = a.dtype, a.shape, x.shape[1]
    intermediate, head_dim = gate_up.shape[0] // 2, head_weight.shape[1]
    width = (num_q + 2 * num_kv) * head_dim
    check("a", a, (m, num_q * head_dim), element)
    check("x", x, (m, hidden), torch.bfloat16)
    matrices = {
        "o": (hidden, attended),
        "gate_up": (2 * intermediate, hidden),
        "down": (hidden, intermediate),
        "qkv": (width, hidden),
    }
    for (name, shape), w in zip(matrices.items(), (o, gate_up, down, qkv), strict=True):
        check(name, w, shape, element)
    for scales, w in ((o_scales, o), (gate_up_scales, gate_up), (down_scales, down), (qkv_scales, qkv)):
        check_scales(scales, w)
        if not has_factor(scales, w):
            raise ValueError(f"scales has {scales.shape[0]} values: a chain wants a factor in each")
    narrow, blocks = element != torch.bfloat16, element == torch.int8
    if blocks:
        if before is None:
            raise ValueError("before is None, wanted the sums of x, for int8")
        check("before", before, (m, tiles.PARTIALS), torch.float32)
    check("head_weight", head_weight, (2, head_dim), torch.float32)
    if bias is not None:
        check("bias", bias, (width,), torch.float32)
    for name, table in (("cosines", cosines), ("sines", sines)):
        check(name, table, (-1, head_dim // 2), torch.bfloat16)
    check("positions", positions, (m,), torch.int64)
    check("work", work, (-1, num_counters(m)), torch.int32)
    if (
        not tiles.residual_widths(hidden)
        or hidden % 32
        or intermediate % (BLOCK_COLUMNS if blocks else 64)
        or head_dim not in (64, 128)
        or num_q % num_kv
    ):
        raise ValueError(
            f"hidden {hidden}, intermediate {intermediate}, head size {head_dim}, heads {num_q}/{num_kv}: "
            "see supports.unsupported"
        )
    middle, z, fused = torch.empty_like(x), torch.empty_like(x), x.new_empty((m, width))
    middle8, z8 = (x.new_empty(x.shape if narrow else (0,), dtype=element) for _ in range(2))
    middle_rows, z_rows = (x.new_empty(m if blocks else 0, dtype=torch.float32) for _ in range(2))
    h_blocks = x.new_empty((intermediate // BLOCK_COLUMNS, m) if blocks else (0,), dtype=torch.float32)
    h, sums, z_sums = (
        x.new_empty((m, intermediate), dtype=element),
        *(x.new_empty((m, tiles.PARTIALS), dtype=torch.float32) for _ in range(2)),
    )
    operands = (a, middle8 if middle8.numel() else middle, h, z8 if z8.numel() else z)
    weights = (o, gate_up, down, qkv)
    rope, norm = (cosines, sines, positions), (1 / hidden, eps, m)
    arguments = ChainCall(
        (ctypes.c_void_p * PHASES)(*map(pointer, operands)),
        (ctypes.c_void_p * PHASES)(*map(pointer, weights)),
        (ctypes.c_int * PHASES)(*(w.shape[0] for w in weights)),
        (ctypes.c_int * PHASES)(*(w.shape[1] for w in weights)),
        m,
        tiles.chain_width(m, hidden),
        head_dim,
        max_sms,
        1,
        work.data_ptr() + 4 * work.shape[1] * index,
        current_stream(a),
        ResidualParams(*map(pointer, (x, middle, middle8, sums, o_scales, before, middle_rows, None)), *norm),
        GateUpParams(*map(pointer, (sums, h, gate_up_scales, middle_rows, h_blocks)), *norm),
        ResidualParams(*map(pointer, (middle, z, z8, z_sums, down_scales, sums, z_rows, h_blocks)), *norm),
        QkvParams(
            *map(pointer, (z_sums, fused, qkv_scales, head_weight, bias, *rope, z_rows)),
            1 / hidden,
            eps,
            head_eps,
            num_q,
            num_kv,
            int(head_eps >= 0),
        ),
    )
    call(library, f"chain_{ELEMENT_NAMES[element]}", arguments)
    return z, fused, z_sums


@chain.register_fake
def _(  # noqa: PLR0913, PLR0917
    library: str,
    a: Tensor,
    x: Tensor,
    o: Tensor,
    o_scales: Tensor,
    gate_up: Tensor,
    gate_up_scales: Tensor,
    down: Tensor,
    down_scales: Tensor,
    qkv: Tensor,
    qkv_scales: Tensor,
    head_weight: Tensor,
    bias: Tensor | None,
    cosines: Tensor,
    sines: Tensor,
    positions: Tensor,
    work: Tensor,
    index: int,
    num_q: int,
    num_kv: int,
    eps: float,
    head_eps: float,
    max_sms: int = 0,
    before: Tensor | None = None,
) -> Outputs:
    sums = x.new_empty((x.shape[0], tiles.PARTIALS), dtype=torch.float32)
    return torch.empty_like(x), x.new_empty((x.shape[0], qkv.shape[0])), sums


@chain.register_kernel("cpu")
def chain_reference(  # noqa: PLR0913, PLR0917
    library: str,
    a: Tensor,
    x: Tensor,
    o: Tensor,
    o_scales: Tensor,
    gate_up: Tensor,
    gate_up_scales: Tensor,
    down: Tensor,
    down_scales: Tensor,
    qkv: Tensor,
    qkv_scales: Tensor,
    head_weight: Tensor,
    bias: Tensor | None,
    cosines: Tensor,
    sines: Tensor,
    positions: Tensor,
    work: Tensor,
    index: int,
    num_q: int,
    num_kv: int,
    eps: float,
    head_eps: float,
    max_sms: int = 0,
    before: Tensor | None = None,
) -> Outputs:
    """The oracle: the four oracles in a row."""
    element = a.dtype
    middle, middle8, sums, steps = residual_reference(
        library, a, o, o_scales, x, element, before=before, eps=eps
    )
    operand = middle8 if middle8.numel() else middle
    h, blocks = gate_up_reference(
        library, operand, sums, gate_up, gate_up_scales, eps, element, row_scales=steps
    )
    z, z8, z_sums, steps = residual_reference(
        library, h, down, down_scales, middle, element,
        block_scales=blocks if element == torch.int8 else None, before=sums, eps=eps,
    )  # fmt: skip
    rope = (cosines, sines, positions)
    operand = z8 if z8.numel() else z
    heads = (num_q, num_kv, eps, head_eps)
    fused = qkv_reference(
        library, operand, z_sums, qkv, qkv_scales, head_weight, bias, *rope, *heads, row_scales=steps
    )
    return z, fused, z_sums
