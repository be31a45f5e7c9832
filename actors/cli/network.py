"""`skylease network`: the embedded network by itself, without Ray."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from actors.cli import context
from actors.cli.console import Answer, run


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("network")(network)


def network(
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say where it listens as one JSON object.")] = False,
) -> None:
    """Serve the embedded PDS, did:plc directory and relay until Ctrl-C."""
    settings = context.current().settings(network__port=port)
    answer = Answer(as_json=as_json)
    run(_serve(settings.data_path / "network.db", settings.network.host, settings.network.port, answer))


async def _serve(path: Path, host: str, port: int, answer: Answer) -> None:
    from actors.events import RecordReader
    from actors.resources import shipped
    from firehose.network import Network

    path.parent.mkdir(parents=True, exist_ok=True)
    validate = RecordReader(shipped("config/lexicons")).check
    async with Network(path, host=host, port=port, validate=validate) as running:
        relay = running.url.replace("http", "ws", 1) + "/xrpc/com.atproto.sync.subscribeRepos"
        answer.object(
            {"pds_url": running.url, "plc_url": running.url, "relay_url": relay, "path": str(path)},
            f"PDS and did:plc directory on {running.url}, firehose on {relay}, kept in {path}; "
            "Ctrl-C ends it",
        )
        await asyncio.Event().wait()
