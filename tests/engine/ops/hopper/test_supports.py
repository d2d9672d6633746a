"""What is not served is refused with a reason that names the value."""

import dataclasses

import pytest
import torch

from engine.ops.hopper.supports import MATRICES, unsupported
from tools.bench.synthetic import MODELS

PRECISION = dict.fromkeys(MATRICES, torch.float8_e4m3fn)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("element", [torch.float8_e4m3fn, torch.bfloat16, torch.int8])
def test_the_named_models_are_served(model, element):
    assert unsupported(MODELS[model].layer, dict.fromkeys(MATRICES, element)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"head_dim": 96}, "head_dim 96"),
        ({"rotary_dim": 64}, "rotary_dim 64"),
        ({"num_kv": 5}, "16 q heads"),
        ({"hidden": 1000}, "hidden 1000"),
        ({"hidden": 4096}, "hidden 4096"),
        ({"intermediate": 3000}, "intermediate 3000"),
        ({"activation": "gelu"}, "'gelu'"),
        ({"output_bias": True}, "has a bias"),
    ],
)
def test_a_reason_names_the_value(change, reason):
    shape = dataclasses.replace(MODELS["qwen3-0.6b"].layer, **change)
    assert reason in (unsupported(shape, PRECISION) or "")


def test_other_gpus_and_types_are_refused():
    shape = MODELS["qwen3-0.6b"].layer
    assert "(10, 0)" in (unsupported(shape, PRECISION, (10, 0)) or "")
    assert "float16" in (unsupported(shape, PRECISION | {"o": torch.float16}) or "")
    assert "int8 and e4m3" in (unsupported(shape, PRECISION | {"o": torch.int8}) or "")


@pytest.mark.parametrize(
    ("change", "bf16", "reason"),
    [
        ({"intermediate": 3136}, (), "intermediate 3136 is no multiple of 128"),
        ({"intermediate": 3136}, ("gate_up", "down"), None),
        ({"hidden": 2048}, (), None),
    ],
)
def test_what_int8_wants_more(change, bf16, reason):
    shape = dataclasses.replace(MODELS["qwen3-0.6b"].layer, **change)
    found = unsupported(shape, dict.fromkeys(MATRICES, torch.int8) | dict.fromkeys(bf16, torch.bfloat16))
    assert found == reason or (reason is not None and reason in (found or ""))


def test_e4m3_may_read_the_stream_beside_int8():
    shape = MODELS["qwen3-0.6b"].layer
    mixed = {"qkv": torch.float8_e4m3fn, "o": torch.int8, "gate_up": torch.float8_e4m3fn, "down": torch.int8}
    assert unsupported(shape, mixed) is None
    assert unsupported(shape, mixed | {"qkv": torch.bfloat16, "down": torch.bfloat16}) is None
    assert "int8 and e4m3" in (unsupported(shape, mixed | {"down": torch.float8_e4m3fn}) or "")
