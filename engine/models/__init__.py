"""Eager definitions of the supported model families: what is exported."""
