"""`skylease up`, `down` and `status`: the long-lived system."""

from typing import Annotated

import typer

from actors import longlived
from actors.cli import context
from actors.cli.console import Answer, progress, run
from actors.faces import Report

Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("up")(up)
    app.command("down")(down)
    app.command("status")(status)


def up(as_json: Json = False) -> None:
    """Start network, tap, supervisor and hosts on the Ray cluster at hand, or on a local one of its own."""
    answer = Answer(as_json=as_json)
    progress.print("starting the system …", markup=False)
    report = run(longlived.up(context.current().settings()))
    answer.object(report)


def down(as_json: Json = False) -> None:
    """End every lease, destroy every sandbox, stop every actor; and the cluster, if `up` started it."""
    answer = Answer(as_json=as_json)
    report = run(longlived.down(context.current().settings()))
    answer.object(
        report,
        f"down: {report['ended']} leases ended, {report['left']} sandboxes left, "
        f"{report['stopped']} actors stopped",
    )


def status(as_json: Json = False) -> None:
    """What runs, what is leased, what was refused and what this host cannot give."""
    answer = Answer(as_json=as_json)
    report = run(longlived.status(context.current().settings()))
    answer.object(report, _told(report))


def _told(report: Report) -> str:
    leases, tap = report["supervisor"]["leases"], report["tap"]
    lines = [
        f"cluster     {report['cluster']}, {len(report['hosts'])} nodes",
        f"network     {report['pds_url']}",
        f"tap         {report['tap_url']}, seq {tap.get('seq')}, {tap.get('seen')} seen, "
        f"{tap.get('verified')} verified, {tap.get('rejected')} rejected",
        "leases      " + ", ".join(f"{count} {name}" for name, count in leases.items()),
    ]
    lines += [f"refused     {name}: {count}" for name, count in report["supervisor"]["counters"].items()]
    lines += [f"failing     {step}: {why}" for step, why in report["supervisor"]["failing_steps"].items()]
    for host in report["hosts"]:
        lines.append(f"host        {host['node'][:12]}: {host['sandboxes']} sandboxes, {host['tier']} tier")
        lines += [f"            lacks {lack}" for lack in host["lacks"]]
    return "\n".join(lines)
