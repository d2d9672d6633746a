"""From a checkpoint to an artifact: export, compile, measure, write."""

from engine.build.package import build_artifact
from engine.build.spec import BuildSpec

__all__ = ["BuildSpec", "build_artifact"]
