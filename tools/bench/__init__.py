"""Benchmarks: each states the physics, prints the ceiling, and ends with one JSON line."""
