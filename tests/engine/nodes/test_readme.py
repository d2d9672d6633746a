"""The README's example is run as it stands there, on a real artifact."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from engine.pipeline import Answer, ArtifactStore, Pipeline, read_pipeline

README = Path(__file__).parents[3] / "engine" / "nodes" / "README.md"


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_works(tmp_path: Path, user_modules: Path, tiny_causal: Any, sample: Any) -> None:
    (user_modules / "shop_rules.py").write_text(block("python"))
    path = tmp_path / "pipeline.yaml"
    path.write_text(block("yaml"))
    store = ArtifactStore({"smollm2": tiny_causal.artifact})
    titles = ["silent mouse", "a Replica of a mouse"]
    with Pipeline.open(read_pipeline(path), store) as pipeline:
        prepared = pipeline.prepare([sample(fields={"query": "mouse", "title": title}) for title in titles])
        (result,) = pipeline.submit([prepared]).result(timeout=60)
    store.close()
    assert isinstance(result, Answer)
    shown, blocked = result.rows
    assert sum(shown["scores"].values()) == pytest.approx(1)  # type: ignore[attr-defined]
    assert blocked["scores"] == {"yes": 0, "no": 0}
