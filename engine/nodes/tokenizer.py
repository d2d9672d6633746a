"""Tokenizer node: the samples of a request -> token ids, all in one call, before batching.

A sample is rendered into a template and tokenized whole, so merges across the borders of a field are the
tokenizer's own. A prompt over bounds.tokens_per_sample is refused, unless `cut` names the field that gives
way; the template's own words never do. Thread-safe: the tokenizer is only read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from engine.errors import ConfigError, InputError
from engine.graph import Node, NodeContext, Stage
from engine.nodes.cutting import Prompt, cut_to_fit
from engine.nodes.leading import leading_tokens
from engine.nodes.prompts import FilledTemplate, SpecialsPolicy, check_token_ids, fill_template
from engine.nodes.specials import SpecialTokens
from engine.nodes.template import Template
from engine.options import Options, suggest
from engine.values import Samples, Tokens

RAW = "{text}"  # without a template the sample's text is the prompt


class TokenizerOptions(Options):
    """Without a template: raw text or token ids. Of several, a sample takes the first whose fields it has."""

    artifact: str
    template: str | list[str] | None = None
    cut: str | list[str] | None = None  # the field that gives way; of several, the one in the template
    add_special_tokens: bool = False  # those of the tokenizer's own post-processing
    specials_in_fields: SpecialsPolicy = "strip"  # special tokens spelled out in a field's value


class Tokenizer(Node):
    """Samples -> Tokens."""

    Options = TokenizerOptions
    stage = Stage.PREPARE
    consumes = (Samples,)
    produces = Tokens

    def __init__(self, options: TokenizerOptions, context: NodeContext) -> None:
        opened = context.artifacts.get(options.artifact)
        self.vocabulary = opened.vocabulary
        self._tokenizer = plain_tokenizer(opened.artifact.tokenizer.backend_tokenizer)
        self._limit = context.bounds.tokens_per_sample
        self._add_specials = options.add_special_tokens
        self._policy = options.specials_in_fields
        self._raw = options.template is None
        self._vocab_size = self._tokenizer.get_vocab_size()
        self._max_token_chars = max(map(len, self._tokenizer.get_vocab()))
        self._max_chars = self._limit * self._max_token_chars  # more cannot fit, so it need not be tokenized
        self._specials = SpecialTokens(self._tokenizer)
        self._templates = _parse_templates(options.template)
        self._cut_fields = _find_cut_fields(options.cut, self._templates)
        self.constant_prefix = leading_tokens(
            self._tokenizer, self._templates, add_special_tokens=self._add_specials
        )
        own = {each: self._own_ids(each) for each in self._templates}
        _check_room(own, self._limit)
        self._own_specials = {each: self._specials.count(ids) for each, ids in own.items()}

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        return [self._tokenize(samples) for (samples,) in requests]

    def _tokenize(self, samples: Samples) -> Tokens:
        ids: list[tuple[int, ...]] = [()] * len(samples.samples)
        filled: dict[int, FilledTemplate] = {}
        for index, sample in enumerate(samples.samples):
            if sample.token_ids is None:
                filled[index] = fill_template(index, sample, self._templates, self._specials, self._policy)
            else:
                ids[index] = self._check_ids(index, sample.token_ids)
        prompts = [each.template.render(each.clipped(self._max_chars + 1)) for each in filled.values()]
        encodings = self._tokenizer.encode_batch_fast(prompts, add_special_tokens=self._add_specials)
        for (index, each), encoding in zip(filled.items(), encodings, strict=True):
            fits = len(encoding.ids) <= self._limit and each.longest <= self._max_chars
            ids[index] = tuple(encoding.ids if fits else self._cut(index, each, len(encoding.ids)))
            self._check_prompt(index, each.template, ids[index])
        return Tokens(tuple(ids), samples.options)

    def _check_ids(self, index: int, token_ids: Sequence[int]) -> tuple[int, ...]:
        if not self._raw:
            key = f"samples[{index}].token_ids"
            raise InputError("invalid", f"{key}: the pipeline has a template; send its fields", key)
        return check_token_ids(index, token_ids, self._vocab_size)

    def _cut(self, index: int, filled: FilledTemplate, num_tokens: int) -> list[int]:
        """The prompt with its giving field cut to fit; InputError if nothing gives way, or not enough."""
        key = f"samples[{index}]"
        about = f"{num_tokens} or more" if filled.longest > self._max_chars else str(num_tokens)
        message = f"{key} has {about} tokens, a sample may have {self._limit}"
        field = self._cut_fields.get(filled.template)
        if field is None:
            raise InputError("too_large", message, key)
        before, after = filled.template.render_around(field, filled.clipped(self._max_chars + 1))
        ids = cut_to_fit(
            self._tokenizer,
            Prompt(before, filled.values[field], after),
            self._limit,
            add_special_tokens=self._add_specials,
            max_token_chars=self._max_token_chars,
        )
        if ids is None:
            raise InputError("too_large", f"{message}, and has more even without any {field!r}", key)
        return ids

    def _check_prompt(self, index: int, template: Template, ids: Sequence[int]) -> None:
        if not ids:
            raise InputError("invalid", f"samples[{index}] has no tokens", f"samples[{index}]")
        if self._policy != "allow" and self._specials.count(ids) > self._own_specials[template]:
            # Rare: parts of one in two fields side by side, or one that only normalisation brings out.
            message = f"samples[{index}]: its fields form a special token"
            raise InputError("invalid", message, f"samples[{index}]")

    def _own_ids(self, template: Template) -> list[int]:
        """Tokens of the template's own words and of the tokenizer's post-processing."""
        empty = template.render(dict.fromkeys(template.fields, ""))
        ids: list[int] = self._tokenizer.encode(empty, add_special_tokens=self._add_specials).ids
        return ids


def _check_room(own: Mapping[Template, Sequence[int]], limit: int) -> None:
    """ConfigError for a template that no sample could fit into."""
    for template, ids in own.items():
        # A field's value may merge with the words on its either side: two tokens less each, at the very best.
        if len(ids) - 2 * len(template.fields) > limit:
            reason = f"its own words have {len(ids)} tokens, a sample may have {limit}"
            raise ConfigError("bounds.tokens_per_sample", limit, f"the template does not fit: {reason}")


def plain_tokenizer(tokenizer: FastTokenizer) -> FastTokenizer:
    """A copy that neither truncates nor pads, whatever its file says; nobody else changes it."""
    own = FastTokenizer.from_str(tokenizer.to_str())
    own.no_truncation()
    own.no_padding()
    return own


def _parse_templates(written: str | list[str] | None) -> tuple[Template, ...]:
    if isinstance(written, list) and not written:
        raise ConfigError("template", written, "has no template")
    templates = []
    for text in [RAW] if written is None else [written] if isinstance(written, str) else written:
        try:
            templates.append(Template.parse(text))
        except ValueError as error:
            raise ConfigError("template", text, str(error)) from None
    return tuple(templates)


def _find_cut_fields(cut: str | list[str] | None, templates: tuple[Template, ...]) -> dict[Template, str]:
    """The field of each template that gives way."""
    found: dict[Template, str] = {}
    for field in [] if cut is None else [cut] if isinstance(cut, str) else cut:
        having = [template for template in templates if field in template.fields]
        if not having:
            fields = sorted({each for template in templates for each in template.fields})
            raise ConfigError("cut", field, "the template has no such field; " + suggest(field, fields))
        for template in having:
            if template.fields.count(field) > 1:
                raise ConfigError("cut", field, "is in the template more than once")
            found.setdefault(template, field)
    return found
