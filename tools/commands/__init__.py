"""One module a subcommand, each with its own typer `app`; tools.cli names them in its table."""
