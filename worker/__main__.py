"""python -m worker CONFIG: serve the pipelines that the configuration names, until SIGTERM.

Exit codes: 0 an orderly end, 1 a failed start or end, 2 a wrong configuration (this file or a pipeline's),
70 no progress.
"""

from __future__ import annotations

import sys
from pathlib import Path

from worker.config import WorkerConfigError, read_worker_config
from worker.logs import configure_logging
from worker.service import run

EXIT_USAGE = 2


def main(arguments: list[str]) -> int:
    """Read, configure, run; the exit code."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m worker CONFIG.yaml\n")
        return EXIT_USAGE
    try:
        config = read_worker_config(Path(arguments[0]))
    except WorkerConfigError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    configure_logging(config.logging)
    return run(config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
