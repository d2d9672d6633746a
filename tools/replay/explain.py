"""Every node's value for one request, as plain maps and as text: prompts, tokens, logits, rows.

The prompt is decoded from the tokens that the model saw, so it shows what a cut left and what became of
special tokens; a tokenizer that normalises does not give back every character.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.pipeline import ArtifactStore, PipelineConfig
from engine.values import Beams, Embeddings, Rows, Samples, Scores, Tokens, TopK
from schemas.codec import DecodeError, decode_request
from schemas.messages import Request
from schemas.plain import quote
from tools.replay.beam_tree import beam_tree, tree_lines
from tools.replay.differences import Difference
from tools.replay.exchanges import Exchange
from tools.replay.report import describe, plain
from tools.replay.rerun import Rerun

VECTOR_NUMBERS = 8  # the first of a vector
TOKENS_A_LINE = 12
REPLACEMENT = "\ufffd"  # a token that is part of a character


@dataclass(frozen=True)
class NodeValue:
    """What one node gave: one plain value a sample."""

    name: str
    kind: str
    samples: Sequence[Any]


class Observed:
    """The values of one request's nodes, in the order in which they came; called on the engine's threads."""

    def __init__(self) -> None:
        self.values: list[tuple[str, object]] = []

    def __call__(self, name: str, value: object) -> None:
        self.values.append((name, value))  # append is atomic


def node_values(observed: Observed, config: PipelineConfig, artifacts: ArtifactStore) -> list[NodeValue]:
    """Each value as plain maps, with the tokens' texts where the node has a tokenizer."""
    found = []
    for name, value in observed.values:
        settings = config.nodes[name].settings
        artifact = settings.get("artifact")
        tokenizer = None
        if isinstance(value, Tokens) and isinstance(artifact, str):
            tokenizer = artifacts.get(artifact).artifact.tokenizer.backend_tokenizer
        found.append(NodeValue(name, config.nodes[name].kind, list(_by_sample(value, tokenizer))))
    return found


def explanation(
    exchange: Exchange, rerun: Rerun, differences: Sequence[Difference], nodes: Sequence[NodeValue]
) -> dict[str, Any]:
    """All of it for scripts."""
    request = _request(exchange)
    was = exchange.reply
    return {
        "request": exchange.request_id,
        "place": exchange.request.place,
        "timestamp_ms": exchange.request.timestamp_ms,
        "pipeline": rerun.pipeline,
        "samples": [] if request is None else [_sample(each) for each in request.samples],
        "nodes": [{"name": each.name, "kind": each.kind, "samples": each.samples} for each in nodes],
        "recorded": None if was is None else _printable(was.model_dump(mode="python")),
        "now": _printable(rerun.reply.model_dump(mode="python")),
        "differences": [plain(each) for each in differences],
    }


def explanation_lines(told: Mapping[str, Any], differences: Sequence[Difference]) -> Iterator[str]:
    """The same for a person."""
    yield f"request {told['request']!r} at {told['place']}, pipeline {told['pipeline']}"
    for who in ("recorded", "now"):
        yield f"  {who + ':':<10}{_outcome(told[who])}"
    for each in differences:
        yield f"  differs   {describe(each)}"
    if not told["nodes"]:
        yield "  no node gave a value: it ended before"
    for index, sample in enumerate(told["samples"]):
        yield f"sample {index}: {_json(sample)}"
        for node in told["nodes"]:
            yield f"  {node['name']} ({node['kind']})"
            value = node["samples"][index] if index < len(node["samples"]) else None
            yield from (f"    {line}" for line in _value_lines(value))
        if told["recorded"] is not None and index < len(told["recorded"]["results"]):
            yield f"  recorded row: {_json(told['recorded']['results'][index])}"


