"""At which sizes and in which layers a search's gate is compared."""

from dataclasses import replace

from engine.beam.bounds import BeamBounds
from engine.build.gate_choice import REQUESTS, Measure, batches_to_compare, choose_ways
from engine.models.plan import LayerPlan, Plan
from engine.packed import BatchBounds

BF16 = LayerPlan("bf16", "bf16", "bf16", "bf16", fused_gate_up=True)
FP8 = LayerPlan("fp8", "fp8", "fp8", "fp8", fused_gate_up=True)


def test_steps_and_prompts_of_each_batch():
    batches = batches_to_compare(BatchBounds(32, 16384, 512), BeamBounds(100, 4, 32))
    assert batches == [(100 * count, 256 * count) for count in REQUESTS]


def test_sizes_stay_within_small_bounds():
    assert batches_to_compare(BatchBounds(2, 24, 12), BeamBounds(1, 1, 2)) == [(2, 6), (4, 12)]


def measured(times: dict[tuple[bool, str], float], seen: list[int]):
    """Acts the device out: microseconds by way and by the gate's precision; `seen` gets the layers."""

    def measure(tried: Plan) -> Measure:
        def time(place: int) -> list[float]:
            seen.append(place)
            layer = tried.layers[place]
            return [times[layer.fused_gate_up, layer.gate_up]] * 2

        return time

    return measure


def test_layers_of_one_kind_are_measured_once():
    seen: list[int] = []
    plan = Plan((FP8, FP8), "static", notes=("before",))
    found = choose_ways(plan, measured({(True, "fp8"): 10, (False, "fp8"): 8}, seen))
    assert [layer.fused_gate_up for layer in found.layers] == [False, False]
    assert found.notes == (
        "before",
        "beams: projection and gate apart, 1.25 times as fast as in one kernel",
    )
    assert seen == [0, 0]


def test_the_first_layer_does_not_decide_for_layers_of_another_precision():
    seen: list[int] = []
    plan = Plan((BF16, FP8, FP8, replace(FP8, output="bf16"), BF16), "static")
    times = {(True, "bf16"): 10, (False, "bf16"): 5, (True, "fp8"): 4, (False, "fp8"): 6}
    found = choose_ways(plan, measured(times, seen))
    assert [layer.fused_gate_up for layer in found.layers] == [False, True, True, True, False]
    assert [replace(layer, fused_gate_up=True) for layer in found.layers] == list(plan.layers)
    assert found.notes == (
        "beams: projection and gate (bf16, then bf16) apart, 2.00 times as fast as in one kernel",
        "beams: projection and gate (fp8, then fp8) in one kernel, 1.50 times as fast as apart",
    )
    assert seen == [0, 1, 0, 1]


def test_where_there_is_one_way_alone_nothing_is_measured():
    plan = Plan((replace(BF16, fused_gate_up=False),), "static")
    assert choose_ways(plan, measured({}, [])) is plan
