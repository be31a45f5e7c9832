"""`skylease agents`: who has played here, as what, and what became of them."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from actors.accounts import known_handles
from actors.cli import context
from actors.cli.console import Answer
from actors.cli.leases import awake_ms, ledger_path, span, when
from actors.errors import NotThere
from actors.keepsakes import Keepsakes, Sheet, plain, read_keepsakes
from leases import Lease, LedgerReader
from sandboxes.durable import data_folder

app = typer.Typer(help="Who has played here, and what became of them.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
COLUMNS: Final = {
    "name": "AGENT",
    "character": "CHARACTER",
    "environments": "PLAYED",
    "deaths": "DEATHS",
    "live": "LIVE",
    "awake": "AWAKE",
}
DEATH: Final = "agent.death"
SHOWN_MEMORIES: Final = 10


@app.command("list")
def list_agents(as_json: Json = False) -> None:
    """Every agent that has held a lease, with its present character."""
    answer = Answer(as_json=as_json)
    with LedgerReader(ledger_path()) as ledger:
        agents = ledger.agents()
        rows = [_row(ledger, agent) for agent in agents]
    answer.rows(rows, COLUMNS, "no agents")


@app.command("show")
def show(agent: Annotated[str, typer.Argument(help="DID or handle.")], as_json: Json = False) -> None:
    """One agent: its character, its adventures, its deaths, and what it remembers."""
    answer = Answer(as_json=as_json)
    with LedgerReader(ledger_path()) as ledger:
        did = _did_of(ledger, agent)
        told = _told(ledger, did)
    answer.object(told, "\n".join(_lines(told)))


def _did_of(ledger: LedgerReader, agent: str) -> str:
    handles = _handles()
    did = next((did for did, handle in handles.items() if handle == agent), agent)
    if did not in ledger.agents():
        raise NotThere(
            f"no agent {plain(agent)} has played here: `skylease agents list` shows those who have"
        )
    return did


def _handles() -> dict[str, str]:
    return known_handles(context.current().settings().data_path / "accounts.json")


def _keepsakes(agent_did: str) -> Keepsakes:
    """The agent's files, from the node where it noted its character last."""
    nodes = context.current().settings().data_path / "nodes"
    folders = [folder for folder in nodes.glob(f"*/data/{data_folder(agent_did)}") if folder.is_dir()]
    newest = max(folders, key=_noted_at, default=None)
    return Keepsakes() if newest is None else read_keepsakes(newest)


def _noted_at(folder: Path) -> float:
    try:
        return (folder / "character.json").lstat().st_mtime
    except OSError:
        return 0.0


def _leases(ledger: LedgerReader, agent_did: str) -> list[Lease]:
    return ledger.of_agent(agent_did)


def _row(ledger: LedgerReader, agent_did: str) -> dict[str, Any]:
    leases, sheet = _leases(ledger, agent_did), _keepsakes(agent_did).sheet
    now = time.time_ns() // 1_000_000
    return {
        "name": _handles().get(agent_did, agent_did),
        "agent": agent_did,
        "handle": _handles().get(agent_did),
        "character": None if sheet is None else _in_short(sheet),
        "environments": len(leases),
        "deaths": sum(_died(ledger, lease) for lease in leases),
        "live": sum(lease.is_live for lease in leases),
        "awake": span(sum(awake_ms(ledger.history(lease.id), now) for lease in leases)),
    }


def _died(ledger: LedgerReader, lease: Lease) -> int:
    """How often a lease ended by its agent's death: the ledger keeps every epoch."""
    return sum(event.is_ended and event.condition == DEATH for event in ledger.history(lease.id))


def _told(ledger: LedgerReader, agent_did: str) -> dict[str, Any]:
    leases, kept = _leases(ledger, agent_did), _keepsakes(agent_did)
    played = {lease.environment_id for lease in leases}
    if strangers := len(kept.visits.keys() - played):
        kept.troubles.append(f"{strangers} adventures in its files are not in this ledger: left out")
    row = _row(ledger, agent_did)
    return {
        **{key: row[key] for key in ("agent", "handle", "environments", "deaths", "live", "awake")},
        "character": None if kept.sheet is None else _sheet(kept.sheet),
        "adventures": [_adventure(ledger, lease, kept) for lease in leases],
        "former": [_sheet(sheet) for sheet in kept.former],
        "memories": kept.memories[-SHOWN_MEMORIES:],
        "troubles": kept.troubles,
    }


