"""The prefill node on a real artifact, against transformers one sample at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from engine.bounds import Bounds
from engine.errors import ConfigError, InputError, NodeError
from engine.graph import Counted, Source
from engine.prefixes import Prefixes, Saved
from engine.values import Embeddings, Scores, Tokens, TopK

TOKENS = {"prompt": Source(Tokens)}
LABELS = {"yes": "yes", "no": "no"}
REQUESTS = [Tokens(((5, 6, 7), (8,))), Tokens(((300, 2, 9, 11, 40),))]


def run(node: Any, requests: list[Tokens]) -> list[Any]:
    return list(node.executor.submit(node.run, [(tokens,) for tokens in requests]).result(timeout=60))


@pytest.fixture(scope="session")
def reference(tiny_causal: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_causal.checkpoint, dtype=torch.float32).eval()


def last_logits(reference: Any, tokens: Tokens) -> torch.Tensor:
    with torch.inference_mode():
        return torch.stack([reference(torch.tensor([ids])).logits[0, -1] for ids in tokens.ids])


@pytest.mark.parametrize("normalize", ["labels", "vocabulary"])
def test_label_scores(make_node: Any, artifacts: Any, reference: Any, normalize: str) -> None:
    node = make_node(
        "prefill", TOKENS, artifact="causal", head="label_scores", labels=LABELS, normalize=normalize
    )
    tokenizer = artifacts.get("causal").artifact.tokenizer
    places = [tokenizer.convert_tokens_to_ids(text) for text in LABELS.values()]
    for tokens, scores in zip(REQUESTS, run(node, REQUESTS), strict=True):
        assert isinstance(scores, Scores)
        assert scores.labels == ("yes", "no")
        logits = last_logits(reference, tokens)
        expected = logits.log_softmax(-1)[:, places]
        if normalize == "labels":
            expected = logits[:, places].log_softmax(-1)
        torch.testing.assert_close(scores.logits - scores.log_norm[:, None], expected, atol=1e-4, rtol=0)


def test_top_k(make_node: Any, artifacts: Any, reference: Any) -> None:
    node = make_node("prefill", TOKENS, artifact="causal", head="top_k", k=3)
    (top,) = run(node, REQUESTS[:1])
    assert isinstance(top, TopK)
    expected = last_logits(reference, REQUESTS[0]).log_softmax(-1).topk(3)
    torch.testing.assert_close(top.logprobs, expected.values, atol=1e-4, rtol=0)
    assert top.token_ids.tolist() == expected.indices.tolist()
    tokenizer = artifacts.get("causal").artifact.tokenizer
    assert top.texts[1][0] == tokenizer.decode([top.token_ids[1, 0].item()])


@pytest.mark.parametrize("dimensions", [None, 16])
def test_embedding(make_node: Any, reference: Any, dimensions: int | None) -> None:
    options = {} if dimensions is None else {"dimensions": dimensions}
    node = make_node("prefill", TOKENS, artifact="causal", head="embedding", **options)
    for tokens, embeddings in zip(REQUESTS, run(node, REQUESTS), strict=True):
        assert isinstance(embeddings, Embeddings)
        with torch.inference_mode():
            states = [reference.model(torch.tensor([ids])).last_hidden_state[0, -1] for ids in tokens.ids]
        expected = torch.nn.functional.normalize(torch.stack(states)[:, :dimensions], dim=-1)
        torch.testing.assert_close(embeddings.vectors, expected, atol=1e-4, rtol=0)


def test_score_head_of_a_classification_checkpoint(make_node: Any, tiny_classifier: Any) -> None:
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(tiny_classifier.checkpoint).eval()
    node = make_node("prefill", TOKENS, artifact="classifier", head="score")
    assert node.labels == ("bad", "fair", "good")
    for tokens, scores in zip(REQUESTS, run(node, REQUESTS), strict=True):
        with torch.inference_mode():
            expected = torch.cat([model(torch.tensor([ids])).logits for ids in tokens.ids])
        torch.testing.assert_close(scores.logits, expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(scores.log_norm, expected.logsumexp(-1), atol=1e-4, rtol=0)


def test_it_tells_what_it_is(make_node: Any, artifacts: Any) -> None:
    node = make_node("prefill", TOKENS, artifact="causal", head="embedding")
    opened = artifacts.get("causal")
    assert node.model.digest == opened.artifact.digest
    assert (node.capacity.tokens, node.capacity.samples, node.capacity.batches) == (2048, 32, 2)
    assert node.executor is opened.lanes.executor


def test_nan_in_one_request_leaves_the_others(make_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node("prefill", TOKENS, artifact="causal", head="label_scores", labels=LABELS)
    compute = node._head.compute

    def broken(hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = hidden.clone()
        hidden[1] = math.nan
        return tuple(compute(hidden))

    monkeypatch.setattr(node._head, "compute", broken)
    bad, good = run(node, REQUESTS)
    assert isinstance(bad, NodeError)
    assert bad.code == "model_output"
    assert isinstance(good, Scores)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (Tokens(((5,), ())), "no tokens"),
        (Tokens(((5, 100_000),)), "token id 100000 is outside the vocabulary"),
        (Tokens(((-1,),)), "token id -1"),
        (Tokens(((5,) * 65,)), "65 tokens"),
    ],
)
def test_tokens_of_a_users_node_are_checked(make_node: Any, tokens: Tokens, words: str) -> None:
    node = make_node("prefill", TOKENS, artifact="causal", head="embedding")
    bad, good = run(node, [tokens, REQUESTS[0]])
    assert isinstance(bad, InputError)
    assert words in str(bad)
    assert isinstance(good, Embeddings)


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ({"artifact": "causl", "head": "embedding"}, "artifact", "did you mean 'causal'"),
        ({"artifact": "causal", "head": "embeding"}, "head", "did you mean 'embedding'"),
        ({"artifact": "causal", "head": "embedding", "k": 3}, "k", "unknown setting"),
        ({"artifact": "causal", "head": "embedding", "dimensions": 49}, "dimensions", "states have 48"),
        ({"artifact": "causal", "head": "top_k", "k": 100_000}, "k", "vocabulary has"),
        ({"artifact": "causal", "head": "top_k"}, "k", "required"),
        ({"artifact": "causal", "head": "score"}, "head", "SequenceClassification"),
        ({"artifact": "classifier", "head": "top_k", "k": 1}, "head", "no language model head"),
        ({"artifact": "causal", "head": "label_scores"}, "labels", "required"),
    ],
)
def test_mistakes_are_named(make_node: Any, options: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        make_node("prefill", TOKENS, **options)
    assert caught.value.key == key


def test_bounds_over_the_artifacts_are_named(make_node: Any) -> None:
    bounds = Bounds(samples=8, tokens_per_sample=513, tokens_per_request=1024)
    with pytest.raises(ConfigError, match="'causal' was built for at most 512") as caught:
        make_node("prefill", TOKENS, bounds, artifact="causal", head="embedding")
    assert caught.value.key == "bounds.tokens_per_sample"


def test_tokens_of_another_vocabulary_are_refused(make_node: Any) -> None:
    inputs = {"prompt": Source(Tokens, vocabulary="another")}
    with pytest.raises(ConfigError, match="not the one that 'prompt' tokenizes with"):
        make_node("prefill", inputs, artifact="causal", head="embedding")


CONSTANT = tuple(range(20, 40))
SHARED = tuple(range(100, 130))
SHARING = [
    Tokens(tuple((*CONSTANT, *SHARED, i, 9) for i in range(4))),
    Tokens(((5, 6), (7,))),
    Tokens(((*CONSTANT, 5), (*CONSTANT[:12], 6, 7))),
]


@pytest.mark.parametrize("prefixes", ["auto", "off"])
def test_prefixes_change_what_is_computed_and_not_what_comes_out(
    make_node: Any, reference: Any, prefixes: str
) -> None:
    inputs = {"prompt": Source(Tokens, constant_prefix=CONSTANT)}
    node = make_node("prefill", inputs, artifact="causal", head="top_k", k=300, prefixes=prefixes)
    results = run(node, SHARING)
    saved = [each.saved if isinstance(each, Counted) else None for each in results]
    assert saved == ([Saved(80, 90), None, Saved(32)] if prefixes == "auto" else [None] * 3)
    for tokens, result in zip(SHARING, results, strict=True):
        top = result.value if isinstance(result, Counted) else result
        expected = last_logits(reference, tokens).log_softmax(-1).gather(-1, top.token_ids)
        torch.testing.assert_close(top.logprobs, expected, atol=1e-4, rtol=0)


def test_a_constant_prefix_is_cut_to_the_bounds(make_node: Any, artifacts: Any) -> None:
    inputs = {"prompt": Source(Tokens, constant_prefix=tuple(range(3, 250)))}
    node = make_node("prefill", inputs, artifact="causal", head="embedding")
    (result,) = run(node, [Tokens((tuple(range(3, 67)),))])
    assert result.saved == Saved(63)


def test_nothing_is_computed_for_a_short_constant_prefix(make_node: Any, artifacts: Any) -> None:
    inputs = {"prompt": Source(Tokens, constant_prefix=(3, 4, 5))}
    node = make_node("prefill", inputs, artifact="causal", head="embedding")
    assert node._prefixes.constant is None
    assert isinstance(run(node, [Tokens(((3, 4, 5, 6),))])[0], Embeddings)


def test_eight_bits_need_a_constant_prefix_however_short(
    make_node: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(type(artifacts.get("causal").artifact), "quantises", property(lambda _: True))
    inputs = {"prompt": Source(Tokens, constant_prefix=(3, 4, 5))}
    node = make_node("prefill", inputs, artifact="causal", head="embedding")
    assert node._prefixes.constant.ids == (3, 4, 5)
    assert run(node, [Tokens(((3, 4, 5, 6), (3, 9)))])[0].saved == Saved(4)
    assert not caplog.records
    assert make_node("prefill", inputs, artifact="causal", head="embedding", prefixes="off")
    assert "prefixes = 'off', so the first tokens of every prompt are in 8 bits" in caplog.text
    assert make_node("prefill", TOKENS, artifact="causal", head="embedding")
    assert "begin with nothing that stays the same" in caplog.text


def test_an_unknown_way_with_prefixes_is_named(make_node: Any) -> None:
    with pytest.raises(ConfigError, match="'auto' or 'off'") as caught:
        make_node("prefill", TOKENS, artifact="causal", head="embedding", prefixes="on")
    assert caught.value.key == "prefixes"


def test_kernels_without_prefixes_are_told(
    make_node: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(type(artifacts.get("causal").lanes), "takes_prefixes", property(lambda _: False))
    inputs = {"prompt": Source(Tokens, constant_prefix=CONSTANT)}
    with caplog.at_level("INFO", "engine.nodes.prefill"):
        make_node("prefill", inputs, artifact="causal", head="embedding", prefixes="off")
        assert not caplog.records
        node = make_node("prefill", inputs, artifact="causal", head="embedding")
    assert "'causal': its kernels take no prefixes" in caplog.text
    assert node._prefixes == Prefixes()
