"""Reads the last line of `boundgen demo --json` from standard input and fails unless its counts are right."""

from __future__ import annotations

import json
import sys

EXACTLY = {
    "requests": 60,
    "ok": 46,
    "recall": 6,
    "expired": 6,
    "cancelled": 3,
    "invalid": 3,
    "rejected": 2,
    "dead_letter": 3,
    "model_runs_of_dropped": 0,
    "lag": 0,
}

found = json.loads(sys.stdin.read())
wrong = {key: (found.get(key), wanted) for key, wanted in EXACTLY.items() if found.get(key) != wanted}
if wrong or not 0 < found["p50_ms"] <= found["p99_ms"]:
    sys.exit(f"the demo's counts are wrong: (found, wanted) {wrong}; its line: {found}")
