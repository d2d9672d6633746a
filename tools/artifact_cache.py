"""Artifacts built on demand and kept in the user's cache, for the demo, the benchmarks and the tests.

The key covers all that the compiled result depends on: the source's digest, the code that is exported, torch,
device and bounds. One process builds, others wait for it; a build that fails or is interrupted leaves nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

import engine
from engine.artifact import FORMAT
from engine.build import BuildSpec, build_artifact
from engine.packed import BatchBounds
from tools.model_cache import cache_root

BUILT_FROM = ("artifact.py", "build*", "models", "ops", "packed.py")  # of engine/: what shapes the package
