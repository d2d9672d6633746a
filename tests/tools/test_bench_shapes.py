"""The arithmetic of the benchmarked shapes by hand, and the mixes of requests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from engine.packed import pack
from engine.prefixes import SHARE_ALL, Prefixes
from tools.bench import provenance
from tools.bench.mix_loops import best_line, best_under
from tools.bench.mixes import CONSTANT, MIXES, SHARED, draw_mixes, equal_lengths, fill_lengths
from tools.bench.peaks import Peaks, peaks_of
from tools.bench.shape_report import ceiling_line, physics, physics_lines
from tools.bench.shapes import SHAPES, count_packed, count_work, ideal_s, least_bytes, narrow_matrices

QWEN3 = SHAPES["qwen3-0.6b"]
FP8 = {"qkv": "fp8", "output": "fp8", "gate_up": "fp8", "down": "bf16"}


def test_flops_by_hand() -> None:
    work = count_work(QWEN3, [3, 2])
    assert work.qkv == 2 * 28 * 5 * 1024 * 4096
    assert work.output == 2 * (27 * 5 + 2) * 1024 * 2048
    assert work.gate_up == 2 * work.down == 2 * (27 * 5 + 2) * 1024 * 6144
    assert work.attention == 28 * 4 * 16 * 128 * (6 + 3)
    assert work.flops == sum(work.by_class().values())
    samples = [[1, 2, 3], [4, 5]]
    assert count_packed(QWEN3, pack(samples)) == work


def test_what_prefixes_save_is_not_counted() -> None:
    request = [(1, 2, 3), (1, 2, 4)]
    packed, _ = Prefixes(None, SHARE_ALL).pack([request])
    work = count_packed(QWEN3, packed)
    assert work.qkv == 2 * 28 * 4 * 1024 * 4096
    assert work.attention == 28 * 4 * 16 * 128 * (1 + 2 + 3 + 3)


def test_each_type_at_its_own_peak() -> None:
    narrow = narrow_matrices({"layers": [FP8, FP8 | {"qkv": "bf16"}]})
    assert narrow == {"qkv": 0.5, "output": 1, "gate_up": 1, "down": 0}
    assert narrow_matrices({"layers": [FP8 | {"qkv": "int8"}]})["qkv"] == 1  # as fast as e4m3
    work = count_work(QWEN3, [100])
    fp8 = work.qkv / 2 + work.output + work.gate_up
    assert work.in_8_bits(narrow) == fp8
    assert ideal_s(work, narrow, Peaks(1e12, 2e12, 1)) == pytest.approx((work.flops - fp8 / 2) / 1e12)
    assert ideal_s(work, narrow_matrices(None), Peaks(1e12, 2e12, 1)) == work.flops / 1e12
    parameters = 28 * 1024 * (4096 + 2048 + 6144 + 3072)
    assert least_bytes(QWEN3, 10, {}) == 2 * parameters + 20480
    assert least_bytes(QWEN3, 10, dict.fromkeys(FP8, 1.0)) == parameters + 20480


def test_the_physics_of_a_known_card_and_of_another() -> None:
    peaks = peaks_of("NVIDIA H200")
    assert peaks is not None
    found = physics(QWEN3, {}, peaks)
    assert found["floor_ms"] == found["compute_ms"] > found["memory_ms"] > 0
    assert "0% in 8 bits" in physics_lines(found)[0]
    assert peaks_of("NVIDIA A10") is None
    assert physics_lines(physics(QWEN3, {}, None))[1].startswith("floor: not known")
    assert ceiling_line({"copy_tbps": 4.1}) == "ceilings, sustained: copy 4.10 TB/s"


def test_mixes() -> None:
    mixes = draw_mixes(1000)
    assert tuple(mixes) == MIXES
    assert all(len(mix.requests) == 64 and len(mix.requests[0]) == 15 for mix in mixes.values())
    for name, mean, most in (("mean150", 150, 500), ("mean60", 60, 256)):
        lengths = [len(sample) for request in mixes[name].requests for sample in request]
        assert sum(lengths) / len(lengths) == pytest.approx(mean, rel=0.05)
        assert 16 <= min(lengths) <= max(lengths) <= most
    for request in mixes["shared64of150"].requests:
        assert len({sample[:SHARED] for sample in request}) == 1
        assert {len(sample) for sample in request} == {150}
    constant = mixes["constant40of150"]
    beginnings = {sample[:CONSTANT] for request in constant.requests for sample in request}
    assert beginnings == {constant.constant}
    assert len({sample[:64] for request in constant.requests for sample in request}) == 64 * 15
    assert mixes == draw_mixes(1000)


def test_lengths_that_fill_a_bucket() -> None:
    lengths = fill_lengths(4096, 150, 500, torch.Generator().manual_seed(1))
    assert sum(lengths) == 4096
    assert min(lengths) > 0
    assert equal_lengths(300, 128) == [128, 128, 44]
    assert equal_lengths(256, 128) == [128, 128]


def test_the_best_loop_of_a_mix() -> None:
    rows = [
        {"mix": mix, "in_flight": n, "requests_per_s": rate, "mean_ms": mean, "p99_ms": 2 * mean}
        for mix, n, rate, mean in (
            ("a", 1, 100.0, 5.0), ("a", 4, 300.0, 19.9), ("a", 6, 310.0, 20.0), ("b", 1, 10.0, 30.0)
        )
    ]  # fmt: skip
    best = best_under(rows)
    assert best["a"]["in_flight"] == 4
    assert best["b"] is None
    assert best_line("a", best["a"]) == (
        "a: most requests/s at mean < 20 ms: 300 (4 in flight, mean 19.9 ms, p99 39.8 ms)"
    )
    assert best_line("b", None) == "b: no loop had a mean < 20 ms"


def test_where_a_result_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16\n")
    monkeypatch.setattr(provenance, "DRIVER", version)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    found = provenance.provenance("cuda")
    assert (found["machine"], found["driver"]) == ("NVIDIA H200", "580.95.05")
    monkeypatch.setattr(provenance, "DRIVER", tmp_path / "none")
    monkeypatch.setattr(sys, "argv", ["/x/shape_engine.py", "--mixes", "a b"])
    found = provenance.provenance("cuda:0")
    assert found["driver"] is None
    assert "driver" not in provenance.provenance("cpu")
    assert provenance.command_line() == "shape_engine.py --mixes 'a b'"
