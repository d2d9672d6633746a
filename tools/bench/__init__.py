"""Benchmarks: the method and the physical ceiling first, one JSON line last; kept results in RESULTS.md."""
