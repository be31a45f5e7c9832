"""`skylease config`: the settings."""

from typing import Annotated

import typer

from actors.cli import context
from actors.cli.console import Answer
from actors.settings import render_toml

app = typer.Typer(help="The settings.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """The settings."""


@app.command("show")
def show(
    as_json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")] = False,
) -> None:
    """Every setting as it is in force here, as a commented TOML file."""
    settings = context.current().settings()
    Answer(as_json=as_json).object(settings.model_dump(mode="json"), render_toml(settings).rstrip())
