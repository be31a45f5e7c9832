"""`skylease replay`: a recorded trace through the whole pipeline into a ledger."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from actors.cli.console import Answer, frame_counter, run
from actors.cli.moments import parse_speed, parse_start
from actors.errors import Refused
from actors.faces import Report
from actors.replay import JudgeSpec, load_material, replay
from actors.resources import shipped


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay")(replay_command)


def replay_command(
    trace: Annotated[Path, typer.Argument(help="Trace: an .fht file, or a directory of segments.")],
    did_docs: Annotated[
        Path | None,
        typer.Option(help="DID documents; default: {trace}.did_docs.json beside it, or those noted in it."),
    ] = None,
    speed: Annotated[
        str, typer.Option(help="max, or how many times as fast as it was recorded: 1, 10, 0.5 …")
    ] = "max",
    from_seq: Annotated[int | None, typer.Option(min=0, help="Begin with this seq.")] = None,
    from_time: Annotated[str | None, typer.Option(help="Begin with what came then, RFC 3339.")] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=64, help="How many verify at once; the verdicts are the same.")
    ] = 1,
    ledger: Annotated[Path | None, typer.Option(help="Keep the ledger here; default: thrown away.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")] = False,
) -> None:
    """Replay a trace with its own clock: verdicts and ledger are the same each time."""
    answer = Answer(as_json=as_json)
    if ledger is not None and ledger.exists():
        raise Refused(f"{ledger} exists: a replay starts from an empty ledger, choose another file")
    material = load_material(trace, did_docs)
    spec = JudgeSpec(processes=processes, start=parse_start(from_seq, from_time), speed=parse_speed(speed))
    with (
        tempfile.TemporaryDirectory(prefix="skylease-replay-") as folder,
        frame_counter() as bar,
    ):
        task = bar.add_task("frames", total=None)
        report = run(
            replay(
                material,
                ledger or Path(folder) / "ledger.db",
                shipped("config/lexicons"),
                lambda done: bar.update(task, completed=done),
                spec,
            )
        )
    answer.object(report, _told(report))


def _told(report: Report) -> str:
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in report["verdicts"].items())
    leases = ", ".join(f"{count} {status}" for status, count in report["leases"].items()) or "none"
    lost = f"; {report['lost']} frames were lost while it was recorded" if report["lost"] else ""
    return (
        f"{report['frames']} frames: {verdicts}{lost}\nleases {leases}; {report['accounts']} accounts\n"
        f"ledger digest {report['ledger_digest']}"
    )
