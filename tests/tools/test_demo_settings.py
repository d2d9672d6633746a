"""What the demo tells its worker is valid, and the pipelines that it names are shipped."""

from __future__ import annotations

from pathlib import Path

import yaml

from engine.pipeline import read_pipeline
from tools.demo.queries import read_queries
from tools.demo.settings import PIPELINES, Servers, config_file, request_topics, worker_settings
from worker.config import read_worker_config


def test_the_generated_configuration_is_valid(tmp_path: Path):
    settings = worker_settings(
        Servers("127.0.0.1:9092", "redis://127.0.0.1:6379/0", 5), tmp_path / "artifact"
    )
    path = tmp_path / "worker.yaml"
    path.write_text(yaml.safe_dump(settings))
    config = read_worker_config(path)
    assert [each.topic for each in config.pipelines] == list(request_topics().values())
    assert config.engine.lanes == 1
    assert config.http.port > 0


def test_its_pipelines_are_shipped_and_named_as_the_queries_name_them():
    for name in PIPELINES:
        assert read_pipeline(config_file(f"{name}.yaml")).name == name
    assert {query.pipeline for query in read_queries()} == set(PIPELINES)


def test_rejected_queries_are_over_the_bounds_and_others_are_not():
    pipelines = {name: read_pipeline(config_file(f"{name}.yaml")) for name in PIPELINES}
    for query in read_queries():
        pipeline = pipelines[query.pipeline]
        template = pipeline.nodes["prompt"].settings["template"]
        words = [len(template.format(**sample).split()) for sample in query.samples]
        # A prompt has at least as many tokens as words, and in this file never three times as many.
        too_large = (
            len(words) > pipeline.bounds.samples or max(words, default=0) > pipeline.bounds.tokens_per_sample
        )
        small = len(words) <= pipeline.bounds.samples and max(words, default=0) * 3 <= 128
        assert (too_large, small) == (query.fate == "rejected", query.fate != "rejected"), query.id
