"""Captured requests run again in this process, and what came out compared with what was answered then."""
