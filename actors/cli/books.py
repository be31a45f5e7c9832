"""`skylease leases budget`, `repair` and `end`: what changes the ledger by hand.

The ledger has one writer: the supervisor while a system is up, which is asked; else the file is opened here.
"""

from collections import Counter, defaultdict
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from actors.cli import context
from actors.cli.console import Answer, run
from actors.cli.leases import Json, ledger_path, share, span, when
from actors.errors import NotThere, Refused, WrongUse
from leases import Cause, FieldInvalid, Ledger, LedgerLocked, LedgerReader

BUDGETS: Final = {
    "agent": "AGENT",
    "budget_hours": "BUDGET h",
    "used": "USED",
    "share": "",
    "warned_at": "WARNED",
}
REPAIRS: Final = {"name": "NAME", "found": "FOUND", "done": "DONE"}
EVERYBODY: Final = "default"  # in place of an agent
NONE_OF_ITS_OWN: Final = "default"  # in place of hours


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("budget")(budget)
    app.command("repair")(repair)
    app.command("end")(end)


def budget(
    agent: Annotated[
        str | None, typer.Argument(help="DID or handle; default: all who have none of their own.")
    ] = None,
    hours: Annotated[
        str | None,
        typer.Argument(help="Awake hours per UTC month; none: unlimited; default: what all others have."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Awake hours per month: what everybody has and has used, or give an agent its own."""
    answer = Answer(as_json=as_json)
    did = None if agent in (None, EVERYBODY) else did_of(str(agent))
    if agent is not None and hours is not None:
        run(_set_budget(did, hours))
    with LedgerReader(ledger_path()) as ledger:
        rows = _budgets(ledger)
    if did is not None:
        rows = [row for row in rows if row["agent"] == did] or [_unused(did)]
    elif agent == EVERYBODY:
        rows = rows[:1]
    answer.rows(rows, BUDGETS, "no budgets")


async def _set_budget(did: str | None, hours: str) -> None:
    drop = hours == NONE_OF_ITS_OWN and did is not None
    try:
        amount = None if hours == "none" or drop else float(hours)
    except ValueError:
        raise WrongUse(f"{hours!r} is no number of hours: a number, none or default") from None
    try:
        with Ledger(ledger_path()) as ledger:
            if drop and did is not None:
                ledger.drop_budget(did)
            else:
                ledger.set_budget(did, amount)
    except LedgerLocked as locked:
        await _ask(locked, "set_budget", did, amount, drop)
    except FieldInvalid as error:
        raise WrongUse(str(error)) from None


def _budgets(ledger: LedgerReader) -> list[dict[str, Any]]:
    """The default first, then every agent with a budget of its own or something used this month."""
    own, used = ledger.budgets(), Counter[str]()
    for cost in ledger.costs():
        used[cost.agent_did] += cost.awake_ms
    warned = {warning.agent_did: warning.at for warning in ledger.budget_warnings()}
    rows: list[dict[str, Any]] = [{"agent": EVERYBODY, "budget_hours": own.get("")}]
    for did in sorted({*used, *own} - {""}):
        hours = ledger.budget(did)
        rows.append(
            {
                "agent": did,
                "budget_hours": hours,
                "is_own": did in own,
                "used_ms": used[did],
                "used": span(used[did]),
                "share": share(used[did], hours),
                "warned_at": when(warned.get(did)),
            }
        )
    return rows


def _unused(did: str) -> dict[str, Any]:
    with LedgerReader(ledger_path()) as ledger:
        return {"agent": did, "budget_hours": ledger.budget(did), "is_own": False, "used_ms": 0, "used": "0s"}


def repair(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    data: Annotated[
        bool, typer.Option("--data", help="Also remove /data of agents that never had a lease.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare the ledger with what there really is: adopt, finish or remove what does not agree."""
    answer = Answer(as_json=as_json)
    ledger_path()
    rows = run(_repair(dry_run=dry_run))
    if data:
        rows += _remove_data(dry_run=dry_run)
    if dry_run:
        rows = [{**row, "done": f"would be {row['done']}"} for row in rows]
    answer.rows(rows, REPAIRS, "nothing to repair")


async def _repair(*, dry_run: bool) -> list[dict[str, Any]]:
    import asyncio

    from actors.machine import Machine
    from actors.repair import Repairs

    settings = context.current().settings()
    machine = Machine(settings)
    try:
        with Ledger(ledger_path()) as ledger:
            repairs = Repairs(
                ledger,
                lambda node_id: machine,
                defaultdict(asyncio.Lock),
                ("this machine",),
                clock=ledger.now_ms,
                unleased_ms=settings.sandbox.unleased_s * 1000,
                sees_all=False,
            )
            return [_row(asdict(found)) for found in await repairs.round(dry_run=dry_run)]
    except LedgerLocked as locked:
        return [_row(found) for found in await _ask(locked, "repair", dry_run)]


def end(
    lease: Annotated[str, typer.Argument(help="Lease id: {agent DID}::{environment id}.")],
    as_json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")] = False,
) -> None:
    """End a lease by hand; its sandbox is destroyed, now or when the system is up again."""
    answer = Answer(as_json=as_json)
    with LedgerReader(ledger_path()) as ledger:
        was = ledger.get(lease)
    if not was.is_live:
        raise Refused(f"{lease} has ended already, by {was.ended_by}")
    run(_end(lease))
    answer.object({"lease": lease, "was": was.status, "ended_by": Cause.OPERATOR})


async def _end(lease_id: str) -> None:
    try:
        with Ledger(ledger_path()) as ledger:
            ledger.expire(lease_id, Cause.OPERATOR)
    except LedgerLocked as locked:
        await _ask(locked, "end", lease_id)


def _remove_data(*, dry_run: bool) -> list[dict[str, Any]]:
    from actors.machine import Machine

    with LedgerReader(ledger_path()) as ledger:
        machine = Machine(context.current().settings())
        folders = machine.data_of_nobody(set(ledger.agents()))
    for folder in [] if dry_run else folders:
        machine.remove_data(folder)
    return [{"name": str(folder), "found": "/data of nobody", "done": "removed"} for folder in folders]


async def _ask(locked: LedgerLocked, method: str, *arguments: Any) -> Any:
    """Have the supervisor do it that holds the ledger."""
    from actors import longlived

    try:
        return await longlived.ask_supervisor(context.current().settings(), method, *arguments)
    except NotThere:
        raise Refused(
            f"{locked.path} is in use by process {locked.holder_pid}: wait until it has ended"
        ) from None


def _row(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "at": when(found["at"])}


def did_of(agent: str) -> str:
    """The DID of an agent, given by it or by its handle. Raises: NotThere: nobody here has this handle."""
    if agent.startswith("did:"):
        return agent
    from actors.accounts import known_handles

    handles = known_handles(context.current().settings().data_path / "accounts.json")
    did = next((did for did, handle in handles.items() if handle == agent), None)
    if did is None:
        raise NotThere(
            f"no agent {agent!r} is known here: `skylease agents list` shows those who have played"
        )
    return did