def _by_sample(value: object, tokenizer: Any | None) -> Iterator[Any]:
    match value:
        case Tokens():
            yield from (_tokens(ids, tokenizer) for ids in value.ids)
        case Scores():
            yield from _scores(value)
        case TopK():
            columns = zip(value.token_ids.tolist(), value.texts, value.logprobs.tolist(), strict=True)
            for ids, texts, logs in columns:
                keys = ("token_id", "text", "logprob")
                yield [dict(zip(keys, each, strict=True)) for each in zip(ids, texts, logs, strict=True)]
        case Embeddings():
            for vector in value.vectors:
                first = vector[:VECTOR_NUMBERS].tolist()
                yield {"width": len(vector), "norm": float(vector.norm()), "first": first}
        case Beams():
            yield from ({"beam_tree": beam_tree(value, sample)} for sample in value.samples)
        case Rows():
            yield from (_printable(row) for row in value.rows)
        case Samples():
            yield from (_sample(each) for each in value.samples)
        case _:
            yield quote(repr(value), 400)  # a node of the user's own


def _scores(value: Scores) -> Iterator[dict[str, Any]]:
    logprobs = (value.logits - value.log_norm[:, None]).tolist()
    for logits, logs, norm in zip(value.logits.tolist(), logprobs, value.log_norm.tolist(), strict=True):
        numbers = zip(value.labels, logits, logs, strict=True)
        labels = {label: {"logit": logit, "logprob": log} for label, logit, log in numbers}
        yield {"labels": labels, "log_norm": norm}


def _tokens(ids: Sequence[int], tokenizer: Any | None) -> dict[str, Any]:
    if tokenizer is None:
        return {"token_ids": list(ids)}
    return {
        "prompt": tokenizer.decode(list(ids), skip_special_tokens=False),
        "tokens": [[token_id, _token_text(tokenizer, token_id)] for token_id in ids],
    }


def _token_text(tokenizer: Any, token_id: int) -> str:
    text: str = tokenizer.decode([token_id], skip_special_tokens=False)
    return text if text and REPLACEMENT not in text else str(tokenizer.id_to_token(token_id))


def _value_lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and "tokens" in value:
        yield f"prompt: {value['prompt']!r}"
        shown = [f"{token_id} {text!r}" for token_id, text in value["tokens"]]
        yield f"{len(shown)} tokens:"
        for start in range(0, len(shown), TOKENS_A_LINE):
            yield "  " + "  ".join(shown[start : start + TOKENS_A_LINE])
    elif isinstance(value, Mapping) and "log_norm" in value:
        for label, numbers in value["labels"].items():
            yield f"{label:<12} logit {numbers['logit']:+.6f}  logprob {numbers['logprob']:+.6f}"
        yield f"{'log norm':<12} {value['log_norm']:+.6f}"
    elif isinstance(value, Mapping) and "beam_tree" in value:
        yield from tree_lines(value["beam_tree"])
    elif isinstance(value, list):
        yield from (_json(each) for each in value)
    else:
        yield _json(value)


def _request(exchange: Exchange) -> Request | None:
    try:
        return decode_request(exchange.request.value or b"")
    except DecodeError:
        return None


def _sample(sample: Any) -> dict[str, Any]:
    """What the producer sent of it."""
    given = {"id": getattr(sample, "id", None), "text": sample.text, "fields": sample.fields}
    kept = {key: value for key, value in given.items() if value is not None}
    if sample.token_ids is not None:
        kept["token_ids"] = list(sample.token_ids)
    return kept


def _outcome(reply: Mapping[str, Any] | None) -> str:
    if reply is None:
        return "no reply"
    model = f", model {reply['model']['name']} {reply['model']['digest'][:12]}" if reply["model"] else ""
    if reply["error"] is not None:
        error = reply["error"]
        where = f" at {error['field']}" if error["field"] else ""
        return f"{reply['outcome']}, {error['code']}{where}: {error['message']}{model}"
    return f"{reply['outcome']}, {reply['usage']['tokens']} tokens{model}"


def _printable(value: Any) -> Any:
    """Bytes (vectors) as their length."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, Mapping):
        return {key: _printable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_printable(each) for each in value]
    return value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
