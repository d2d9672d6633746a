"""The one rounding rule of the 8-bit types: saturate, then round to nearest even. Shared by weights and by
every oracle.
"""

import torch
from torch import Tensor

LARGEST = {torch.float8_e4m3fn: 448.0}


def quantise(values: Tensor, dtype: torch.dtype) -> Tensor:
    """values (any float type) to `dtype`; what exceeds its range becomes its largest value. bf16 is plain
    rounding.
    """
    if dtype == torch.bfloat16:
        return values.to(dtype)
    largest = LARGEST[dtype]
    return values.float().clamp(-largest, largest).to(dtype)
