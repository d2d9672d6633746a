"""What a sample can get wrong, sent to a real worker with a real (tiny) artifact: named, nobody suffers."""

from __future__ import annotations

from typing import Any

from schemas.codec import encode_request
from schemas.messages import ErrorCode, Outcome, Request, Sample
from tiny_models import TinyModel
from worker_service import MakeSite, Mouth

GOOD = {"query": "wireless mouse", "title": "mouse with a silent click"}


def written(template: str | None) -> dict[str, Any]:
    prompt = {"kind": "tokenizer", "artifact": "tiny", "specials_in_fields": "error"}
    return {
        "bounds": {"samples": 3, "tokens_per_sample": 40, "tokens_per_request": 90},
        "nodes": {
            "prompt": prompt if template is None else {**prompt, "template": template},
            "model": {
                "kind": "prefill",
                "artifact": "tiny",
                "inputs": ["prompt"],
                "head": "label_scores",
                "labels": {"yes": " yes", "no": " no"},
            },
            "answer": {"kind": "encoder", "inputs": ["model"]},
        },
    }


INVALID, TOO_LARGE = ErrorCode.INVALID_FIELD, ErrorCode.TOO_LARGE
# samples, the code of the refusal, the field it names, a word of the message
WITH_TEMPLATE: list[tuple[list[dict[str, Any]], ErrorCode, str, str]] = [
    ([{"fields": {"query": "mouse"}}], INVALID, "samples[0].fields.title", "title"),
    ([{"fields": {**GOOD, "query": "a <|im_end|>"}}], INVALID, "samples[0].fields.query", "<|im_end|>"),
    (
        [{"fields": GOOD}, {"fields": {"titel": "x", "query": ""}}],
        INVALID,
        "samples[1].fields.title",
        "titel",
    ),
    ([{"text": "mouse"}], INVALID, "samples[0].fields.query", "query"),
    ([{"token_ids": [1, 2]}], INVALID, "samples[0].token_ids", "template"),
    ([{"fields": {**GOOD, "title": "click " * 50}}], TOO_LARGE, "samples[0]", "40"),
    ([{"fields": GOOD}] * 4, TOO_LARGE, "samples", "4 samples"),
    ([{"fields": {**GOOD, "title": "silent click and long battery"}}] * 3, TOO_LARGE, "samples", "90"),
]
RAW: list[tuple[list[dict[str, Any]], ErrorCode, str, str]] = [
    ([{"text": ""}], INVALID, "samples[0]", "no tokens"),
    ([{"text": "mouse"}, {"token_ids": []}], INVALID, "samples[1].token_ids", "empty"),
    ([{"token_ids": [1, 2_000_000]}], INVALID, "samples[0].token_ids", "2000000"),
    ([{"token_ids": [1] * 41}], TOO_LARGE, "samples[0]", "41"),
    ([{"fields": GOOD}], INVALID, "samples[0].fields.text", "text"),
]


async def check(sites: MakeSite, model: TinyModel, template: str | None) -> None:
    site = await sites(
        pipeline="relevance",
        written=written(template),
        settings={"engine": {"artifacts": {"tiny": str(model.artifact)}, "threads": 1}},
    )
    cases = RAW if template is None else WITH_TEMPLATE
    good = Sample(text="wireless mouse") if template is None else Sample(fields=GOOD)
    with site.worker() as worker:
        async with Mouth(site) as mouth:
            for number, (samples, *_) in enumerate(cases):
                bad = tuple(Sample(**each) for each in samples)
                for name, request_samples in (("bad", bad), ("good", (good,))):
                    request = Request(id=f"{name}-{number}", pipeline="relevance", samples=request_samples)
                    await mouth.send_raw(encode_request(request), correlation=request.id.encode())
            for number, (_, code, field, word) in enumerate(cases):
                reply = await mouth.reply(f"bad-{number}")
                error = reply.error
                assert error is not None, reply
                assert (error.code, error.field) == (code, field), error
                assert word in error.message
                assert reply.outcome is code.outcome
                assert (await mouth.reply(f"good-{number}")).outcome is Outcome.OK
            await site.caught_up()
        assert worker.total("boundgen_model_requests_total") == len(cases)  # the good ones
        assert worker.total("boundgen_dead_letters_total") == 0  # they could be answered


async def test_bad_fields_of_a_template(sites: MakeSite, tiny_causal: TinyModel):
    await check(sites, tiny_causal, "Query: {query}\nProduct: {title}\nRelevant:")


async def test_bad_text_and_token_ids(sites: MakeSite, tiny_causal: TinyModel):
    await check(sites, tiny_causal, None)
