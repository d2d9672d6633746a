"""Values of every kind of node as plain maps; everything a tokenizer gives has its text."""

from __future__ import annotations

import json
from typing import Any

import torch

from engine.pipeline import ArtifactStore, PipelineConfig
from engine.values import Beams, Embeddings, Rows, SampleBeams, Scores, Tokens, TopK
from tiny_models import TinyModel
from tools.replay.explain import Observed, node_values

BOUNDS = {"samples": 1, "tokens_per_sample": 8, "tokens_per_request": 8}


def values(model: TinyModel, **nodes: Any) -> dict[str, Any]:
    config = PipelineConfig.model_validate(
        {
            "name": "p",
            "bounds": BOUNDS,
            "nodes": {name: {"kind": "tokenizer", "artifact": "tiny"} for name in nodes},
        }
    )
    observed = Observed()
    for name, value in nodes.items():
        observed(name, value)
    store = ArtifactStore({"tiny": model.artifact})
    try:
        found = node_values(observed, config, store)
    finally:
        store.close()
    json.dumps([each.samples for each in found])  # plain
    return {each.name: each.samples for each in found}


def test_values_of_every_kind(tiny_causal: TinyModel):
    logits = torch.tensor([[2.0, 0.0]])
    found = values(
        tiny_causal,
        scores=Scores(("a", "b"), logits, logits.logsumexp(-1)),
        top=TopK(torch.tensor([[5]]), torch.tensor([[-0.5]]), (("x",),)),
        vectors=Embeddings(torch.ones(1, 16)),
        rows=Rows(({"embedding": b"\0" * 8, "n": [1, (2,)]},)),
        beams=Beams(
            (
                SampleBeams(
                    ids := torch.tensor([[5]]), torch.tensor([1]), torch.tensor([-0.5]), ids[0] > 0, None
                ),
            )
        ),
        own=object(),
    )
    assert found["scores"][0]["labels"]["a"]["logit"] == 2.0
    assert found["top"] == [[{"token_id": 5, "text": "x", "logprob": -0.5}]]
    assert (found["vectors"][0]["width"], found["vectors"][0]["norm"]) == (16, 4.0)
    assert found["beams"][0]["beam_tree"][0]["token_id"] == 5
    assert found["rows"] == [{"embedding": "8 bytes", "n": [1, [2]]}]
    assert "object" in found["own"][0]


def test_tokens_that_are_parts_of_characters_or_special_have_a_text(tiny_causal: TinyModel):
    store = ArtifactStore({"tiny": tiny_causal.artifact})
    tokenizer = store.get("tiny").artifact.tokenizer.backend_tokenizer
    ids = tuple(tokenizer.encode("<|im_start|>é mouse", add_special_tokens=False).ids)
    store.close()
    (told,) = values(tiny_causal, prompt=Tokens((ids,)))["prompt"]
    assert told["prompt"] == "<|im_start|>é mouse"
    assert [number for number, _ in told["tokens"]] == list(ids)
    assert all(text for _, text in told["tokens"])
    assert told["tokens"][0][1] == "<|im_start|>"
