"""Where a build emulates and rounds: on the device that it is for where that has room, else on the CPU.

Minutes become seconds there. What is found differs by the order of sums, no more.
"""

from __future__ import annotations

import torch

from engine.build.spec import BuildSpec
from engine.models.checkpoint import Checkpoint

CPU = torch.device("cpu")
STUDIED, ROUNDED, COMPARED = 10, 6, 3  # copies of the weights in float32 that a step holds
WORK_BYTES = 8 << 30  # calibration rows of a wide matrix, logits of a judging set


def emulation_device(spec: BuildSpec, checkpoint: Checkpoint, copies: int) -> torch.device:
    """`copies`: of the weights in float32 that are held."""
    device = torch.device(spec.device)
    if device.type != "cuda":
        return CPU
    numbers = sum(tensor.numel() for tensor in checkpoint.weights.values())
    free, _ = torch.cuda.mem_get_info(device)
    return device if free >= 4 * copies * numbers + WORK_BYTES else CPU


def give_back(device: torch.device) -> None:
    """Memory that a step has left: captured graphs take theirs from elsewhere."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
