"""The one rounding rule of the 8-bit types: saturate, then round to nearest even. Shared by weights and by
every oracle.

int8 saturates at -128 and 127, as the instruction does; scales are made for 127.
"""

import torch
from torch import Tensor

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
HADAMARD = 32  # points of the transform that int8 inputs of down go through
MIN_SCALE = 1e-12  # of a row of zeros


def quantise(values: Tensor, dtype: torch.dtype) -> Tensor:
    """values (any float type) to `dtype`; what exceeds its range becomes its largest value. bf16 is plain
    rounding.
    """
    if dtype == torch.bfloat16:
        return values.to(dtype)
    if dtype == torch.int8:
        return values.float().round().clamp(-128.0, 127.0).to(dtype)
    largest = LARGEST[dtype]
    return values.float().clamp(-largest, largest).to(dtype)
