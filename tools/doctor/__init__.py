"""Checks of a machine and a worker's surroundings: each gives findings, and says how to mend them."""
