"""The tokens that every prompt of some templates starts with: a pipeline's constant prefix.

Found on ids, not on text: the templates are filled with texts of every kind, and what all results start with
is what does not depend on them. It need not hold for every text there is: at run time a prompt is compared
with it token by token, and a token that merged with what follows only ends its match sooner.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from engine.nodes.template import Template
from engine.prefixes import Ids, common_length

# What tokenizers tell apart: letters, digits, spaces, line ends, punctuation, other scripts, joining marks.
FILLERS = (
    "", "a", " a", "The", "1", " 1", "\n", "\n\n", " ", "  ", "\t", ".", "'s", "-", "_", ":", ")", "/", "<",
    "é", "\u0301", "я", "中", "ひ", "ع", "🙂",
)  # fmt: skip


def leading_tokens(tokenizer: Tokenizer, templates: Sequence[Template], *, add_special_tokens: bool) -> Ids:
    """What all prompts start with, whichever template and whatever its fields; () if nothing."""
    prompts = [
        template.render(dict.fromkeys(template.fields, filler))
        for template in templates
        for filler in FILLERS
    ]
    encodings = tokenizer.encode_batch_fast(prompts, add_special_tokens=add_special_tokens)
    ids = [tuple(encoding.ids) for encoding in encodings]
    return ids[0][: common_length(min(ids), max(ids))]
