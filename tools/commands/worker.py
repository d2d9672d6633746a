"""`boundgen worker`: the same process as `python -m worker`, for people at a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tools.errors import UserError
from worker.config import WorkerConfigError, read_worker_config
from worker.logs import configure_logging
from worker.service import run

app = typer.Typer(rich_markup_mode="rich")


@app.command(epilog="Example: [bold]boundgen worker configs/worker.yaml[/]")
def worker(
    config: Annotated[
        Path, typer.Argument(help="The worker's YAML; configs/worker.yaml shows every setting.")
    ],
) -> None:
    """Serve pipelines: read requests from Kafka, run the models, write the replies.

    Runs until SIGTERM or Ctrl-C, then finishes what it has taken, commits and leaves. Environment
    variables override the file: BOUNDGEN_KAFKA__BOOTSTRAP_SERVERS=broker:9092. /metrics, /health and
    /ready are served on http.port (9464). Exit status: 0 an orderly end, 1 a failed start or end,
    2 a wrong configuration, 70 no progress.
    """
    try:
        settings = read_worker_config(config)
    except WorkerConfigError as error:
        raise UserError(str(error)) from error
    configure_logging(settings.logging)
    raise typer.Exit(run(settings))
