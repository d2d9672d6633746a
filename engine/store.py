"""The opened artifacts of one worker: each is loaded once, at its first use, and shared by all pipelines.

The store owns the lanes: a pipeline's close leaves them running, the store's close ends them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

from engine.artifact import Artifact
from engine.artifact_checks import parse_device
from engine.errors import ArtifactError, ConfigError
from engine.manifest import TOKENIZER
from engine.options import suggest
from engine.runtime.beam_lanes import BeamLanes
from engine.runtime.lanes import LanePool
from engine.runtime.load_report import LoadReport


@dataclass(frozen=True)
class OpenedArtifact:
    """An artifact and the lanes that run it."""

    artifact: Artifact
    lanes: LanePool
    vocabulary: str | None  # which token has which id, as a digest


class ArtifactStore:
    """Artifacts by name. Thread-safe; `threads` are CPU threads a lane."""

    def __init__(
        self, paths: Mapping[str, Path], *, device: str = "cpu", lanes: int = 1, threads: int = 1
    ) -> None:
        """ConfigError for a device that this machine does not have."""
        parse_device(device)
        self._paths = MappingProxyType(dict(paths))
        self._device = device
        self._lanes = lanes
        self._threads = threads
        self._opened: dict[str, OpenedArtifact] = {}
        self._beams: dict[str, BeamLanes] = {}
        self._lock = Lock()

    def get(self, name: str) -> OpenedArtifact:
        """The artifact of that name, loaded if it was not; ConfigError if unknown, ArtifactError if unfit."""
        if name not in self._paths:
            raise ConfigError("artifact", name, "no such artifact; " + suggest(name, self._paths))
        with self._lock:
            if name not in self._opened:
                try:
                    artifact = Artifact.open(self._paths[name], device=self._device)
                except ArtifactError as error:
                    raise ArtifactError(f"artifact {name!r}: {error}") from error
                lanes = artifact.open_lanes(self._lanes, self._threads)
                self._opened[name] = OpenedArtifact(artifact, lanes, _vocabulary(artifact))
            return self._opened[name]

    def get_beams(self, name: str) -> BeamLanes:
        """What searches on that artifact's lanes, opened at the first use; ConfigError where it cannot."""
        opened = self.get(name)
        with self._lock:
            if name not in self._beams:
                self._beams[name] = opened.artifact.open_beams(opened.lanes)
            return self._beams[name]

    @property
    def opened(self) -> Mapping[str, LanePool]:
        """The lanes of the artifacts that have been loaded, by name. Waits for no loading: who scrapes
        metrics asks too."""
        return {name: each.lanes for name, each in self._opened.copy().items()}

    @property
    def load_reports(self) -> Mapping[str, LoadReport]:
        """Of each such artifact, its searches included."""
        beams = self._beams.copy()
        reports = {name: lanes.load_report for name, lanes in self.opened.items()}
        return {
            name: each.joined(beams[name].load_report) if name in beams else each
            for name, each in reports.items()
        }

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """Of each such artifact: launches, searches among them, that were not wholly captured."""
        searches = {name: beams.fallbacks for name, beams in self._beams.copy().items()}
        return {name: lanes.fallbacks + searches.get(name, 0) for name, lanes in self.opened.items()}

    def close(self) -> None:
        """End all lanes; idempotent. Close the pipelines first."""
        with self._lock:
            opened, self._opened, self._beams = self._opened, {}, {}
        for each in opened.values():
            each.lanes.close()


def _vocabulary(artifact: Artifact) -> str | None:
    """A digest of which token has which id; None where the checkpoint brought no tokenizer."""
    if not any(Path(name).parts[0] == TOKENIZER for name in artifact.manifest.files):
        return None
    return vocabulary_digest(artifact.tokenizer)


def vocabulary_digest(tokenizer: Any) -> str:
    """Of transformers' fast tokenizer: which token has which id."""
    entries = sorted(tokenizer.backend_tokenizer.get_vocab().items())
    return hashlib.sha256(repr(entries).encode()).hexdigest()
