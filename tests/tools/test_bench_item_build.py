"""The benchmark of item files: its steps on a small one, and on ten million where BOUNDGEN_LARGE is set."""

from __future__ import annotations

import json
import os

import pytest

from tools.bench.item_build import NUM_TOKENS, measure

large = pytest.mark.skipif(
    "BOUNDGEN_LARGE" not in os.environ, reason="minutes and 4 GB: BOUNDGEN_LARGE=1 runs it"
)


@pytest.mark.parametrize("num_items", [20_000, pytest.param(10_000_000, marks=[pytest.mark.slow, large])])
def test_seconds_and_bytes(num_items: int):
    found = measure(num_items)
    print(json.dumps(found))  # noqa: T201 - a measurement is there to be read
    nodes = found["nodes"]
    assert num_items < nodes <= NUM_TOKENS * num_items + 1
    assert found["device_bytes"] == 12 * nodes - 4
    # Beside the tensors: 8 bytes a leaf (at most an item each), 8 for an id's end, 14 for its characters.
    assert found["device_bytes"] < found["host_bytes"] < 12 * nodes + 31 * num_items + 100
    assert len(found["max_degree"]) == NUM_TOKENS
    if num_items > 1_000_000:
        assert found["load_peak_bytes"] < 2 * found["compiled_bytes"]
        assert found["compiled_load_s"] < found["raw_load_s"]
