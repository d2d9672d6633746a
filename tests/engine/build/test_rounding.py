"""A build on texts rounds once: its package is of what the study made, bit for bit as if made for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import engine.build.accuracy
import engine.build.cuda_package
from acted_device import ActedDevice
from auto_builds import calibration, save_model
from engine.build import BuildSpec, build_artifact
from engine.build.integers import take_rounded
from engine.build.rounding import Rounding
from engine.models.plan import choose_plan
from engine.packed import BatchBounds
from engine.quant.budget import Budget
from engine.quant.preparation import Prepared
from engine.quant.speed import estimate_times
from random_decoders import make_architecture

BOUNDS = BatchBounds(samples=8, tokens=256, tokens_per_sample=64)


class StopError(Exception):
    pass


@pytest.mark.parametrize(("precision", "scaling"), [("int8", "static"), ("fp8", "static"), ("fp8", "token")])
def test_the_package_is_of_what_was_studied(
    precision: str, scaling: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Tensor]] = []
    taken: list[Prepared | None] = []

    class Decoder:
        @classmethod
        def from_weights(cls, _: Any, prepared: dict[str, Tensor], *__: Any) -> None:
            made.append(prepared)
            raise StopError

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    monkeypatch.setattr(engine.build.cuda_package, "CudaDecoder", Decoder)
    monkeypatch.setattr(engine.build.accuracy, "find_times", lambda _, a, *__: estimate_times(a))
    checkpoint = save_model(tmp_path / "checkpoint", 1, hidden_size=128, intermediate_size=256)
    spec = BuildSpec(
        checkpoint, tmp_path / "out", "tiny", dtype="bfloat16", bounds=BOUNDS, kernels="portable",
        scaling=scaling, calibrate=calibration(tmp_path, Budget(9, 9)),
    )  # fmt: skip
    for key, value in (("device", ActedDevice("cpu")), ("precision", precision)):
        object.__setattr__(spec, key, value)  # a spec refuses them without a device
    stages: list[list[str]] = []
    take = Rounding.take

    def watch(rounding: Rounding) -> Prepared | None:
        taken.append(take(rounding))
        return taken[-1]

    for hand_over in (watch, lambda _: None):
        monkeypatch.setattr(Rounding, "take", hand_over)
        stages.append([])
        with pytest.raises(StopError):
            build_artifact(spec, stages[-1].append)
    assert [each is not None for each in taken] == [True]
    assert ["rounding matrices" in each for each in stages] == [False, True]
    one, other = made
    assert set(one) == set(other)
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype
        assert not tensor.is_inference()  # torch.export may not take such
        assert torch.equal(tensor.float(), other[name].float()), name
    wanted = torch.int8 if precision == "int8" else torch.float8_e4m3fn
    assert one["layers.0.gate_up.weight"].dtype == wanted


def test_nothing_is_held_that_was_taken() -> None:
    rounding = Rounding(made=[Prepared("plain", {}, None, {})])
    assert rounding.take() is not None
    assert rounding.take() is None
    assert not rounding.made


def test_matrices_of_another_form_or_scheme_are_made_anew() -> None:
    plan = choose_plan(
        make_architecture(hidden_size=128, intermediate_size=256), "int8", arch=89, static=True
    )
    one = torch.eye(128)
    assert take_rounded(plan, None, "stream") is None
    assert take_rounded(plan, Prepared("heads", {}, one, {"int8_exact": {}}), "stream") is None
    assert take_rounded(plan, Prepared("stream", {}, one, {"int8": {}}), "stream") is None
