"""A device for specs of builds that are acted out on the CPU."""

from __future__ import annotations


class ActedDevice(str):
    """Where tensors go a CPU, to whoever asks a spec for its device CUDA."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == "cuda"

    def __ne__(self, other: object) -> bool:
        return other != "cuda"

    __hash__ = str.__hash__
