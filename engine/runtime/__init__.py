"""What runs an artifact: packed batches, runners, lanes."""
