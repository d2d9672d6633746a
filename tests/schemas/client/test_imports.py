"""What importing the wire and the client costs: no torch, no transformers; the wire alone no Kafka either."""

from __future__ import annotations

import subprocess
import sys

import pytest

WIRE = "schemas.codec, schemas.headers, schemas.deadletter, schemas.deadlines, schemas.embeddings"


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("schemas.client, schemas.client.errors", ["torch", "transformers", "numpy", "engine", "worker"]),
        (WIRE, ["torch", "transformers", "numpy", "aiokafka", "redis", "asyncio", "engine", "worker"]),
    ],
)
def test_imports(modules, absent):
    program = f"import sys, {modules}; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
