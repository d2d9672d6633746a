"""The shipped pipelines on the real small model: they open, and their answers make sense."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.pipeline import Answer, ArtifactStore, Pipeline, read_pipeline

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def store(smollm2_artifact: Path) -> Iterator[ArtifactStore]:
    store = ArtifactStore({"smollm2": smollm2_artifact})
    yield store
    store.close()


def answer(name: str, store: ArtifactStore, samples: list[Any]) -> list[dict[str, Any]]:
    with Pipeline.open(read_pipeline(CONFIGS / f"{name}.yaml"), store) as pipeline:
        (result,) = pipeline.submit([pipeline.prepare(samples)]).result(timeout=120)
    assert isinstance(result, Answer)
    return list(result.rows)


def test_relevance(store: ArtifactStore, sample: Any) -> None:
    titles = ["Sony WH-1000XM5 Wireless Noise Cancelling Headphones", "Foam Ear Plugs, 50 Pairs"]
    fields = [{"query": "noise cancelling headphones", "title": title} for title in titles]
    fitting, other = answer("relevance", store, [sample(fields=each) for each in fields])
    assert fitting["scores"]["yes"] > other["scores"]["yes"]
    assert sum(fitting["scores"].values()) == pytest.approx(1)


def test_a_long_title_gives_way(store: ArtifactStore, sample: Any) -> None:
    fields = {"query": "noise cancelling headphones", "title": "Sony headphones, black. " * 500}
    (row,) = answer("relevance", store, [sample(fields=fields)])
    assert set(row["scores"]) == {"yes", "no"}


def test_intent(store: ArtifactStore, sample: Any) -> None:
    searches = {"cheap usb c cable 2m": "buy", "delivery late refund": "support", "what is oled": "learn"}
    rows = answer("intent", store, [sample(fields={"query": query}) for query in searches])
    assert [row["label"] for row in rows] == list(searches.values())


def test_recall(store: ArtifactStore, sample: Any) -> None:
    searches = {"best budget laptop for students 2024": "laptops", "school backpack girl": "school-supplies"}
    for query, item in searches.items():
        (row,) = answer("recall", store, [sample(fields={"query": query})])
        scores = [beam["score"] for beam in row["beams"]]
        assert len(scores) == 5
        assert scores == sorted(scores, reverse=True)
        assert all(len(beam["item_ids"]) == 1 for beam in row["beams"])
        assert row["beams"][0]["item_ids"] == [item]


def test_items_of_recall_are_the_tokens_of_their_names(store: ArtifactStore) -> None:
    tokenizer = store.get("smollm2").artifact.tokenizer.backend_tokenizer
    settings = read_pipeline(CONFIGS / "recall.yaml").nodes["search"].settings
    (end,) = settings["end_tokens"]
    for line in (CONFIGS / settings["items"]).read_text("utf-8").splitlines():
        item = json.loads(line)
        ids = tokenizer.encode(f" {item['name']}", add_special_tokens=False).ids
        assert item["token_ids"] == (ids if len(ids) == settings["steps"] + 1 else [*ids, end])


def test_embedding(store: ArtifactStore, sample: Any) -> None:
    texts = ["wireless mouse", "cordless computer mouse", "gluten free pasta"]
    vectors = np.array(
        [row["embedding"] for row in answer("embedding", store, [sample(text=each) for each in texts])]
    )
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1)
    assert near > far
