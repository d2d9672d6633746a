"""The cache of built artifacts: what is not used any more goes, what somebody uses or builds stays."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

import pytest

import engine
from engine.beam.bounds import BeamBounds
from engine.packed import BatchBounds
from tools.artifact_cache import KEPT, UNUSED_S, Wanted, cache_key, cached_artifact, remove_old


def put(artifacts: Path, name: str, unused_s: float) -> Path:
    """Something like an artifact, last used then."""
    folder = artifacts / name
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    lock = artifacts / f".{name}.lock"
    lock.touch()
    for path in (folder, lock):
        os.utime(path, (time.time() - unused_s,) * 2)
    return folder


def key(number: int) -> str:
    return f"{number:016x}"


def test_the_newest_few_of_a_model_stay(tmp_path: Path) -> None:
    old = [put(tmp_path, f"m-cpu-{key(number)}", UNUSED_S + 60 * number) for number in range(1, KEPT + 3)]
    others = [
        put(tmp_path, name, 9 * UNUSED_S) for name in (f"m-cuda-{key(1)}", f"m-x-cpu-{key(1)}", "m-cpu-mine")
    ]
    said: list[str] = []
    remove_old(tmp_path, "m-cpu", said.append)
    assert [path.exists() for path in old] == [True] * KEPT + [False, False]
    assert all(path.exists() for path in others)
    assert said == ["2 artifacts of m-cpu that were not used lately were removed from the cache"]
    remove_old(tmp_path, "m-cpu", said.append)
    assert len(said) == 1


def test_what_was_used_lately_stays_however_many_they_are(tmp_path: Path) -> None:
    fresh = [put(tmp_path, f"m-cpu-{key(number)}", UNUSED_S / 2 + number) for number in range(KEPT + 3)]
    remove_old(tmp_path, "m-cpu", print)
    assert all(path.exists() for path in fresh)


def test_what_another_process_builds_stays(tmp_path: Path) -> None:
    for number in range(KEPT):
        put(tmp_path, f"m-cpu-{key(number)}", 0)
    built = put(tmp_path, f"m-cpu-{key(98)}", 2 * UNUSED_S)
    under_way = tmp_path / f"..building-m-cpu-{key(98)}.scratch"
    under_way.mkdir()
    left_over = tmp_path / f"..building-m-cpu-{key(99)}.scratch"
    left_over.mkdir()
    with (tmp_path / f".m-cpu-{key(98)}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_old(tmp_path, "m-cpu", print)
        assert built.exists()
        assert under_way.exists()
        assert not left_over.exists()  # a build that was killed
    remove_old(tmp_path, "m-cpu", print)
    assert not built.exists()
    assert not under_way.exists()


def test_asking_for_an_artifact_is_using_it(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_text("weights")
    wanted = Wanted(model, "m", "cpu", None, BatchBounds(samples=1, tokens=8, tokens_per_sample=8))
    target = put(tmp_path / "artifacts", f"m-cpu-{cache_key(wanted)}", 5 * UNUSED_S)
    for number in range(KEPT):
        put(tmp_path / "artifacts", f"m-cpu-{key(number)}", 4 * UNUSED_S)
    assert cached_artifact(wanted, tmp_path) == target
    remove_old(tmp_path / "artifacts", "m-cpu", print)
    assert target.exists()


@pytest.mark.parametrize(
    ("part", "which"),
    [
        ("build/package.py", {"plain", "int8", "beam"}),
        ("quant/gptq.py", {"int8"}),  # rounds its matrices
        ("runtime/beam_buckets.py", {"beam"}),  # says how large its packages' inputs may be
    ],
)
def test_other_code_makes_another_artifact(
    part: str, which: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    bounds = BatchBounds(2, 16, 8)
    wanted = {
        "plain": Wanted(model, "m", "cpu", None, bounds),
        "int8": Wanted(model, "m", "cpu", None, bounds, "int8", "portable"),
        "beam": Wanted(model, "m", "cpu", None, bounds, beam=BeamBounds(2, 1, 2)),
    }
    code = tmp_path / "engine"
    shutil.copytree(Path(engine.__file__).parent, code, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(engine, "__file__", str(code / "__init__.py"))
    before = {name: cache_key(each) for name, each in wanted.items()}
    with (code / part).open("a") as file:
        file.write("# changed\n")
    assert {name for name, each in wanted.items() if cache_key(each) != before[name]} == which
