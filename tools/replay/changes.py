"""What is different between then and now, named: artifact, items, labels, prompts, settings. One thread.

Known from the replies themselves: the model's digest, the items' version, the labels, the number of tokens. A
template, or what a node is told, is named only if the capture was given the worker's configuration; else a
changed prompt shows in its number of tokens, and one of the same number only in its results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.pipeline import PipelineConfig
from schemas.messages import Outcome, Reply
from tools.replay.differences import labels_in

What = Literal["artifact", "items", "labels", "prompts", "setting", "unknown"]
SHORT = 12  # characters of a digest
MAX_VALUE_CHARS = 200


@dataclass(frozen=True)
class Change:
    """One cause, and the sentence that tells it."""

    what: What
    pipeline: str
    text: str


@dataclass
class _Seen:
    """Of one pipeline's compared answers."""

    answers: int = 0
    items: Counter[tuple[str, str]] = field(default_factory=Counter)
    labels_added: Counter[str] = field(default_factory=Counter)
    labels_removed: Counter[str] = field(default_factory=Counter)
    other_tokens: int = 0
    differ: int = 0


class Changes:
    """Told of every pair of answers; then asked for what they have shown."""

    def __init__(
        self, captured: Mapping[str, Mapping[str, Any]], present: Mapping[str, PipelineConfig]
    ) -> None:
        self._captured = captured
        self._present = present
        self._seen: dict[str, _Seen] = {}
        self._models: dict[str, Counter[tuple[str, str, str, str]]] = {}

    def see(self, pipeline: str, was: Reply, now: Reply, differs: bool) -> None:
        """A recorded reply and the new one."""
        seen = self._seen.setdefault(pipeline, _Seen())
        seen.differ += differs
        if was.model is not None and now.model is not None and was.model.digest != now.model.digest:
            models = self._models.setdefault(pipeline, Counter())
            models[was.model.name, was.model.digest, now.model.name, now.model.digest] += 1
        if was.outcome is not Outcome.OK or now.outcome is not Outcome.OK:
            return
        seen.answers += 1
        seen.other_tokens += was.usage.tokens != now.usage.tokens
        seen.items.update(_other_items(was, now))
        before, after = labels_in(was.results), labels_in(now.results)
        seen.labels_added.update(after - before)
        seen.labels_removed.update(before - after)

    def found(self) -> list[Change]:
        """Every cause that is known, by pipeline."""
        return [change for name, seen in self._seen.items() for change in self._of(name, seen)]

    def _of(self, name: str, seen: _Seen) -> Iterator[Change]:
        models = self._models.get(name, Counter())
        for (old, was, new, now), count in models.items():
            text = f"artifact changed: {old} {was[:SHORT]} -> {new} {now[:SHORT]} ({count:,} replies)"
            yield Change("artifact", name, text)
        for (old, new), count in seen.items.items():
            yield Change("items", name, f"item file changed: version {old} -> {new} ({count:,} replies)")
        added, removed = seen.labels_added, seen.labels_removed
        if added:
            yield Change("labels", name, f"labels added: {', '.join(sorted(added))}")
        if removed:
            yield Change("labels", name, f"labels removed: {', '.join(sorted(removed))}")
        settings = list(self._settings(name))
        yield from settings
        if seen.other_tokens:
            text = (
                f"prompts changed: usage.tokens differ in {seen.other_tokens:,} of {seen.answers:,} answers"
            )
            if name not in self._captured:
                text += " (template, cut or tokenizer; a capture with --config would say which)"
            yield Change("prompts", name, text)
        if seen.differ and not (models or seen.items or added or removed or settings or seen.other_tokens):
            yield Change("unknown", name, self._unknown(name))

    def _unknown(self, name: str) -> str:
        text = "artifact, labels and numbers of tokens are the same: look at one with --explain ID"
        if name in self._captured:
            return f"the pipeline's settings, {text}"
        return f"{text}; a template of equal length, a head's or an encoder's setting would look like this"

    def _settings(self, name: str) -> Iterator[Change]:
        if name not in self._captured or name not in self._present:
            return
        now = self._present[name].model_dump(mode="json")
        for path, old, new in compare_settings("", self._captured[name], now):
            yield Change("setting", name, f"{path} changed: {_short(old)} -> {_short(new)}")


def _other_items(was: Reply, now: Reply) -> set[tuple[str, str]]:
    """(version then, version now) where results of a search name both and they differ."""
    pairs = zip(was.results, now.results, strict=False)
    versions = {
        (str(old["item_version"]), str(new["item_version"]))
        for old, new in pairs
        if "item_version" in old and "item_version" in new
    }
    return {(old, new) for old, new in versions if old != new}


def compare_settings(path: str, was: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """(dotted path, old, new) of what is not the same; None for what is not there."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in [*was, *(key for key in now if key not in was)]:
            yield from compare_settings(f"{path}.{key}" if path else str(key), was.get(key), now.get(key))
    elif was != now:
        yield path, was, now


def _short(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."
