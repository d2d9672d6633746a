"""Kafka in and out: admission, deadlines, batching, offsets, shutdown, metrics."""
