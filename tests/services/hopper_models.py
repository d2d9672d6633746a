"""Tiny random checkpoints of shapes that the hopper path serves, with a tokenizer; a pipeline over them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from engine.ops.hopper import library
from tiny_checkpoints import save_checkpoint
from tiny_models import SPECIALS, qwen_tokenizer

DIGEST = "00112233aabbccdd"  # of no library
# Weights as wide as 8 bits bear at these widths: scores differ between samples, and stay near transformers'.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "norm": (
        "Qwen3ForCausalLM",
        {"head_dim": 64, "hidden_size": 160, "intermediate_size": 192, "initializer_range": 0.1},
    ),
    "int8": (
        "Qwen3ForCausalLM",
        {"head_dim": 64, "hidden_size": 160, "intermediate_size": 256, "initializer_range": 0.1},
    ),
    "bias": (  # six heads of 64, on two
        "Qwen2ForCausalLM",
        {"hidden_size": 384, "intermediate_size": 320, "initializer_range": 0.05},
    ),
}
PIPELINE: dict[str, Any] = {
    "name": "scores",
    "bounds": {"samples": 32, "tokens_per_sample": 128, "tokens_per_request": 1024},
    "nodes": {
        "prompt": {"kind": "tokenizer", "artifact": "tiny", "template": "buy {query}", "cut": "query"},
        "labels": {
            "kind": "prefill", "artifact": "tiny", "inputs": ["prompt"], "head": "label_scores",
            "labels": {"yes": "yes", "no": "no"},
        },
        "answer": {"kind": "encoder", "inputs": ["labels"], "output": "softmax"},
    },
}  # fmt: skip
LONG_TEMPLATE = "buy a laptop and the wireless mouse with a silent click or a long battery? {query} yes or no"
QUERIES = ["the wireless mouse", "a", "silent click and a long battery " * 5, "laptop"]


def save_tiny(folder: Path, kind: str, vocab_size: int | None = None, **more: Any) -> Path:
    """A checkpoint of KINDS in `folder`. `vocab_size`: more than the tokenizer's, for large weights."""
    from transformers import PreTrainedTokenizerFast

    model_class, options = KINDS[kind]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=qwen_tokenizer(append_end=False), pad_token=SPECIALS[0], padding_side="left"
    )
    vocabulary = vocab_size or len(tokenizer)
    options = {"vocab_size": vocabulary, "tie_word_embeddings": True} | options | more
    save_checkpoint(folder, model_class, **options)
    tokenizer.save_pretrained(str(folder))
    return folder


def answer_queries(
    artifact: Path,
    device: str,
    sample: Any,
    lanes: int = 1,
    *,
    template: str = "buy {query}",
    prefixes: str = "auto",
) -> list[dict[str, Any]]:
    """Rows of PIPELINE for three samples a query, all queries in one batch."""
    return [
        row
        for answer in answer_all(artifact, device, sample, lanes, template, prefixes)
        for row in answer.rows
    ]


def answer_all(
    artifact: Path, device: str, sample: Any, lanes: int, template: str, prefixes: str
) -> list[Any]:
    """An Answer a query; `prefixes`: of the prefill node."""
    from engine.pipeline import Answer, ArtifactStore, Pipeline, PipelineConfig

    nodes = {name: dict(options) for name, options in PIPELINE["nodes"].items()}
    nodes["prompt"]["template"] = template
    nodes["labels"]["prefixes"] = prefixes
    store = ArtifactStore({"tiny": artifact}, device=device, lanes=lanes, threads=1)
    try:
        with Pipeline.open(PipelineConfig.model_validate(PIPELINE | {"nodes": nodes}), store) as pipeline:
            batch = [pipeline.prepare([sample(fields={"query": query})] * 3) for query in QUERIES]
            results = pipeline.submit(batch).result(120)
    finally:
        store.close()
    assert all(isinstance(result, Answer) for result in results), results
    return list(results)


def fake_library(folder: Path) -> Path:
    """A shared library under the name that a compiled one has."""
    path, source = folder / library.file_name(DIGEST), folder / "empty.c"
    source.write_text("int nothing;")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", path], check=True)
    return path
