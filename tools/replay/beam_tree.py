"""The beams of one sample as the tree that they are: each shared beginning once, the best branch first.

Only what was kept to the end: a beam that was given up on the way is not in a node's value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from engine.nodes.beam_rows import BeamRows
from engine.values import Beams, SampleBeams

Branch: TypeAlias = dict[str, Any]
"""token_id, text where there is one, branches; where a beam ends also rank (0: the best), score, item_ids."""


def beam_tree(beams: Beams, sample: SampleBeams) -> list[Branch]:
    """The branches from the prompt on."""
    (row,) = BeamRows(tokens=True)(Beams((sample,), beams.legal, beams.decode))
    top: list[Branch] = []
    found: Any = row["beams"]
    for rank, beam in enumerate(found):
        branches, last = top, None
        texts = beam.get("tokens") or [None] * len(beam["token_ids"])
        for token_id, text in zip(beam["token_ids"], texts, strict=True):
            last = _branch(branches, token_id, text)
            branches = last["branches"]
        if last is not None:
            last |= {"rank": rank} | {key: beam[key] for key in ("score", "item_ids") if key in beam}
    return top


def tree_lines(branches: Sequence[Mapping[str, Any]], indent: str = "") -> Iterator[str]:
    """The same for a person: one line a token, what follows it below and further in."""
    for branch in branches:
        text = "" if branch.get("text") is None else f" {branch['text']!r}"
        line = f"{indent}{branch['token_id']}{text}"
        if "rank" in branch:
            line += f"  #{branch['rank']} {branch['score']:+.6f}"
            if "item_ids" in branch:
                line += f" items {branch['item_ids']}"
        yield line
        yield from tree_lines(branch["branches"], indent + "  ")


def _branch(branches: list[Branch], token_id: int, text: str | None) -> Branch:
    """The one with this token, made if there is none."""
    for branch in branches:
        if branch["token_id"] == token_id:
            return branch
    made: Branch = {"token_id": token_id, "text": text, "branches": []}
    branches.append(made)
    return made
