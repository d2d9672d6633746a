"""Calibration files: requests as they are sent, through a pipeline's own template.

One JSON object a line: {"pipeline": ..., "samples": [...]} with samples as on the wire ({"fields": {...}},
{"text": ...}, {"token_ids": [...]}) or as plain maps of template fields; or one such map alone. Every line
is one request, of which the first MOST_REQUESTS are read; of five, the first calibrates, the second chooses,
the other three judge.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from engine.errors import ConfigError, InputError
from engine.graph import NodeContext
from engine.heads.label_scores import label_tokens
from engine.nodes.tokenizer import Tokenizer
from engine.options import read_options, suggest
from engine.pipeline_config import NodeConfig, PipelineConfig
from engine.prefixes import common_length
from engine.quant.texts import Text
from engine.store import ArtifactStore
from engine.values import Samples, Tokens

MOST_REQUESTS = 5000  # some of them calibrate; more to judge by takes hours and says no more
PROBES = (
    "a",
    "0",
    "Q",
    "é",
    " x",
    "(",
    "登",
)  # no field's value, so that only the template's words are shared


@dataclass(frozen=True)
class WireSample:
    """engine.values.Sample."""

    text: str | None = None
    fields: Mapping[str, object] | None = None
    token_ids: Sequence[int] | None = None


@dataclass(frozen=True)
class TextSets:
    """Disjoint requests: for scales and rounding, for choosing a plan, and for judging it."""

    calibrate: tuple[Text, ...]
    choose: tuple[Text, ...]
    judge: tuple[Text, ...]


@dataclass(frozen=True)
class _OnlyTokenizer:
    """What a tokenizer node asks of an opened artifact, before there is one."""

    tokenizer: Any
    vocabulary: None = None

    @property
    def artifact(self) -> _OnlyTokenizer:
        return self

    def get(self, _name: str) -> _OnlyTokenizer:
        return self


class PipelineTexts:
    """Requests of one pipeline -> Texts, with its labels' tokens and its constant prefix."""

    def __init__(self, config: PipelineConfig, tokenizer: Any, num_classes: int | None = None) -> None:
        """`num_classes`: of a score head, whose classes are the labels. ConfigError for a pipeline without a
        tokenizer node, or labels that the tokenizer does not have as one token."""
        self.name = config.name
        node = _only_node(config, "tokenizer")
        store = cast(ArtifactStore, _OnlyTokenizer(tokenizer))
        options = read_options(Tokenizer.Options, node.settings)
        self._node = Tokenizer(options, NodeContext("tokenizer", config.bounds, {}, store))
        heads = [each.settings for each in config.nodes.values() if "labels" in each.settings]
        labels: dict[str, str] = heads[0]["labels"] if heads else {}
        if num_classes is not None:
            self._labels = tuple(range(num_classes))
        else:
            self._labels = tuple(label_tokens(tokenizer.backend_tokenizer, labels))
        self._prefix: int | None = None

    def read(self, samples: Sequence[WireSample]) -> list[Text]:
        """InputError for samples that the pipeline does not take."""
        ids = self._tokenize(samples)
        if self._prefix is None:
            self._prefix = self._find_prefix(samples[0], ids[0])
        return [Text(each, self._labels, min(self._prefix, len(each) - 1)) for each in ids]

    def _tokenize(self, samples: Sequence[WireSample]) -> tuple[tuple[int, ...], ...]:
        (found,) = self._node.run([(Samples(tuple(samples)),)])
        assert isinstance(found, Tokens)
        return found.ids

    def _find_prefix(self, sample: WireSample, ids: tuple[int, ...]) -> int:
        """Leading tokens that stay the same whatever the fields hold."""
        if sample.fields is None:
            return 0
        probes = [WireSample(fields=dict.fromkeys(sample.fields, probe)) for probe in PROBES]
        return min(common_length(ids, each) for each in self._tokenize(probes))


def read_texts(
    path: Path, configs: Sequence[PipelineConfig], tokenizer: Any, num_classes: int | None = None
) -> TextSets:
    """ConfigError names the file, the line and what is wrong with it."""
    pipelines = {config.name: PipelineTexts(config, tokenizer, num_classes) for config in configs}
    requests: list[list[Text]] = []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("calibrate", str(path), f"cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip() and len(requests) < MOST_REQUESTS:
            try:
                requests.append(_read_line(line, pipelines))
            except (ValueError, InputError) as error:
                raise ConfigError("calibrate", f"{path}, line {number}", str(error)) from None
    if len(requests) < 5:
        raise ConfigError("calibrate", str(path), f"{len(requests)} requests; at least 5 are needed")

    def part(*places: int) -> tuple[Text, ...]:
        return tuple(text for i, texts in enumerate(requests) if i % 5 in places for text in texts)

    return TextSets(part(0), part(1), part(2, 3, 4))


def _read_line(line: str, pipelines: Mapping[str, PipelineTexts]) -> list[Text]:
    values = json.loads(line)
    if not isinstance(values, dict):
        raise ValueError(f"{line[:40]!r} is not a JSON object")
    wrapped = isinstance(values.get("samples"), list)
    name = values.get("pipeline") if wrapped else None
    if name is None and len(pipelines) == 1:
        name = next(iter(pipelines))
    if not isinstance(name, str) or name not in pipelines:
        raise ValueError(f"pipeline = {name!r}: {suggest(str(name), pipelines)}")
    samples = values["samples"] if wrapped else [values]
    if not samples:
        raise ValueError("samples is empty")
    return pipelines[name].read([_sample(each) for each in samples])


def _sample(values: object) -> WireSample:
    if not isinstance(values, dict):
        raise ValueError(f"sample {values!r} is not a map")
    if isinstance(values.get("fields"), dict):
        return WireSample(fields=values["fields"])
    if isinstance(values.get("token_ids"), list):
        return WireSample(token_ids=values["token_ids"])
    if isinstance(values.get("text"), str) and not set(values) - {"id", "text"}:
        return WireSample(text=values["text"])
    return WireSample(fields=values)


def _only_node(config: PipelineConfig, kind: str) -> NodeConfig:
    found = [node for node in config.nodes.values() if node.kind == kind]
    if len(found) != 1:
        reason = f"has {len(found)} nodes of kind {kind}; texts are made by exactly one"
        raise ConfigError("pipeline", config.name, reason)
    return found[0]
