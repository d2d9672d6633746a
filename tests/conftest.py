"""Fixtures of the whole test run; they live in tests/services. Real servers and models, started once.

`gpu` tests are skipped without a CUDA device, with that reason, and never with one.
"""

from __future__ import annotations

import pytest

pytest_plugins = ["kafka_service", "redis_service", "model_files", "tiny_models", "worker_service"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch sees none"))
