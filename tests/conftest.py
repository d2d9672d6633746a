"""Fixtures of the whole test run; they live in tests/services. Real servers and models, started once.

`gpu` tests are skipped without a CUDA device, with that reason, and never with one.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytest_plugins = ["model_files", "tiny_models"]
if find_spec("aiokafka") and find_spec("redis"):  # a GPU machine may have only what the engine needs
    pytest_plugins += ["kafka_service", "redis_service", "worker_service"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch sees none"))
