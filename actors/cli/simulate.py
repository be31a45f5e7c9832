"""`skylease simulate`: the main job."""

from pathlib import Path
from typing import Annotated

import typer

from actors.cli import context
from actors.cli.console import Answer, progress, run
from actors.faces import Report
from actors.simulate import Order, simulate
from actors.view import LiveView, PlainView


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate")(simulate_command)


def simulate_command(
    environment: Annotated[str, typer.Argument(metavar="catan|rpg", help="What is played.")],
    agents: Annotated[int, typer.Option(help="How many agents play.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the game and of the scripted players.")] = 7,
    tier: Annotated[str | None, typer.Option(help="How sandboxes are isolated.")] = None,
    adventures: Annotated[
        int | None, typer.Option(help="rpg: adventures in the campaign at most.", show_default="2")
    ] = None,
    board: Annotated[Path | None, typer.Option(help="Write the final board here, as SVG.")] = None,
    chronicle: Annotated[
        Path | None, typer.Option(help="rpg: write the campaign's story here, as Markdown.")
    ] = None,
    late: Annotated[
        int, typer.Option(help="rpg: so many of the agents come when the others have set out.")
    ] = 0,
    record: Annotated[Path | None, typer.Option(help="Record every raw frame here, as a .fht trace.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object.")] = False,
) -> None:
    """Play a game with leased sandboxes: starts what is missing, plays, ends every lease, reports."""
    settings = context.current().settings(
        sandbox__tier=tier, tap__record=None if record is None else str(record.absolute())
    )
    answer = Answer(as_json=as_json)
    order = Order(
        environment_type=environment,
        agents=agents,
        seed=seed,
        board=board,
        adventures=adventures,
        chronicle=chronicle,
        late=late,
    )
    live = progress.is_terminal and not as_json
    view = LiveView(progress) if live else PlainView(progress)
    try:
        with view:
            report = run(simulate(settings, order, view.show))
    except KeyboardInterrupt:
        progress.print(view.farewell(), markup=False)
        raise
    answer.object(report, _told(report, view.names, {"board": board, "chronicle": chronicle}))


def _told(report: Report, names: dict[str, str], written: dict[str, Path | None]) -> str:
    leases, boxes = report["leases"], report["sandboxes"]
    turn, action, events = report["turn_ms"], report["event_to_action_ms"], report["events"]
    lines = [
        *(_game_told(game, names) for game in report["games"][:-1]),
        f"{_game_told(report['games'][-1], names)}, {report['turns']['skipped']} of them skipped",
        f"leases      {leases['acquired']} acquired, {leases['ended']} ended, {leases['live']} live",
        f"sandboxes   {boxes['created']} created, {boxes['destroyed']} destroyed, {boxes['left']} left "
        f"({boxes['tier']} tier)",
        *_hosts_told(report["hosts"]),
        f"turn        {turn['p50']} ms p50, {turn['p99']} ms p99 in the sandbox",
        f"answer      {action['p50']} ms p50, {action['p99']} ms p99 from event to action, at the tap",
        f"events      {events['seen']} seen, {events['verified']} verified, {events['rejected']} rejected",
        f"game log    sha256 {report['game_log_sha256']}",
        f"took        {report['seconds']} s",
    ]
    lines += [f"{what:11} {path}" for what, path in written.items() if path is not None]
    return "\n".join(lines)


def _hosts_told(hosts: list[Report]) -> list[str]:
    """What the hosts cannot give and why the tier is not a stronger one, each once."""
    reasons = dict.fromkeys(reason for host in hosts for reason in host["passed_over"])
    lacks = dict.fromkeys(lack for host in hosts for lack in host["lacks"])
    return [
        *(f"            {reason}" for reason in reasons),
        *(f"            lacks {lack}" for lack in lacks),
    ]


def _game_told(game: Report, names: dict[str, str]) -> str:
    """Who won, or, where players do not play against each other, how it ended and who died."""
    ended = f"{names.get(game['winner'] or '', 'nobody')} wins ({game['reason']})"
    if "deaths" in game:
        died = [
            f"{names.get(death['agent'], '?')} was killed by {death['cause']}" for death in game["deaths"]
        ]
        ended = game["reason"].replace("_", " ") + (f" ({', '.join(died)})" if died else "")
    return f"{game['environment']}: {ended} after {game['turns']} decisions"
