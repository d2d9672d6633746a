"""`bench bulk`, the model part: bulk beside the bare engine: same samples, pipeline and lanes, in turns."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.pipeline import ArtifactStore, Pipeline
from tools.bench.engine_compare import LABELS, pipeline_config
from tools.bench.engine_run import engine_run, time_round
from tools.bench.workload import Request, make_requests
from tools.bulk.columns import Columns
from tools.bulk.engine_scorer import EngineScorer
from tools.bulk.inputs import Kind, find_inputs
from tools.bulk.json_lines import JsonLines
from tools.bulk.progress import BulkProgress
from tools.bulk.reading import PartReader
from tools.bulk.relay import Stop
from tools.bulk.run import BulkRun
from tools.bulk.workspace import Workspace

SAMPLES_A_REQUEST = 15  # as bench engine
PART_ROWS, PART_CHARS = 4096, 16 << 20


@dataclass(frozen=True)
class Sides:
    """Median samples a second of each."""

    engine: float
    bulk: float

    @property
    def ratio(self) -> float:
        return self.bulk / self.engine


def compare(artifact: Path, folder: Path, num_requests: int, rounds: int, threads: int) -> Sides:
    """Both warmed up by one round, then in turns."""
    store = ArtifactStore({"bench": artifact}, threads=threads)
    try:
        vocabulary = int(store.get("bench").artifact.manifest.architecture["vocab_size"])
        requests = make_requests(num_requests, SAMPLES_A_REQUEST, vocabulary, seed=20)
        source = write_samples(folder / "samples.jsonl", requests)
        with Pipeline.open(pipeline_config(SAMPLES_A_REQUEST), store) as pipeline:
            engine, bulk = [], []
            run = engine_run(pipeline, tuple(LABELS))
            for _ in range(rounds + 1):
                engine.append(time_round(run, requests))
                bulk.append(bulk_seconds(pipeline, source, folder / "scores.jsonl"))
    finally:
        store.close()
    samples = num_requests * SAMPLES_A_REQUEST
    return Sides(samples / statistics.median(engine[1:]), samples / statistics.median(bulk[1:]))


def bulk_seconds(pipeline: Pipeline, source: Path, output: Path) -> float:
    """A whole bulk run but for loading the pipeline: reading, scoring, parts, the final file."""
    stop = Stop()
    reader = PartReader(JsonLines(find_inputs(source), Columns({}, True, None)), PART_ROWS, PART_CHARS)
    scorer = EngineScorer(pipeline, 1, stop)
    try:
        with Workspace(output) as workspace, BulkProgress(0) as progress:
            workspace.open({}, restart=True, may_begin=lambda: None)
            tally = BulkRun(reader, scorer, workspace, Kind("jsonl", None), stop).run(progress, output)
            workspace.finish()
    finally:
        scorer.close()
    return tally.seconds


def write_samples(path: Path, requests: Sequence[Request]) -> Path:
    """One row a sample."""
    samples = [sample for request in requests for sample in request]
    path.write_text("".join(json.dumps({"token_ids": sample.token_ids}) + "\n" for sample in samples))
    return path