def _sheet(sheet: Sheet) -> dict[str, Any]:
    return {"environment": sheet.environment_id, "adventure": sheet.adventure, **sheet.hero}


def _adventure(ledger: LedgerReader, lease: Lease, kept: Keepsakes) -> dict[str, Any]:
    """What the ledger knows of one environment, and what the agent noted there."""
    visit = kept.visits.get(lease.environment_id)
    endings = [event for event in ledger.history(lease.id) if event.is_ended]
    return {
        "environment": lease.environment_id,
        "environment_type": lease.environment_type,
        "began": when(lease.leased_at),
        "status": lease.status,
        "ended": when(lease.ended_at),
        "ended_by": lease.ended_by,
        "event": endings[-1].event if endings and not lease.is_live else None,
        "last_turn": lease.last_turn,
        "adventure": visit and visit.adventure,
        "adventures": visit and visit.adventures,
        "room": visit and visit.room,
        "class": visit and visit.klass,
        "level": visit and visit.level,
        "fallen": visit and visit.fallen,
        "reason": visit and visit.reason,
    }


def _in_short(sheet: Sheet) -> str:
    hero = sheet.hero
    return f"{hero['class']}, level {hero['level']}" + (f", dead: {hero['cause']}" if hero["dead"] else "")


# -- for a person --------------------------------------------------------------------------------------------


def _lines(told: dict[str, Any]) -> Iterator[str]:
    yield f"{told['handle'] or 'agent'}  {told['agent']}"
    counts = ("environments", "deaths", "live", "awake")
    yield ", ".join(f"{COLUMNS[key].lower()} {told[key]}" for key in counts)
    if hero := told["character"]:
        yield from ["", "CHARACTER", *_character(hero)]
    yield from ["", "PLAYED"]
    for adventure in told["adventures"]:
        yield from _played(adventure)
    if told["former"]:
        yield from ["", "BEFORE"]
        yield from (f"  {_epitaph(hero)}" for hero in told["former"])
    if told["memories"]:
        yield from ["", "REMEMBERS", *(f"  {text}" for text in told["memories"])]
    if told["troubles"]:
        yield from ["", "TROUBLES", *(f"  {text}" for text in told["troubles"])]


def _character(hero: dict[str, Any]) -> Iterator[str]:
    state = f"dead: {hero['cause']}" if hero["dead"] else "alive"
    yield f"  {hero['class']} of level {hero['level']}, {hero['xp']} experience, {state}"
    points = f"{hero['hp']}/{hero['max_hp']} hit points, {hero['mp']}/{hero['max_mp']} magic points"
    yield f"  {points}, {hero['gold']} gold"
    yield f"  carries   {_table(hero['items']) or 'nothing'}"
    yield f"  skills    {_table(hero['skills'])}"
    yield f"  born with {_table(hero['stats'])}"
    yield f"  standing  {_table(hero['standing'])}"
    if hero["ancestors"]:
        yield f"  after     {', '.join(_epitaph(one) for one in hero['ancestors'])}"


def _played(adventure: dict[str, Any]) -> Iterator[str]:
    ended = adventure["ended_by"] or adventure["status"]
    yield f"  {adventure['began'][:16].replace('T', ' ')}  {adventure['environment']}: {ended}"
    told = []
    if adventure["class"]:
        told.append(f"as a {adventure['class']}, level {adventure['level']}")
    if adventure["room"]:
        told.append(f"to room {adventure['room']}")
    if adventure["reason"]:
        told.append(adventure["reason"].replace("_", " "))
    if adventure["fallen"]:
        told.append(f"{adventure['fallen']} of the party fell")
    if adventure["last_turn"]:
        told.append(f"last turn {adventure['last_turn']}")
    if told:
        yield f"                    {', '.join(told)}"


def _epitaph(hero: dict[str, Any]) -> str:
    fate = f", killed by {hero['cause']}" if hero.get("dead", True) else ""
    return f"{hero['class']} of level {hero['level']}{fate}"


def _table(values: dict[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
