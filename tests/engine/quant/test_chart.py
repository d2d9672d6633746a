"""The chart is well-formed, whatever the names and values."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from engine.quant.chart import Dot, draw


def test_every_dot_and_the_budget_are_drawn_inside() -> None:
    dots = [Dot("bf16", 1.0, 0.0009), Dot("<e4m3> & more", 1.7, 0.04), Dot("auto", 1.4, 0.0, chosen=True)]
    root = ElementTree.fromstring(draw("Qwen & co", dots, 0.004, "speed <measured>"))
    circles = [each for each in root.iter() if each.tag.endswith("circle")]
    assert len(circles) == 3
    for circle in circles:
        assert 0 < float(circle.attrib["cx"]) < float(root.attrib["width"])
        assert 0 < float(circle.attrib["cy"]) < float(root.attrib["height"])
    assert {"<e4m3> & more", "speed <measured>"} <= {each.text for each in root.iter()}
    draw("one", [Dot("bf16", 1.0, 0.001)], 0.001, "speed")
    with pytest.raises(ValueError, match="dots"):
        draw("none", [], 0.004, "speed")
