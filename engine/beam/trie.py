"""The prefix set of many token sequences: sorted once, then numbered level by level; no node is an object.

    children of a node = the distinct next tokens among the sequences that share its prefix

Nodes are numbered in order of (level, prefix), so the edges of the whole set, read in order, lead to nodes
1, 2, 3, ... and equal sequences end at one node. Everything is int32: 12 bytes an edge on the device. Pure
functions over numpy arrays; a Trie is never changed, so any thread may read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from engine.beam.legal import ROOT, LegalTensors

Ints: TypeAlias = NDArray[np.int32]
Wide: TypeAlias = NDArray[np.int64]

END = -1  # fills the columns after a sequence that is shorter than the longest
NOWHERE = -1
MAX_NODES = 2**31 - 1  # what int32 can number


class TrieError(ValueError):
    """Sequences that are no prefix set; the text names the row, counted from 0."""


@dataclass(frozen=True)
class Trie:
    """Leaf i (in order of its node) holds rows[row_offsets[i] : row_offsets[i + 1]] of the sequences.

    Edges of node n: tokens[offsets[n] : offsets[n + 1]], ascending; edge e leads to node e + 1.
    """

    offsets: Ints  # [num_nodes + 1]
    tokens: Ints  # [num_nodes - 1]
    max_degree: tuple[int, ...]  # of the nodes of each level, the root's first
    leaf_nodes: Ints  # [num_leaves], ascending
    row_offsets: Ints  # [num_leaves + 1]

    @property
    def num_nodes(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_bytes(self) -> int:
        """On the host, `tensors` included."""
        arrays = (self.offsets, self.tokens, self.tokens, self.leaf_nodes, self.row_offsets)
        return sum(each.nbytes for each in arrays)

    def tensors(self) -> LegalTensors:
        """What a search reads, on the CPU; memory is shared except for `children`."""
        children = torch.arange(1, self.num_nodes, dtype=torch.int32)
        offsets, tokens = torch.from_numpy(self.offsets), torch.from_numpy(self.tokens)
        return LegalTensors(offsets, tokens, children, self.max_degree)

    def rows(self, nodes: Sequence[int]) -> list[range]:
        """Of each node the places in the set's order of the rows that end there; empty where none does."""
        asked = np.asarray(nodes, np.int32)  # another type would convert all leaves first
        places = np.minimum(np.searchsorted(self.leaf_nodes, asked), len(self.leaf_nodes) - 1)
        starts = self.row_offsets[places]
        stops = np.where(self.leaf_nodes[places] == asked, self.row_offsets[places + 1], starts)
        return [range(start, stop) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]

    def find(self, sequences: NDArray[np.integer]) -> Wide:
        """sequences[n, length], END after a shorter one -> the node of each, or NOWHERE."""
        nodes = np.full(len(sequences), ROOT, np.int64)
        for column in np.asarray(sequences).T:
            asked = np.flatnonzero((column != END) & (nodes != NOWHERE))
            low = self.offsets[nodes[asked]].astype(np.int64)
            end = self.offsets[nodes[asked] + 1].astype(np.int64)
            high = end.copy()
            while (open_ := low < high).any():  # halves the widest node's edges
                middle = (low + high) >> 1
                less = open_ & (self.tokens[np.minimum(middle, end - 1)] < column[asked])
                low = np.where(less, middle + 1, low)
                high = np.where(open_ & ~less, middle, high)
            there = low < end
            there[there] = self.tokens[low[there]] == column[asked][there]
            nodes[asked] = np.where(there, low + 1, NOWHERE)
        return nodes


def compile_trie(sequences: Ints, vocab_size: int, max_nodes: int = MAX_NODES) -> tuple[Trie, Wide]:
    """sequences int32[num_rows, length], END after a shorter one -> the set, and the rows in its order.

    The rows of a leaf keep their order. TrieError: no rows, an empty sequence, one that goes on where another
    ends, or more nodes than int32 can number.
    """
    num_rows, length = sequences.shape
    if not num_rows:
        raise TrieError("no sequences")
    order = _sort(sequences, vocab_size)
    node = np.zeros(num_rows, np.int32)  # where each row is, from level to level
    rank = np.zeros(num_rows, np.int32)  # the place of that node within its level
    new = np.zeros(num_rows, bool)  # whether a row's prefix differs from the one before
    new[0] = True
    first, width = ROOT, 1  # the level's nodes: [first, first + width)
    offsets, tokens, max_degree = [np.zeros(1, np.int32)], [], []
    for level in range(length):
        column = sequences[order, level]
        here = column != END
        new[1:] |= column[1:] != column[:-1]
        begins = new & here
        degrees = np.bincount(rank[begins], minlength=width)
        num_edges = int(degrees.sum())
        if first + width + num_edges > max_nodes:
            reason = f"{num_rows:,} sequences of up to {length} tokens have more than {max_nodes:,} nodes"
            raise TrieError(f"{reason}: int32 numbers no more; split the items over several pipelines")
        offsets.append((offsets[-1][-1] + np.cumsum(degrees)).astype(np.int32))
        tokens.append(column[begins])
        max_degree.append(int(degrees.max()))
        rank = (np.cumsum(begins, dtype=np.int32) - 1).astype(np.int32)
        first, width = first + width, num_edges
        np.copyto(node, first + rank, where=here)
    offsets.append(np.full(width, offsets[-1][-1], np.int32))
    order, node = _by_node(order, node)
    starts = np.flatnonzero(np.concatenate(([True], node[1:] != node[:-1])))
    trie = Trie(
        offsets=np.concatenate(offsets),
        tokens=np.concatenate(tokens),
        max_degree=tuple(max_degree),
        leaf_nodes=node[starts],
        row_offsets=np.append(starts, num_rows).astype(np.int32),
    )
    _check_leaves(trie, order)
    return trie, order


def _sort(sequences: Ints, vocab_size: int) -> Wide:
    """The rows in lexicographic order, equal ones as they came. As many tokens as fit share a sorted word."""
    bits = int(vocab_size).bit_length()  # END is 0, token t is t + 1
    per_word = 63 // bits
    num_rows, length = sequences.shape
    order: Wide = np.arange(num_rows)
    for stop in range(length, 0, -per_word):  # the last tokens first: each stable sort keeps what was sorted
        word = np.zeros(num_rows, np.int64)
        for level in range(max(0, stop - per_word), stop):
            word <<= bits
            word |= sequences[:, level].astype(np.int64) + 1
        order = order[np.argsort(word[order], kind="stable")]
    return order


def _by_node(order: Wide, node: Ints) -> tuple[Wide, Ints]:
    """Leaves of several levels come mixed in lexicographic order: sort by node, where that differs."""
    if (node[1:] >= node[:-1]).all():
        return order, node
    by_node = np.argsort(node, kind="stable")
    return order[by_node], node[by_node]


def _check_leaves(trie: Trie, order: Wide) -> None:
    degrees = trie.offsets[trie.leaf_nodes + 1] - trie.offsets[trie.leaf_nodes]
    wrong = np.flatnonzero((degrees > 0) | (trie.leaf_nodes == ROOT))
    if wrong.size:
        place = int(wrong[0])
        row = int(order[trie.row_offsets[place]])
        reason = "is empty" if trie.leaf_nodes[place] == ROOT else "ends where another sequence goes on"
        raise TrieError(f"sequence {row} {reason}")
