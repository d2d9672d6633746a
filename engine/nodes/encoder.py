"""Encoder node: what models gave -> the rows of the reply.

With one input its rows are the answer; with several each row nests them by input name. An input that is rows
already (another encoder's) is taken as it is. Pure computation on the CPU, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from pydantic import Field

from engine.errors import ConfigError
from engine.graph import Node, NodeContext, Source
from engine.nodes.beam_rows import BeamRows
from engine.nodes.rows import (
    LabelMapping,
    MappingOptions,
    RowList,
    embedding_byte_rows,
    embedding_rows,
    logit_rows,
    logprob_rows,
    sigmoid_rows,
    softmax_rows,
    top_k_rows,
)
from engine.options import Options, suggest
from engine.values import Beams, Embeddings, Rows, Scores, TopK

Encoding: TypeAlias = Callable[[Any], RowList]

OUTPUTS: Mapping[str, type] = {
    "softmax": Scores,
    "sigmoid": Scores,
    "logprobs": Scores,
    "logits": Scores,
    "mapping": Scores,
    "top_k": TopK,
    "embedding": Embeddings,
    "beams": Beams,
}
DEFAULTS: Mapping[type, str] = {
    Scores: "softmax",
    TopK: "top_k",
    Embeddings: "embedding",
    Beams: "beams",
}
PLAIN: Mapping[str, Encoding] = {
    "softmax": softmax_rows,
    "sigmoid": sigmoid_rows,
    "logprobs": logprob_rows,
    "logits": logit_rows,
    "top_k": top_k_rows,
}


class EncoderOptions(Options):
    """output: for all inputs, or by input name; left out, softmax, top_k, embedding or beams as the input
    needs."""

    output: str | dict[str, str] | None = None
    mapping: MappingOptions | None = None
    encoding: Literal["list", "f32"] = "list"  # of embeddings
    top_n: int | None = Field(default=None, ge=1)  # the most beams of a row; a request's own below it counts
    texts: bool = True  # of beams
    tokens: bool = False  # of beams: the text of each token, too


class Encoder(Node):
    """Scores, TopK, Embeddings, Beams or Rows -> Rows."""

    Options = EncoderOptions
    consumes = (Scores, TopK, Embeddings, Beams, Rows)
    produces = Rows
    max_inputs = 16

    def __init__(self, options: EncoderOptions, context: NodeContext) -> None:
        outputs = _outputs(options, context.inputs)
        for key, given, output in (
            ("mapping", options.mapping is not None, "mapping"),
            ("encoding", options.encoding != "list", "embedding"),
            ("top_n", options.top_n is not None, "beams"),
            ("texts", not options.texts, "beams"),
            ("tokens", options.tokens, "beams"),
        ):
            if given and output not in outputs.values():
                raise ConfigError(key, getattr(options, key), f"is for output: {output}, which no input has")
        self._names = tuple(context.inputs)
        self._encodings = tuple(
            _encoding(options, outputs[name], source) if name in outputs else _as_they_are
            for name, source in context.inputs.items()
        )

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        return [self._encode(values) for values in requests]

    def _encode(self, values: tuple[Any, ...]) -> Rows:
        columns = [encode(value) for encode, value in zip(self._encodings, values, strict=True)]
        if len(columns) == 1:
            return Rows(tuple(columns[0]))
        samples = zip(*columns, strict=True)
        return Rows(tuple(dict(zip(self._names, rows, strict=True)) for rows in samples))


def _outputs(options: EncoderOptions, inputs: Mapping[str, Source]) -> dict[str, str]:
    """The output of each input that is not rows already; ConfigError where they do not fit."""
    if isinstance(options.output, dict):
        for name, output in options.output.items():
            if name not in inputs:
                raise ConfigError(f"output.{name}", output, "no such input; " + suggest(name, inputs))
    found = {}
    for name, source in inputs.items():
        if issubclass(source.produces, Rows):
            continue
        default = next(output for kind, output in DEFAULTS.items() if issubclass(source.produces, kind))
        if isinstance(options.output, dict):
            key, output = f"output.{name}", options.output.get(name, default)
        else:
            key, output = "output", options.output or default
        if output not in OUTPUTS:
            raise ConfigError(key, output, "no such output; " + suggest(output, OUTPUTS))
        if not issubclass(source.produces, OUTPUTS[output]):
            reason = f"needs {OUTPUTS[output].__name__}, but {name!r} gives {source.produces.__name__}"
            raise ConfigError(key, output, reason)
        found[name] = output
    return found


def _encoding(options: EncoderOptions, output: str, source: Source) -> Encoding:
    if output == "embedding":
        return embedding_rows if options.encoding == "list" else embedding_byte_rows
    if output == "beams":
        return BeamRows(options.top_n, options.texts, options.tokens)
    if output != "mapping":
        return PLAIN[output]
    if options.mapping is None:
        raise ConfigError("mapping", None, "output: mapping needs it: mapping: {values: {label: value, ...}}")
    mapping = LabelMapping(options.mapping)
    try:
        mapping.check(source.labels)
    except ConfigError as error:
        raise error.under("mapping") from None
    return mapping


def _as_they_are(rows: Rows) -> RowList:
    return list(rows.rows)
