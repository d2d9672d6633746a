"""The real model behind Kafka: answers are the engine's own, also across a killed worker."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from pathlib import Path

from engine.pipeline import Answer, ArtifactStore, Pipeline, PipelineConfig
from schemas.messages import Outcome, Sample
from worker_service import MakeSite, Mouth

TEXTS = [
    f"Query: {query}\nProduct: {title}\nRelevant:"
    for query in ("running shoes women", "usb c charger", "red wine glasses", "kids raincoat", "4k monitor")
    for title in (
        "Nike Pegasus 41",
        "Anker 65W charger, 3 ports",
        "Riedel Ouverture, set of 4",
        "Dell U2723QE",
    )
]
WRITTEN = {
    "bounds": {"samples": 4, "tokens_per_sample": 128, "tokens_per_request": 512},
    "nodes": {
        "prompt": {"kind": "tokenizer", "artifact": "smollm2"},
        "model": {
            "kind": "prefill",
            "artifact": "smollm2",
            "inputs": ["prompt"],
            "head": "label_scores",
            "labels": {"yes": " yes", "no": " no"},
        },
        "answer": {"kind": "encoder", "inputs": ["model"], "output": "softmax"},
    },
}
TOLERANCE = 1e-3  # of a probability: a packed batch against the sample alone


def engines_own(artifact: Path) -> dict[str, dict[str, float]]:
    """The scores that the engine gives each text alone."""
    store = ArtifactStore({"smollm2": artifact}, device="cpu", lanes=1, threads=1)
    config = PipelineConfig.model_validate({"name": "relevance", **WRITTEN})
    with Pipeline.open(config, store) as pipeline:
        found: dict[str, dict[str, float]] = {}
        for text in TEXTS:
            (answer,) = pipeline.submit([pipeline.prepare([Sample(text=text)])]).result(60)
            assert isinstance(answer, Answer)
            found[text] = answer.rows[0]["scores"]  # type: ignore[assignment]
    store.close()
    return found


async def test_answers_are_the_engines_across_a_killed_worker(sites: MakeSite, smollm2_artifact: Path):
    engine = {"artifacts": {"smollm2": str(smollm2_artifact)}, "threads": 1}
    site = await sites(
        partitions=2,
        pipeline="relevance",
        written=WRITTEN,
        settings={"engine": engine, "kafka": {"session_timeout_ms": 6000}},
    )
    sent: dict[str, list[str]] = {}
    async with AsyncExitStack() as stack:
        stack.enter_context(site.worker("survivor"))
        victim = stack.enter_context(site.worker("victim"))
        mouth = await stack.enter_async_context(Mouth(site))
        for number in range(60):
            texts = [TEXTS[(number + step) % len(TEXTS)] for step in range(1 + number % 4)]
            request_id = await mouth.send(texts, partition=number % 2)
            sent[request_id] = texts
            if number == 30:
                await mouth.until(lambda: any(each.reply.worker == "victim" for each in mouth.answers))
                victim.child.process.kill()
        await mouth.until(lambda: sent.keys() <= mouth.by_id.keys())
        await site.caught_up()
    expected = engines_own(smollm2_artifact)
    for request_id, texts in sent.items():
        for answer in mouth.by_id[request_id]:
            assert answer.reply.outcome is Outcome.OK
            assert [row["id"] for row in answer.reply.results] == list(range(len(texts)))
            for row, text in zip(answer.reply.results, texts, strict=True):
                assert row["scores"].keys() == {"yes", "no"}
                assert row["label"] == max(row["scores"], key=row["scores"].__getitem__)
                for label, score in expected[text].items():
                    assert math.isclose(row["scores"][label], score, abs_tol=TOLERANCE)
    assert len({round(scores["yes"], 3) for scores in expected.values()}) > 10  # not all alike
