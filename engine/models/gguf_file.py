"""What a GGUF file holds that transformers would leave out without a word.

transformers maps the metadata keys and tensors it knows and drops the rest; here whatever would change the
result is an error instead.
"""

from __future__ import annotations

import re
from pathlib import Path

from gguf import GGUFReader

from engine.errors import ArtifactError, ConfigError
from engine.models.architecture import Architecture

_MAPPED = frozenset({
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count",
    "vocab_size",
})  # fmt: skip
_TENSOR = re.compile(
    r"(token_embd|output_norm|output)\.weight"
    r"|blk\.\d+\.(attn_(q|k|v|output)|ffn_(gate|up|down))\.(weight|bias)"
    r"|blk\.\d+\.(attn_norm|ffn_norm|attn_q_norm|attn_k_norm)\.weight"
)


def check_gguf(path: Path, architecture: Architecture) -> None:
    """ConfigError or ArtifactError for the first key or tensor that the loaded model does not account for."""
    try:
        reader = GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise ArtifactError(f"{path}: not a readable GGUF file ({error})") from error
    name = reader.fields["general.architecture"].contents()
    # Written by converters beside what the model already says; right only if they say the same.
    restated = {
        "attention.key_length": architecture.head_dim,
        "attention.value_length": architecture.head_dim,
        "rope.dimension_count": architecture.head_dim,
        "rope.scaling.type": "none",
        "attention.causal": True,
    }
    for key, field in reader.fields.items():
        if not key.startswith(f"{name}."):
            continue
        option, value = key.removeprefix(f"{name}."), field.contents()
        if option in restated:
            if value != restated[option]:
                raise ConfigError(key, value, f"not supported from GGUF; expected {restated[option]!r}")
        elif option not in _MAPPED:
            raise ConfigError(
                key, value, "transformers drops this key of a GGUF file, so the result would be wrong"
            )
    for tensor in reader.tensors:
        if not _TENSOR.fullmatch(tensor.name):
            raise ArtifactError(
                f"{path}: tensor {tensor.name!r} would be dropped by transformers, so the result would be "
                "wrong; use the checkpoint's safetensors directory"
            )
