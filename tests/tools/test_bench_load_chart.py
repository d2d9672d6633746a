"""The chart of closed loops: what it draws, and which files it takes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.bench.load_chart import Series, draw, draw_results, read_result, series_of, ticks
from tools.errors import UserError

SVG = "{http://www.w3.org/2000/svg}"


def result() -> dict[str, Any]:
    loops = [
        {"mix": mix, "in_flight": count, "mean_ms": 2.0 * count, "requests_per_s": 100.0 + count}
        for mix in ("mean150", "mean60")
        for count in (4, 1, 8)
    ]
    return {"shape": "s", "precision": "fp8", "kernels": ["hopper"], "gpu": "NVIDIA H200", "loops": loops}


def test_a_line_a_mix_and_a_dot_a_loop(tmp_path: Path) -> None:
    series = series_of(result())
    assert [each.name for each in series] == ["mean150, s fp8 hopper", "mean60, s fp8 hopper"]
    assert series[0].points == ((1, 2.0, 101.0), (4, 8.0, 104.0), (8, 16.0, 108.0))
    draw_results([result(), result()], tmp_path / "chart.svg")
    root = ElementTree.parse(tmp_path / "chart.svg").getroot()
    assert len(root.findall(f"{SVG}polyline")) == 4
    assert len(root.findall(f"{SVG}circle")) == 12
    assert "Closed loops, NVIDIA H200" in [text.text for text in root.iter(f"{SVG}text")]


def test_names_are_escaped() -> None:
    ElementTree.fromstring(draw("a < b & c", [Series("<mix>", ((1, 1.0, 1.0),))]))


@given(st.floats(0.01, 1e7))
def test_ticks_are_few_and_round(most: float) -> None:
    found = ticks(most)
    assert 2 <= len(found) <= 11
    assert found[0] == 0
    assert found[-1] <= most * (1 + 1e-9)
    assert math.isclose(found[1] * 1e6, round(found[1] * 1e6), rel_tol=1e-6)


def test_what_is_no_result(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for text in ("", "words\n", "{}", "[1]", '{"shape": 1}', json.dumps(result())[:-5]):
        path.write_text(text)
        with pytest.raises(UserError, match=r"r\.json: its last line is no result"):
            read_result(path)
    with pytest.raises(UserError, match="No such file"):
        read_result(tmp_path / "none")
    path.write_text("report\n" + json.dumps(result()) + "\n\n")
    assert read_result(path) == result()
    with pytest.raises(UserError, match="hold no closed loops"):
        draw_results([result() | {"loops": []}], tmp_path / "chart.svg")
    with pytest.raises(ValueError, match="no loops"):
        draw("t", [])
