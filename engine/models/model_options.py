"""Reads a checkpoint's configuration so that no option is ever ignored.

A family takes the options that it serves, states which value the others must have, and calls `finish`:
whatever is left and could change the result is a ConfigError with the option's name and value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from engine.errors import ConfigError

# Describe the checkpoint or the training run, or act on text and sampling: none reaches a forward pass.
INERT = frozenset({
    "_model_name_or_path", "_name_or_path", "architectures", "attention_dropout", "attn_implementation",
    "bos_token_id", "dtype", "eos_token_id", "id2label", "initializer_range", "is_llama_config", "label2id",
    "max_window_layers", "model_type", "num_labels", "output_attentions", "output_hidden_states",
    "pad_token_id", "problem_type", "return_dict", "rope_interleaved", "sliding_window",
    "tie_word_embeddings", "torch_dtype", "transformers.js_config", "transformers_version",
    "unk_token_id", "use_cache",
})  # fmt: skip
# Inert under a condition that `require_inert` checks: another value would change the result.
_CONDITIONS: Mapping[str, tuple[object, ...]] = {
    "rope_interleaved": (False, None),
    "sliding_window": (None,),
}


class ModelOptions:
    """One configuration being read; `ignore` names options that the user takes responsibility for."""

    def __init__(self, values: Mapping[str, Any], ignore: Collection[str] = ()) -> None:
        self._values = dict(values)
        self._left = set(values) - set(ignore)

    def take(self, key: str, default: Any = None) -> Any:
        """The option's value, `default` where it is absent or null."""
        self._left.discard(key)
        value = self._values.get(key)
        return default if value is None else value

    def take_size(self, key: str, default: int | None = None) -> int:
        value = self.take(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(key, value, "must be a positive integer")
        return value

    def take_flag(self, key: str) -> bool:
        value = self.take(key, False)
        if not isinstance(value, bool):
            raise ConfigError(key, value, "must be true or false")
        return value

    def require(self, key: str, allowed: Collection[object], reason: str) -> None:
        """The option may be absent or one of `allowed`."""
        if key in self._left and self._values[key] is not None and self._values[key] not in allowed:
            raise ConfigError(key, self._values[key], reason)
        self._left.discard(key)

    def require_full_attention(self) -> None:
        """Every layer attends to the whole sample; a window that is switched off does not matter."""
        self.require("use_sliding_window", (False,), "sliding-window attention is not supported")
        layer_types = self.take("layer_types", ())
        for layer, kind in enumerate(layer_types):
            if kind != "full_attention":
                raise ConfigError(f"layer_types[{layer}]", kind, "only full_attention is supported")
        self.take("sliding_window")

    def finish(self) -> None:
        """ConfigError for the first option that nobody took and that is not known to be without effect."""
        for key, allowed in _CONDITIONS.items():
            if key in self._left and self._values[key] not in allowed:
                raise ConfigError(key, self._values[key], f"not supported; only {allowed[0]!r} is")
        for key in sorted(self._left - INERT):
            raise ConfigError(
                key,
                self._values[key],
                "unknown option, so its effect on the result is unknown; "
                f"if it has none, build again and ignore it explicitly (ignore_options: {key})",
            )
