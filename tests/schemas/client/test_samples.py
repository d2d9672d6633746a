"""What callers may give for samples, and what they are told of anything else."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from schemas.client.samples import build_request
from schemas.messages import Sample


def test_a_string_a_mapping_and_a_sample() -> None:
    request = build_request("p", ["a", {"title": "b"}, Sample(token_ids=[1])], "id")
    assert request.samples == (Sample(text="a"), Sample(fields={"title": "b"}), Sample(token_ids=[1]))
    assert build_request("p", (text for text in "ab"), None).samples == (Sample(text="a"), Sample(text="b"))


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ("laptop", "samples: should be a list of samples, got 'laptop'"),  # not six of one letter each
        (b"laptop", "samples: should be a list of samples, got b'laptop'"),
        ({"query": "laptop"}, "samples: should be a list of samples, got a map of 1"),  # not one a key
        (Sample(text="a"), "samples: should be a list of samples, got a Sample"),
        (None, "samples: should be a list of samples, got None"),
        ([], "samples: should have at least 1 item, got a list of 0"),
        (["a", 3], "samples[1]: should be a Sample, a string or a mapping of fields, got 3"),
        ([[1, 2]], "samples[0]: should be a Sample, a string or a mapping of fields, got a list of 2"),
        ([None], "samples[0]: should be a Sample, a string or a mapping of fields, got None"),
    ],
)
def test_anything_else_is_named(samples: Any, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        build_request("p", samples, None)
    assert str(caught.value) == text


@pytest.mark.parametrize("name", ["README.md", "engine/beam/README.md"])
def test_calls_for_recall_that_readmes_show(name: str) -> None:
    shown = (Path(__file__).parents[3] / name).read_text(encoding="utf-8")
    calls = re.findall(r'client\.score\("recall".*?\}\)', shown)
    assert calls
    for call in calls:
        tree = ast.parse(call, mode="eval").body
        assert isinstance(tree, ast.Call)
        pipeline, samples = (ast.literal_eval(each) for each in tree.args)
        rest = {each.arg: ast.literal_eval(each.value) for each in tree.keywords if each.arg is not None}
        request = build_request(pipeline, samples, None, **rest)
        assert request.samples[0].fields
        assert set(request.options or {}) <= {"width", "top_n"}
