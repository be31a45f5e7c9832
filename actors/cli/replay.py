"""`skylease replay`: a recorded trace through the whole pipeline into a ledger."""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from actors.cli.console import Answer, frame_counter
from actors.errors import Refused
from actors.faces import Report
from actors.replay import load_documents, replay
from actors.resources import shipped


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay")(replay_command)


def replay_command(
    trace: Annotated[Path, typer.Argument(help="Trace file, .fht.")],
    did_docs: Annotated[
        Path | None, typer.Option(help="DID documents; default: {trace}.did_docs.json beside it.")
    ] = None,
    ledger: Annotated[Path | None, typer.Option(help="Keep the ledger here; default: thrown away.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")] = False,
) -> None:
    """Replay a trace with its own clock: verdicts and ledger are the same each time."""
    answer = Answer(as_json=as_json)
    if ledger is not None and ledger.exists():
        raise Refused(f"{ledger} exists: a replay starts from an empty ledger, choose another file")
    with trace.open("rb"):  # a missing file is said before anything is made
        documents = load_documents(trace, did_docs)
    with (
        tempfile.TemporaryDirectory(prefix="skylease-replay-") as folder,
        frame_counter() as bar,
    ):
        task = bar.add_task("frames", total=None)
        report = asyncio.run(
            replay(
                trace,
                documents,
                ledger or Path(folder) / "ledger.db",
                shipped("config/lexicons"),
                lambda done: bar.update(task, completed=done),
            )
        )
    answer.object(report, _told(report))


def _told(report: Report) -> str:
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in report["verdicts"].items())
    leases = ", ".join(f"{count} {status}" for status, count in report["leases"].items()) or "none"
    return (
        f"{report['frames']} frames: {verdicts}\nleases {leases}; {report['accounts']} accounts\n"
        f"ledger digest {report['ledger_digest']}"
    )
