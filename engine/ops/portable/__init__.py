"""Triton operations that compile into a CUDA package, for any GPU from sm_80 on; reference.py is their
oracle."""
