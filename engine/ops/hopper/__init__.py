"""Kernels for Hopper GPUs (sm_90a): an 8-bit or bf16 decoder layer in five launches, as torch custom ops
`boundgen::hopper_*`.

A layer is attention -> residual (o) -> gate_up -> residual (down) -> qkv of the next layer. RMSNorm has no
kernel: its weight is folded into the next matrix, and its row factor is applied by the next product from sums
of squares that `residual` leaves.

Builds choose them for compute capability 9.0 (engine.models.plan); `stack` is the op that a package holds.
"""
