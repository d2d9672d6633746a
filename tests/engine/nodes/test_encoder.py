"""The encoder node: rows of every output, several inputs, and settings that do not fit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import ConfigError
from engine.graph import Source
from engine.values import Embeddings, Rows, Scores, Tokens, TopK

LABELS = ("yes", "no")
LOGITS = torch.tensor([[2.0, 1.0], [-1.0, 0.5]])
SCORES = Scores(LABELS, LOGITS, LOGITS.logsumexp(-1))
TOP = TopK(torch.tensor([[7, 3]]), torch.tensor([[-0.5, -1.5]]), ((" a", " b"),))
EMBEDDINGS = Embeddings(torch.tensor([[0.6, 0.8], [1.0, 0.0]]))
ONE = {"model": Source(Scores, LABELS)}


def encode(node: Any, *values: Any) -> tuple[dict[str, Any], ...]:
    (rows,) = node.run([values])
    assert isinstance(rows, Rows)
    return rows.rows


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("softmax", LOGITS.softmax(-1)),
        (None, LOGITS.softmax(-1)),
        ("logprobs", LOGITS.log_softmax(-1)),
        ("logits", LOGITS),
        ("sigmoid", LOGITS.sigmoid()),
    ],
)
def test_scores(make_node: Any, output: str | None, expected: torch.Tensor) -> None:
    rows = encode(make_node("encoder", ONE, **({"output": output} if output else {})), SCORES)
    assert [row["label"] for row in rows] == ["yes", "no"]
    for row, numbers in zip(rows, expected.tolist(), strict=True):
        assert list(row["scores"]) == list(LABELS)
        assert list(row["scores"].values()) == pytest.approx(numbers)


def test_softmax_over_the_vocabulary_leaves_room_for_the_rest(make_node: Any) -> None:
    scores = Scores(LABELS, LOGITS, LOGITS.logsumexp(-1) + math.log(2))
    (row, _) = encode(make_node("encoder", ONE, output="softmax"), scores)
    assert sum(row["scores"].values()) == pytest.approx(0.5)


def test_top_k(make_node: Any) -> None:
    assert encode(make_node("encoder", {"model": Source(TopK)}), TOP) == (
        {
            "top_k": [
                {"token_id": 7, "text": " a", "logprob": -0.5},
                {"token_id": 3, "text": " b", "logprob": -1.5},
            ]
        },
    )


def test_embeddings_as_a_list_and_as_bytes(make_node: Any) -> None:
    inputs = {"model": Source(Embeddings)}
    rows = encode(make_node("encoder", inputs), EMBEDDINGS)
    assert rows[0]["embedding"] == pytest.approx([0.6, 0.8])
    packed = encode(make_node("encoder", inputs, encoding="f32"), EMBEDDINGS)
    assert isinstance(packed[0]["embedding"], bytes)
    assert np.frombuffer(packed[0]["embedding"], "<f4").tolist() == pytest.approx([0.6, 0.8])


def test_a_mapping_of_the_likeliest_label(make_node: Any) -> None:
    mapping = {"values": {"yes": "show", "no": "hide"}}
    rows = encode(make_node("encoder", ONE, output="mapping", mapping=mapping), SCORES)
    assert [row["value"] for row in rows] == ["show", "hide"]
    assert rows[0]["score"] == pytest.approx(LOGITS.softmax(-1)[0, 0].item())
    unsure = {**mapping, "threshold": 0.75, "otherwise": "ask"}
    rows = encode(make_node("encoder", ONE, output="mapping", mapping=unsure), SCORES)
    assert [(row["value"], row["label"]) for row in rows] == [("ask", "yes"), ("hide", "no")]


def test_an_expected_value(make_node: Any) -> None:
    mapping = {"values": {"yes": 1, "no": 0.5}, "pick": "expected"}
    rows = encode(make_node("encoder", ONE, output="mapping", mapping=mapping), SCORES)
    yes = LOGITS.softmax(-1)[:, 0]
    assert [row["value"] for row in rows] == pytest.approx((yes + (1 - yes) * 0.5).tolist())


def test_several_inputs_nest_by_name(make_node: Any) -> None:
    inputs = {"intent": Source(Scores, LABELS), "vector": Source(Embeddings), "other": Source(Rows)}
    node = make_node("encoder", inputs, output={"intent": "logits"})
    rows = encode(node, SCORES, EMBEDDINGS, Rows(({"x": 1}, {"x": 2})))
    assert rows[1] == {
        "intent": {"label": "no", "scores": {"yes": -1.0, "no": 0.5}},
        "vector": {"embedding": [1.0, 0.0]},
        "other": {"x": 2},
    }


@pytest.mark.parametrize(
    ("inputs", "options", "key", "words"),
    [
        (ONE, {"output": "softmx"}, "output", "did you mean 'softmax'"),
        (ONE, {"output": "embedding"}, "output", "needs Embeddings, but 'model' gives Scores"),
        (ONE, {"output": {"modl": "softmax"}}, "output.modl", "did you mean 'model'"),
        (ONE, {"output": {"model": "top_k"}}, "output.model", "needs TopK"),
        (ONE, {"output": "mapping"}, "mapping", "output: mapping needs it"),
        (ONE, {"mapping": {"values": {"yes": 1, "no": 2}}}, "mapping", "which no input has"),
        (ONE, {"encoding": "f32"}, "encoding", "which no input has"),
        (ONE, {"output": "mapping", "mapping": {"values": {"yes": 1}}}, "mapping.values.no", "has no value"),
        (
            ONE,
            {"output": "mapping", "mapping": {"values": {"yes": 1, "no": 2, "nope": 3}}},
            "mapping.values.nope",
            "did you mean 'no'",
        ),
        (
            ONE,
            {"output": "mapping", "mapping": {"values": {"yes": 1, "no": "x"}, "pick": "expected"}},
            "mapping.values.no",
            "needs numbers",
        ),
        (
            ONE,
            {
                "output": "mapping",
                "mapping": {"values": {"yes": 1, "no": 0}, "pick": "expected", "threshold": 0.5},
            },
            "mapping.pick",
            "belong to argmax",
        ),
        (ONE, {"output": "mapping", "mapping": {"values": {}}}, "mapping.values", "at least 1"),
    ],
)
def test_mistakes_are_named(
    make_node: Any, inputs: dict[str, Source], options: dict[str, Any], key: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        make_node("encoder", inputs, **options)
    assert caught.value.key == key


def test_tokens_are_no_answer(make_node: Any) -> None:
    from engine.nodes.encoder import Encoder

    assert Tokens not in Encoder.consumes
