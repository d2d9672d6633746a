"""Beam node: against a plain search, a request's own width, items, end tokens, mistakes in settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from engine.bounds import Bounds
from engine.build.plain_beams import PlainBeams, search_plainly
from engine.demand import Demand
from engine.errors import ConfigError, InputError, NodeError
from engine.graph import NodeContext, Source
from engine.nodes.beam import Beam
from engine.options import read_options
from engine.pipeline import Answer, Failure, Pipeline, PipelineConfig
from engine.store import ArtifactStore
from engine.values import Beams, Tokens

MakeBeam = Callable[..., Beam]
BOUNDS = Bounds(samples=8, tokens_per_sample=64, tokens_per_request=256)
PROMPTS = ((5, 6, 7, 8), (100, 200), (42,) * 30)
PIPELINE = """
name: recall
bounds: {samples: 2, tokens_per_sample: 32, tokens_per_request: 64}
nodes:
  prompt: {kind: tokenizer, artifact: beam}
  model: {kind: beam, artifact: beam, inputs: [prompt], width: 5, steps: 3}
  answer: {kind: encoder, inputs: [model]}
"""


@pytest.fixture(scope="module")
def store(tiny_beam: Any, tiny_causal: Any) -> Iterator[ArtifactStore]:
    store = ArtifactStore({"beam": tiny_beam.artifact, "causal": tiny_causal.artifact})
    yield store
    store.close()


@pytest.fixture
def make_beam(store: ArtifactStore) -> Iterator[MakeBeam]:
    made: list[Beam] = []

    def make(bounds: Bounds = BOUNDS, directory: Path = Path(), **options: Any) -> Beam:
        context = NodeContext("node", bounds, {"prompt": Source(Tokens)}, store, directory)
        given = {"artifact": "beam", "width": 10, "steps": 2} | options
        node = Beam(read_options(Beam.Options, given), context)
        made.append(node)
        return node

    yield make
    for node in made:
        node.close()


@pytest.fixture(scope="module")
def reference(tiny_beam: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_beam.checkpoint, dtype=torch.float32).eval()


def run(node: Beam, *requests: Tokens) -> list[Any]:
    assert node.executor is not None
    return list(node.executor.submit(node.run, [(tokens,) for tokens in requests]).result())


def sequences(beams: Beams, sample: int) -> list[tuple[int, ...]]:
    each = beams.samples[sample]
    return [
        tuple(ids[:length])
        for ids, length in zip(each.token_ids.tolist(), each.lengths.tolist(), strict=True)
    ]


def check(beams: Beams, sample: int, plain: PlainBeams) -> None:
    assert sequences(beams, sample) == plain.tokens
    assert beams.samples[sample].scores.tolist() == pytest.approx(plain.scores, abs=1e-3)


def test_requests_of_several_prompts_and_widths(make_beam: MakeBeam, reference: Any) -> None:
    one, other = run(
        make_beam(), Tokens(PROMPTS[:2], {"width": 3.0, "top_n": 2}), Tokens(PROMPTS[2:], {"color": "red"})
    )
    assert one.top_n == 2
    assert other.top_n is None
    for sample in range(2):
        check(one, sample, search_plainly(reference, PROMPTS[sample], 3, 2))
    check(other, 0, search_plainly(reference, PROMPTS[2], 10, 2))
    assert not bool(other.samples[0].finished.any())
    assert other.samples[0].leaves is None


def test_a_request_takes_its_prompts_and_a_row_a_beam_and_step(make_beam: MakeBeam) -> None:
    node, num_tokens = make_beam(), sum(map(len, PROMPTS[:2]))
    assert node.demand((Tokens(PROMPTS[:2]),)) == Demand(num_tokens, 2, rows=2 * 10 * 2)
    assert node.demand((Tokens(PROMPTS[:2], {"width": 3}),)) == Demand(num_tokens, 2, rows=2 * 3 * 2)


def test_texts(make_beam: MakeBeam, store: ArtifactStore) -> None:
    (beams,) = run(make_beam(), Tokens(PROMPTS[:1]))
    found = sequences(beams, 0)
    tokenizer = store.get("beam").artifact.tokenizer
    assert beams.decode(found) == [tokenizer.decode(ids) for ids in found]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"width": 11}, "too_large", "options.width = 11: at most 10"),
        ({"top_n": 100}, "too_large", "options.top_n = 100: at most 10"),
        ({"width": 0}, "invalid", "options.width = 0: must be a whole number from 1 to 10"),
        ({"width": "3"}, "invalid", "options.width = '3': must be a whole number from 1 to 10"),
        ({"width": True}, "invalid", "options.width = True: must be a whole number from 1 to 10"),
        ({"top_n": float("inf")}, "invalid", "options.top_n = inf: must be a whole number from 1 to 10"),
        ({"top_n": -2.0}, "invalid", "options.top_n = -2.0: must be a whole number from 1 to 10"),
        ({"top_n": 2.5}, "invalid", "options.top_n = 2.5: must be a whole number from 1 to 10"),
    ],
)
def test_a_wrong_option_is_its_own_request_s(
    make_beam: MakeBeam, options: dict[str, Any], code: str, said: str
) -> None:
    node = make_beam()
    with pytest.raises(InputError, match=said):
        node.check_options(options)
    wrong, right = run(node, Tokens(PROMPTS[:1], options), Tokens(PROMPTS[1:]))
    assert isinstance(wrong, InputError)
    assert (wrong.code, str(wrong), wrong.field) == (code, said, f"options.{next(iter(options))}")
    assert isinstance(right, Beams)


def test_tokens_that_do_not_fit(make_beam: MakeBeam) -> None:
    unknown, long, right = run(make_beam(), Tokens(((5000,),)), Tokens(((1,) * 65,)), Tokens(PROMPTS[:1]))
    assert "token id 5000 is outside the vocabulary" in str(unknown)
    assert long.code == "too_large"
    assert isinstance(right, Beams)


def write_items(path: Path, items: dict[str, list[int]]) -> None:
    lines = [json.dumps({"item_id": name, "token_ids": ids}) for name, ids in items.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_items(make_beam: MakeBeam, reference: Any, tmp_path: Path) -> None:
    """Few enough to be found all: in the order that transformers gives their log-probabilities."""
    generator = torch.Generator().manual_seed(0)
    drawn = {tuple(torch.randint(20, (3,), generator=generator).tolist()) for _ in range(9)}
    items = {f"item-{i}": list(ids) for i, ids in enumerate(sorted(drawn))}
    write_items(tmp_path / "items.jsonl", items)
    node = make_beam(directory=tmp_path, items="items.jsonl")
    (beams,) = run(node, Tokens(PROMPTS[:1]))
    assert beams.legal is not None
    expected = []
    for name, ids in items.items():
        with torch.inference_mode():
            logits = reference(torch.tensor([[*PROMPTS[0], *ids]])).logits[0, len(PROMPTS[0]) - 1 : -1]
        score = float(logits.log_softmax(-1)[range(3), ids].sum())
        expected.append((score, name))
    expected.sort(reverse=True)
    found = beams.legal.item_ids(beams.samples[0].leaves.tolist())
    assert found == [[name] for _, name in expected]
    assert beams.samples[0].scores.tolist() == pytest.approx([score for score, _ in expected], abs=1e-3)


def test_a_batch_has_the_items_it_began_with(make_beam: MakeBeam, tmp_path: Path) -> None:
    write_items(tmp_path / "items.jsonl", {"old": [1, 2, 3]})
    node = make_beam(directory=tmp_path, items="items.jsonl")
    (before,) = run(node, Tokens(PROMPTS[:1]))
    write_items(tmp_path / "items.jsonl", {"new": [3, 2, 1], "newer": [3, 2, 2]})
    assert node._catalogue is not None
    while not node._catalogue.look():
        pass
    (after,) = run(node, Tokens(PROMPTS[:1]))
    assert before.legal.item_ids(before.samples[0].leaves.tolist()) == [["old"]]
    assert sorted(after.legal.item_ids(after.samples[0].leaves.tolist())) == [["new"], ["newer"]]
    assert before.legal.version != after.legal.version


def test_finished_beams(make_beam: MakeBeam) -> None:
    ends = list(range(0, 326, 7))
    (fixed,) = run(make_beam(steps=4), Tokens(PROMPTS[:1]))
    (finish,) = run(make_beam(steps=4, eos="finish", end_tokens=ends), Tokens(PROMPTS[:1]))
    assert fixed.samples[0].lengths.tolist() == [5] * 10
    found = sequences(finish, 0)
    assert any(len(ids) < 5 for ids in found)
    for ids, finished in zip(found, finish.samples[0].finished.tolist(), strict=True):
        assert all(token not in ends for token in ids[:-1])
        assert finished == (ids[-1] in ends)
        assert finished or len(ids) == 5


def test_scores_by_length(make_beam: MakeBeam) -> None:
    ends = list(range(0, 326, 7))
    settings = {"steps": 4, "eos": "finish", "end_tokens": ends}
    (plain,) = run(make_beam(**settings), Tokens(PROMPTS[:1]))
    (mean,) = run(make_beam(normalize="length", **settings), Tokens(PROMPTS[:1]))
    sums = dict(zip(sequences(plain, 0), plain.samples[0].scores.tolist(), strict=True))
    means = mean.samples[0].scores.tolist()
    assert means == sorted(means, reverse=True)
    for ids, score in zip(sequences(mean, 0), means, strict=True):
        assert score == pytest.approx(sums[ids] / len(ids), abs=1e-5)
    assert set(sums) == set(sequences(mean, 0))


def test_slices(make_beam: MakeBeam) -> None:
    slices = [[0, 50], [50, 100], [100, 326]]
    (beams,) = run(make_beam(slices=slices), Tokens(PROMPTS[:1]))
    for ids in sequences(beams, 0):
        assert all(start <= token < stop for token, (start, stop) in zip(ids, slices, strict=True))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"width": 101}, "width = 101: artifact 'beam' was built for at most 100"),
        ({"steps": 5}, "steps = 5: artifact 'beam' was built for at most 4"),
        ({"artifact": "causal"}, "was built without beams; build it with --beam-width"),
        ({"end_tokens": [3]}, r"end_tokens = \[3\]: is for eos: finish"),
        ({"eos": "finish", "end_tokens": [9999]}, "end_tokens = 9999: is outside the vocabulary of 326"),
        ({"eos": "stop"}, "eos = 'stop'"),
        ({"slices": [[0, 5]]}, "a sequence has 3 tokens, and each needs"),
        ({"slices": [[0, 5], [5, 5], [0, 9]]}, r"slices.1 = \[5, 5\]: must be \[start, stop\) within"),
        ({"slices": [[0, 5], [5, 9], [0, 999]]}, r"slices.2 = \[0, 999\]"),
        ({"items": "none.jsonl"}, "items = '.*none.jsonl': cannot be read"),
        ({"bounds": Bounds(samples=9, tokens_per_sample=8, tokens_per_request=99)}, "bounds.samples = 9"),
    ],
)
def test_settings_that_cannot_work(
    make_beam: MakeBeam, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_beam(directory=tmp_path, **options)


def test_nan_fails_its_own_request(make_beam: MakeBeam, store: ArtifactStore) -> None:
    """A token whose embedding is NaN, for the time of the test; the head is another matrix."""
    embedding = store.get("beam").artifact._weights["embed_tokens.weight"]
    node, kept = make_beam(), embedding[300].clone()
    before = run(node, Tokens(PROMPTS[:1]), Tokens(PROMPTS[1:]))
    try:
        embedding[300] = torch.nan
        first, poisoned, last = run(node, Tokens(PROMPTS[:1]), Tokens(((5,), (300, 4))), Tokens(PROMPTS[1:]))
    finally:
        embedding[300] = kept
    assert isinstance(poisoned, NodeError)
    assert poisoned.code == "model_output"
    for mine, clean in ((first, before[0]), (last, before[1])):
        for sample in range(len(mine.samples)):
            assert sequences(mine, sample) == sequences(clean, sample)


def test_in_a_pipeline(store: ArtifactStore, reference: Any, sample: Any) -> None:
    config = PipelineConfig.model_validate(yaml.safe_load(PIPELINE))
    with Pipeline.open(config, store) as pipeline:
        assert pipeline.capacity.samples == 8
        with pytest.raises(InputError, match=r"options\.width = 6: at most 5"):
            pipeline.prepare([sample(token_ids=[5, 6])], options={"width": 6})
        batch = [
            pipeline.prepare([sample(token_ids=[5, 6])], options={"width": 2}),
            pipeline.prepare([sample(token_ids=[7]), sample(token_ids=[8, 9])]),
        ]
        narrow, wide = pipeline.submit(batch).result(timeout=60)
    assert isinstance(narrow, Answer), isinstance(narrow, Failure) and narrow
    assert isinstance(wide, Answer)
    plain = search_plainly(reference, [5, 6], 2, 3)
    assert [tuple(beam["token_ids"]) for beam in narrow.rows[0]["beams"]] == plain.tokens  # type: ignore[attr-defined]
    assert [len(row["beams"]) for row in wide.rows] == [5, 5]  # type: ignore[arg-type]


def test_what_searches_took_to_load_counts_for_the_artifact(store: ArtifactStore) -> None:
    searches, model = store.get_beams("beam").load_report, store.get("beam").lanes.load_report
    assert searches.seconds > 0
    assert store.load_reports["beam"] == model.joined(searches)
