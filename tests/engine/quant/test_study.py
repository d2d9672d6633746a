"""A whole study of a tiny decoder: measured plans, a choice within the budget, and what it writes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.quant.budget import Budget
from engine.quant.laboratory import Model
from engine.quant.requests import TextSets
from engine.quant.serving import Serving
from engine.quant.speed import estimate_times
from engine.quant.study import Study, run_study
from engine.quant.texts import Text
from engine.quant.times import Times


@pytest.fixture
def model(make_decoder: Any) -> Model:
    architecture, weights = make_decoder()
    return Model(architecture, weights, weights["embed_tokens.weight"] * 0.1)


@pytest.fixture
def sets(texts: list[Text]) -> TextSets:
    return TextSets(tuple(texts[:24]), tuple(texts[24:34]), tuple(texts[34:]))


@pytest.fixture
def times(model: Model) -> Times:
    return estimate_times(model.architecture)


def test_plans_are_measured_and_one_is_chosen(model: Model, sets: TextSets, times: Times) -> None:
    stages: list[str] = []
    wide = run_study(model, sets, ("e4m3_token", "int8"), Budget(10.0, 10.0), times, stages.append)
    assert [each.name for each in wide.results] == ["bf16", "e4m3_token", "int8", "auto"]
    assert {each.agreement.texts for each in wide.results} == {14}
    assert wide.auto.eight_bits > 0.5  # all that saves time
    used = {scheme for layer in wide.layers for scheme in layer.values()} - {"bf16"}
    assert used == {"int8"}
    assert wide.notes[-1] in {"auto: int8, stream form", "auto: int8, still, heads form"}
    assert json.loads(wide.to_json())["results"][0]["name"] == "bf16"
    assert wide.draw("tiny").startswith("<svg")
    assert any(stage.startswith("sensitivity") for stage in stages)


def test_a_stage_is_told_as_it_begins(model: Model, sets: TextSets, times: Times) -> None:
    """A stage takes the time until the next one: axes were told of after the calibration that they are for,
    and that after the measurement."""
    stages: list[str] = []
    run_study(model, sets, ("int8",), Budget(10.0, 10.0), times, stages.append)
    wanted = [
        "finding the axes of the residual stream",
        "calibrating bf16, int8, stream rotated",
        "measuring int8",
    ]
    assert [stage for stage in stages if stage in wanted] == wanted


def test_a_choice_follows_the_times_that_it_is_given(model: Model, sets: TextSets) -> None:
    """Of a device where eight bits pay in one kind alone, and int8 there is the slower type."""
    saved = {"gate_up": {"e4m3_static": 30.0, "int8": 10.0}, "down": {"e4m3_static": -5.0, "int8": 0.0}}
    found = run_study(
        model,
        sets,
        ("e4m3_static", "int8"),
        Budget(10.0, 10.0),
        Times("measured on a device", 100.0, saved, {}),
    )
    assert {(kind, each) for layer in found.layers for kind, each in layer.items() if each != "bf16"} == {
        ("gate_up", "e4m3_static")
    }
    assert found.auto.speed == pytest.approx(100 / 70)
    assert [each.speed for each in found.results[:2]] == pytest.approx([1.0, 100 / 75])
    assert json.loads(found.to_json())["times"]["saved"]["gate_up"]["int8"] == 10.0
    assert "speed of the layers, measured on a device" in found.draw("tiny")


def test_a_budget_that_only_bf16_holds(model: Model, sets: TextSets, times: Times) -> None:
    found = run_study(model, sets, ("e4m3_static",), Budget(10.0, 1e-4), times)
    assert found.auto.eight_bits < 0.5
    assert found.results[1].agreement.next_token_kl > 1e-4


def test_what_a_model_cannot_have_is_said(model: Model, sets: TextSets, times: Times) -> None:
    biased = replace(model, weights={**model.weights, "norm.bias": torch.zeros(64)})
    found = run_study(biased, sets, ("int8",), Budget(), times)
    assert [each.name for each in found.results] == ["bf16", "auto"]
    assert found.notes[0].startswith("int8: refused, norm.bias")
    assert {scheme for layer in found.layers for scheme in layer.values()} == {"bf16"}


def test_a_pipeline_that_searches_is_searched(model: Model, sets: TextSets, times: Times) -> None:
    searching = TextSets(*(tuple(replace(text, labels=(), search=(6, 2)) for text in part) for part in (
        sets.calibrate, sets.choose, sets.judge,
    )))  # fmt: skip
    wide = Budget(10.0, 10.0, winners=0.0)
    found = run_study(model, searching, ("int8",), wide, times)
    ranks = {each.name: each.agreement.ranks for each in found.results}
    assert ranks["bf16"] is not None
    assert (ranks["bf16"].prompts, ranks["bf16"].width, ranks["bf16"].steps) == (8, 6, 2)
    assert ranks["int8"] is not None
    assert 0.5 < ranks["int8"].winners <= 1
    assert 0 < ranks["bf16"].score_shift < ranks["int8"].score_shift
    assert found.auto.eight_bits > 0.5
    assert run_study(model, searching, ("int8",), Budget(10.0, 10.0, winners=1.0), times).auto.eight_bits < 1


def test_a_search_is_studied_for_the_matrices_that_its_device_narrows(
    model: Model, sets: TextSets, times: Times
) -> None:
    searching = TextSets(*(tuple(replace(text, labels=(), search=(6, 2)) for text in part) for part in (
        sets.calibrate, sets.choose, sets.judge,
    )))  # fmt: skip
    model = replace(model, head=model.head[:96])  # sixteens
    wide, kinds = Budget(10.0, 10.0, winners=0.0), ("gate_up", "down")
    found = {
        narrow: run_study(model, searching, ("e4m3_static",), wide, times, serving=Serving(kinds, narrow))
        for narrow in (False, True)
    }
    for each in found.values():
        used = {kind for layer in each.layers for kind, scheme in layer.items() if scheme != "bf16"}
        assert used == set(kinds)
        assert each.results[1].eight_bits == 0.5
        assert {group.kind for groups in each.sensitivity.values() for group in groups} == set(kinds)
    bf16, eight, auto = zip(*(shifts(each) for each in found.values()), strict=True)
    assert bf16[0] == bf16[1]  # whose head is never narrow
    assert eight[0] != eight[1]
    assert auto[0] != auto[1]
    assert (found[False].narrow_head, found[True].narrow_head) == (False, True)


def test_a_head_that_loses_winners_stays_as_it_is(model: Model, sets: TextSets, times: Times) -> None:
    """Chosen apart from the matrices."""
    searching = TextSets(*(tuple(replace(text, labels=(), search=(12, 3)) for text in part) for part in (
        sets.calibrate, sets.choose, sets.judge,
    )))  # fmt: skip
    model, serving = replace(model, head=model.head[:96] * 30), Serving(("down",), narrow_head=True)

    def study(winners: float) -> Study:
        budget = Budget(10.0, 10.0, winners=winners)
        return run_study(model, searching, ("e4m3_static",), budget, times, serving=serving)

    narrow = study(0.0)
    assert narrow.auto.agreement.ranks is not None
    lost = narrow.auto.agreement.ranks.winners
    wide = study(lost + 1e-6)
    assert wide.auto.eight_bits > 0
    assert not wide.narrow_head
    assert f"auto: the head of searches stays bf16, in 8 bits it keeps {lost:.0%}" in wide.notes[-1]
    unsearched = run_study(model, sets, ("e4m3_static",), Budget(10.0, 10.0), times, serving=serving)
    assert unsearched.notes[-1] == "auto: the head of searches stays bf16, no winners were measured"


def shifts(study: Study) -> list[float]:
    """Of the scores that searches find, by plan."""
    return [each.agreement.ranks.score_shift for each in study.results if each.agreement.ranks]
