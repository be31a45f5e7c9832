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
    for told in report["supervisor"]["budgets"]:
        hours = told["budget_hours"]
        of = "its budget was lifted" if hours is None else f"of {hours:.4g}"
        lines.append(f"budget      {told['agent']}: {told['used_hours']:.4g} awake hours {of}")
    lost = tap.get("record", {}).get("lost")
    if lost:
        lines.append(
            f"not kept    {lost['count']} frames, seq {lost['first_seq']} to {lost['last_seq']}, "
            f"in the trace {tap['record']['path']}: {lost['reason']}"
        )
    lines += [f"refused     {name}: {count}" for name, count in report["supervisor"]["counters"].items()]
    lines += [f"failing     {step}: {why}" for step, why in report["supervisor"]["failing_steps"].items()]
    sharing = report["sharing"]
    lines.append(f"sharing     states in {sharing['states']}, guard: {sharing['guard']}")
    lines += [f"            local: {part}" for part in sharing["local"]]
    for host in report["hosts"]:
        lines.append(f"host        {host['node'][:12]}: {host['sandboxes']} sandboxes, {host['tier']} tier")
        lines += [f"            {line}" for line in _pool(host["pool"])]
        lines += [f"            {reason}" for reason in host["passed_over"]]
        lines += [f"            lacks {lack}" for lack in host["lacks"]]
        lines += [f"            egress {verdict}: {count}" for verdict, count in host["egress"].items()]
    return "\n".join(lines)


def _pool(pool: Report) -> list[str]:
    states = ("running", "warm", "waiting", "warming", "suspending", "cold", "failed")
    there = ", ".join(f"{pool[state]} {state}" for state in states if pool[state])
    hits = ", ".join(f"{count} {source}" for source, count in pool["resume_hits"].items() if count)
    gave_way = ", ".join(f"{count} {what}" for what, count in pool["evictions"].items())
    slots = pool["slots"]
    lines = [f"pool {pool['in_use']} of {pool['capacity']} in use{': ' if there else ''}{there}"]
    if slots["target"]:
        used = f"{pool['slot_hits']} used, {pool['slot_misses']} missed"
        lines.append(f"pool slots: {slots['warm']} warm, {slots['warming']} warming; {used}")
    if hits:
        lines.append(f"pool came from: {hits}")
    if gave_way or pool["refused"]:
        lines.append(f"pool gave way: {gave_way or 'nobody'}; {pool['refused']} refused")
    return lines
