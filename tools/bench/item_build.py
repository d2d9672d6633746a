"""`python -m tools.bench.item_build [--items N]`: seconds and bytes of an item file, compiled and loaded.

Random sequences share little, so their trie is about as large as one of so many items can be. Peak memory is
that of this process so far, in which only the step named has run, besides the writing of the input.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.beam.compiled_items import load_items, write_compiled
from engine.beam.item_set import ItemSet
from engine.beam.items import ItemRules, read_items
from engine.beam.trie import compile_trie
from tools.bench.provenance import provenance

NUM_TOKENS = 5
CODES = 8192  # a level
RULES = ItemRules(num_tokens=NUM_TOKENS, vocab_size=151_936)
CHUNK_ROWS = 1 << 20
BEAMS = 100  # looked up at once

ResultT = TypeVar("ResultT")


def write_input(path: Path, num_items: int) -> None:
    """Ids as shops have them, one string an item; tokens of five levels of CODES codes each."""
    rng = np.random.default_rng(20)
    kind = pa.schema({"item_id": pa.string(), "token_ids": pa.list_(pa.int32(), NUM_TOKENS)})
    with pq.ParquetWriter(path, kind) as writer:
        for first in range(0, num_items, CHUNK_ROWS):
            count = min(CHUNK_ROWS, num_items - first)
            codes = rng.integers(0, CODES, (count, NUM_TOKENS), np.int32) + CODES * np.arange(
                NUM_TOKENS, dtype=np.int32
            )
            ids = pa.array([f"sku-{number:010d}" for number in range(first, first + count)])
            lists = pa.FixedSizeListArray.from_arrays(pa.array(codes.reshape(-1)), NUM_TOKENS)
            writer.write_table(pa.Table.from_arrays([ids, lists], schema=kind))


def measure(num_items: int) -> dict[str, Any]:
    """Every step in a process of its own, so that each has a peak of its own."""
    with tempfile.TemporaryDirectory(prefix="boundgen-items-") as name:
        raw, compiled = Path(name, "items.parquet"), Path(name, "items.safetensors")
        write_input(raw, num_items)
        steps: dict[str, Any] = {"items": num_items, "raw_bytes": raw.stat().st_size}
        for step in (compile_step, load_step):
            with get_context("spawn").Pool(1) as process:
                steps |= process.apply(step, (raw, compiled))
        return steps | {"compiled_bytes": compiled.stat().st_size}


def compile_step(raw: Path, compiled: Path) -> dict[str, Any]:
    """Raw file -> compiled file; reading and sorting also by themselves."""
    idle = peak_bytes()
    read_s, trie_s = read_and_sort(raw)
    items, load_s = timed(lambda: load_items(raw, RULES))
    _, write_s = timed(lambda: write_compiled(compiled, items, RULES))
    seconds = {"read_s": read_s, "trie_s": trie_s, "raw_load_s": load_s, "write_s": write_s}
    return seconds | sizes(items) | {"compile_peak_bytes": peak_bytes() - idle}


def read_and_sort(raw: Path) -> tuple[float, float]:
    table, read_s = timed(lambda: read_items(raw, RULES))
    return read_s, timed(lambda: compile_trie(table.sequences, RULES.vocab_size))[1]


def load_step(raw: Path, compiled: Path) -> dict[str, Any]:
    """Compiled file -> ready; then the items of as many leaves as a request has beams."""
    idle = peak_bytes()
    items, load_s = timed(lambda: load_items(compiled, RULES))
    peak = peak_bytes() - idle
    leaves = np.random.default_rng(0).choice(items.trie.leaf_nodes, BEAMS).tolist()
    lookups = sorted(timed(lambda: items.item_ids(leaves))[1] for _ in range(50))
    return {"compiled_load_s": load_s, "load_peak_bytes": peak, f"ids_of_{BEAMS}_ms": lookups[25] * 1e3}


def sizes(items: ItemSet) -> dict[str, Any]:
    return {
        "nodes": items.trie.num_nodes,
        "max_degree": items.trie.max_degree,
        "host_bytes": items.host_bytes,
        "device_bytes": items.device_bytes,
    }


def timed(work: Callable[[], ResultT]) -> tuple[ResultT, float]:
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=10_000_000)
    print(json.dumps(measure(parser.parse_args().items) | provenance("cpu")))  # noqa: T201 - its result


if __name__ == "__main__":
    main()
