"""The published Qwen3 pipelines against transformers code as the model cards show it, on random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.pipeline import Answer, ArtifactStore, Pipeline, read_pipeline
from tiny_models import qwen_tokenizer

CONFIGS = Path(__file__).parents[2] / "configs"
TASK = "Given a web search query, retrieve relevant passages that answer the query"
QUERIES = ["wireless mouse with a silent click", "laptop"]
DOCUMENTS = [
    "A mouse without a cable.\nBattery: 2 years, <b>silent</b>.",
    "the long battery for my new laptop 😀",
    "no",
]
PAIRS = [(query, document) for query in QUERIES for document in DOCUMENTS]


def answers(name: str, artifact: Path, samples: list[Any]) -> list[dict[str, Any]]:
    store = ArtifactStore({name: artifact})
    config = read_pipeline(CONFIGS / f"{name}.yaml")
    bounds = config.bounds.model_copy(
        update={"tokens_per_sample": 512, "tokens_per_request": 2048, "samples": 32}
    )
    small = config.model_copy(update={"bounds": bounds})
    with Pipeline.open(small, store) as pipeline:
        (answer,) = pipeline.submit([pipeline.prepare(samples)]).result(timeout=60)
    store.close()
    assert isinstance(answer, Answer)
    return list(answer.rows)


@pytest.mark.parametrize("instruction", [None, "Find what the shopper would buy"])
def test_reranker(tiny_causal: Any, sample: Any, instruction: str | None) -> None:
    fields = [{"query": query, "document": document} for query, document in PAIRS]
    if instruction:
        fields = [{**each, "instruction": instruction} for each in fields]
    rows = answers("qwen3-reranker", tiny_causal.artifact, [sample(fields=each) for each in fields])
    expected = card_rerank(tiny_causal.checkpoint, instruction, PAIRS)
    assert [row["scores"]["yes"] for row in rows] == pytest.approx(expected, abs=1e-4)
    assert max(expected) - min(expected) > 0.01  # the samples do differ


def test_embedding(tiny_causal: Any, sample: Any) -> None:
    samples = [sample(fields={"task": TASK, "query": query}) for query in QUERIES]
    samples += [sample(text=document) for document in DOCUMENTS]
    rows = answers("qwen3-embedding", tiny_causal.artifact, samples)
    vectors = np.stack([np.frombuffer(row["embedding"], "<f4") for row in rows])
    expected = card_embed(
        tiny_causal.checkpoint, [get_detailed_instruct(TASK, each) for each in QUERIES] + DOCUMENTS
    )
    np.testing.assert_allclose(vectors, expected.numpy(), atol=1e-4)


# What follows is the cards' code (Qwen/Qwen3-Reranker-0.6B, Qwen/Qwen3-Embedding-0.6B, "Transformers Usage").


def format_instruction(instruction: str | None, query: str, doc: str) -> str:
    if instruction is None:
        instruction = "Given a web search query, retrieve relevant passages that answer the query"
    return f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {doc}"


def card_rerank(checkpoint: Path, instruction: str | None, pairs: list[tuple[str, str]]) -> list[float]:
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=qwen_tokenizer(append_end=False), pad_token="<|endoftext|>", padding_side="left"
    )
    model = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    token_false_id = tokenizer.convert_tokens_to_ids("no")
    token_true_id = tokenizer.convert_tokens_to_ids("yes")
    max_length = 8192
    prefix = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
        'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    prefix_tokens = tokenizer.encode(prefix, add_special_tokens=False)
    suffix_tokens = tokenizer.encode(suffix, add_special_tokens=False)
    inputs = tokenizer(
        [format_instruction(instruction, query, doc) for query, doc in pairs],
        padding=False,
        truncation="longest_first",
        return_attention_mask=False,
        max_length=max_length - len(prefix_tokens) - len(suffix_tokens),
    )
    for i, ele in enumerate(inputs["input_ids"]):
        inputs["input_ids"][i] = prefix_tokens + ele + suffix_tokens
    inputs = tokenizer.pad(inputs, padding=True, return_tensors="pt")
    with torch.no_grad():
        batch_scores = model(**inputs).logits[:, -1, :]
    batch_scores = torch.stack([batch_scores[:, token_false_id], batch_scores[:, token_true_id]], dim=1)
    batch_scores = torch.nn.functional.log_softmax(batch_scores, dim=1)
    scores: list[float] = batch_scores[:, 1].exp().tolist()
    return scores


def get_detailed_instruct(task_description: str, query: str) -> str:
    return f"Instruct: {task_description}\nQuery:{query}"


def last_token_pool(last_hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    left_padding = attention_mask[:, -1].sum() == attention_mask.shape[0]
    if left_padding:
        return last_hidden_states[:, -1]
    sequence_lengths = attention_mask.sum(dim=1) - 1
    return last_hidden_states[torch.arange(last_hidden_states.shape[0]), sequence_lengths]


def card_embed(checkpoint: Path, input_texts: list[str]) -> torch.Tensor:
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
    model = AutoModel.from_pretrained(checkpoint).eval()
    batch_dict = tokenizer(input_texts, padding=True, truncation=True, max_length=512, return_tensors="pt")
    batch_dict.pop("token_type_ids", None)
    with torch.no_grad():
        outputs = model(**batch_dict)
    embeddings = last_token_pool(outputs.last_hidden_state, batch_dict["attention_mask"])
    return torch.nn.functional.normalize(embeddings, p=2, dim=1)
