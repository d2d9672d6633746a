"""Requests of a calibration file as token ids, through a pipeline's own template.

Of five requests (engine.quant.request_lines), the first calibrates, the second chooses, the other three
judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from engine.errors import ConfigError, InputError
from engine.graph import NodeContext
from engine.heads.label_scores import label_tokens
from engine.nodes.beam import Beam
from engine.nodes.tokenizer import Tokenizer
from engine.options import read_options
from engine.pipeline_config import NodeConfig, PipelineConfig
from engine.prefixes import common_length
from engine.quant.request_lines import WireSample, read_lines
from engine.quant.texts import Text
from engine.store import ArtifactStore
from engine.values import Samples, Tokens

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
        self._search = _search(config)
        off = any(each.settings.get("prefixes") == "off" for each in config.nodes.values())
        self._prefix = 0 if off or self._search is not None else None  # None: to be found

    def read(self, samples: Sequence[WireSample]) -> list[Text]:
        """InputError for samples that the pipeline does not take."""
        ids = self._tokenize(samples)
        if self._prefix is None:
            self._prefix = self._find_prefix(samples[0], ids[0])
        return [Text(each, self._labels, min(self._prefix, len(each) - 1), self._search) for each in ids]

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
    lines = read_lines(path, [config.name for config in configs])
    pipelines = {config.name: PipelineTexts(config, tokenizer, num_classes) for config in configs}
    requests: list[list[Text]] = []
    for line in lines:
        try:
            requests.append(pipelines[line.pipeline].read(line.samples))
        except (ValueError, InputError) as error:
            raise ConfigError("calibrate", f"{path}, line {line.number}", str(error)) from None

    def part(*places: int) -> tuple[Text, ...]:
        return tuple(text for i, texts in enumerate(requests) if i % 5 in places for text in texts)

    return TextSets(part(0), part(1), part(2, 3, 4))


def _search(config: PipelineConfig) -> tuple[int, int] | None:
    """Width and steps; ConfigError where they are none."""
    found = [node.settings for node in config.nodes.values() if node.kind == "beam"]
    if not found:
        return None
    options = read_options(Beam.Options, found[0])
    return options.width, options.steps


def _only_node(config: PipelineConfig, kind: str) -> NodeConfig:
    found = [node for node in config.nodes.values() if node.kind == kind]
    if len(found) != 1:
        reason = f"has {len(found)} nodes of kind {kind}; texts are made by exactly one"
        raise ConfigError("pipeline", config.name, reason)
    return found[0]
