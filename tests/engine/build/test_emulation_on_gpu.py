"""Emulation and rounding on a device against the CPU's: the same plans' answers, matrices as near."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.build.compensated import compensate_e4m3
from engine.build.compiler import require_compiler
from engine.build.integers import Integers, round_decoder
from engine.build.native import build_native, default_cache
from engine.models.plan import HopperKernels, Plan, choose_plan
from engine.models.plan import Precision as PlanPrecision
from engine.packed import pack
from engine.quant.budget import Budget
from engine.quant.emulation import EmulatedDecoder
from engine.quant.integers import multiply
from engine.quant.laboratory import Model
from engine.quant.requests import TextSets
from engine.quant.speed import estimate_times
from engine.quant.study import run_study
from engine.quant.texts import Text
from engine.runtime.native import load_native
from random_decoders import make_architecture, random_weights

pytestmark = pytest.mark.gpu

ARCHITECTURE = make_architecture(hidden_size=256, intermediate_size=512, qk_norm=True)
SAMPLES = [[5, 9, 2], [7] * 40 + list(range(30)), [1], list(range(60))]


@pytest.fixture(autouse=True)
def native() -> None:
    """As in a build: attention on the device is the library's."""
    load_native(build_native(require_compiler(), default_cache()))


def draw_texts() -> list[Text]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, 64, (60, 40), generator=generator).tolist()
    return [Text(tuple(each), (3, 4), prefix=2) for each in ids]


def plan(precision: PlanPrecision, path: str) -> Plan:
    kernels = HopperKernels("digest") if path == "hopper" else HopperKernels(None, "none")
    return choose_plan(ARCHITECTURE, precision, arch=90, static=True, kernels=kernels)


def run(weights: dict[str, Tensor], unrotate: Tensor | None) -> Tensor:
    packed = pack(SAMPLES)
    with torch.inference_mode():
        return EmulatedDecoder(ARCHITECTURE, weights, unrotate).run(packed, {}).cpu()


def error(found: Tensor, want: Tensor) -> float:
    return float((found - want).norm() / want.norm())


def stands_for(made: Integers) -> dict[str, Tensor]:
    """The rotated decoder with what o's int8 matrices stand for, the rest as it is."""
    found = dict(made.weights)
    for index, layer in made.layers.items():
        matrix = layer.matrices["qkv"]
        scale = matrix.scales.repeat_interleave(128)[: len(matrix.values), None]
        found[f"layers.{index}.attention.qkv.weight"] = matrix.values.float() * scale
    return found


def test_sums_are_exact_there() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((3, 40, 5), (45, 3072, 24), (300, 128, 64)):
        rows, columns, outputs = shape
        values, weight = (
            torch.randint(-128, 128, (n, columns), generator=generator, dtype=torch.int8)
            for n in (rows, outputs)
        )
        found = multiply(values.cuda(), torch.ones(1, 1).cuda(), weight.cuda(), torch.ones(outputs).cuda())
        assert torch.equal(found.cpu(), (values.long() @ weight.long().T).float())


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("path", ["hopper", "portable"])
def test_int8_is_as_near(path: str, trusted: bool) -> None:
    weights, texts = random_weights(ARCHITECTURE), draw_texts()[:16]
    want = run(weights, None)
    made = [
        round_decoder(
            ARCHITECTURE, weights, plan("int8", path), texts,
            trusted=trusted, say=lambda _: None, device=torch.device(device),
        )
        for device in ("cpu", "cuda")
    ]  # fmt: skip
    assert {tensor.device.type for tensor in made[1].weights.values()} == {"cuda"}
    exact = [error(run(each.weights, each.unrotate), want) for each in made]
    assert max(exact) < 1e-4  # a rotation changes nothing
    lost = [error(run(stands_for(each), each.unrotate), want) for each in made]
    assert lost[1] == pytest.approx(lost[0], rel=0.25)
    assert made[0].plan == made[1].plan
    if not trusted:  # not rounded after anything: only what falls on a border differs
        for index, layer in made[0].layers.items():
            for name, matrix in layer.matrices.items():
                theirs = made[1].layers[index].matrices[name]
                assert float((matrix.values != theirs.values.cpu()).float().mean()) < 0.01
                torch.testing.assert_close(matrix.scales, theirs.scales.cpu(), rtol=1e-4, atol=0)


def test_e4m3_is_as_near() -> None:
    weights, texts = random_weights(ARCHITECTURE), draw_texts()[:16]
    want = run(weights, None)
    lost = []
    for device in ("cpu", "cuda"):
        changed, _ = compensate_e4m3(
            ARCHITECTURE, weights, plan("fp8", "portable"), texts, torch.device(device)
        )
        lost.append(error(run(weights | {name: each.cpu() for name, each in changed.items()}, None), want))
    assert lost[1] == pytest.approx(lost[0], rel=0.25)


def test_a_study_says_the_same() -> None:
    texts, weights = draw_texts(), random_weights(ARCHITECTURE)
    head = torch.randn(64, 256, generator=torch.Generator().manual_seed(1)) * 0.1
    sets = TextSets(tuple(texts[:20]), tuple(texts[20:40]), tuple(texts[40:]))
    studies = [
        run_study(
            Model(ARCHITECTURE, {name: x.to(device) for name, x in weights.items()}, head.to(device)), sets,
            ("e4m3_static", "int8"), Budget(9, 9), estimate_times(ARCHITECTURE),
        )
        for device in ("cpu", "cuda")
    ]  # fmt: skip
    for one, other in zip(studies[0].results, studies[1].results, strict=True):
        assert (one.name, one.eight_bits) == (other.name, other.eight_bits)
        expected = one.agreement.next_token_kl
        assert other.agreement.next_token_kl == pytest.approx(expected, rel=0.5, abs=1e-5)
