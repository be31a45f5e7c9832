"""`skylease leases`: the ledger, read beside its writer."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from actors.cli import context
from actors.cli.console import Answer
from actors.errors import NotThere, WrongUse
from leases import Lease, LeaseEvent, LeaseStatus, LedgerReader

app = typer.Typer(help="Who holds which sandbox, and until when.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
COLUMNS = {
    "lease": "LEASE",
    "tier": "TIER",
    "status": "STATUS",
    "epoch": "EPOCH",
    "awake": "AWAKE",
    "expires_in": "EXPIRES IN",
    "ended_by": "ENDED BY",
}


@app.command("list")
def list_leases(
    status: Annotated[str | None, typer.Option(help="active, sleeping, expired or destroyed.")] = None,
    environment: Annotated[str | None, typer.Option(help="Only this environment's.")] = None,
    as_json: Json = False,
) -> None:
    """Leases by the time they began."""
    if status is not None and status not in tuple(LeaseStatus):
        raise WrongUse(f"there is no lease status {status!r}: there is {', '.join(LeaseStatus)}")
    answer = Answer(as_json=as_json)
    with LedgerReader(_ledger()) as ledger:
        rows = [_row(ledger, lease) for lease in ledger.list(status, environment)]
    answer.rows(rows, COLUMNS, "no leases")


@app.command("show")
def show(
    lease: Annotated[str, typer.Argument(help="Lease id: {agent DID}::{environment id}.")],
    as_json: Json = False,
) -> None:
    """One lease and everything that happened to it."""
    answer = Answer(as_json=as_json)
    with LedgerReader(_ledger()) as ledger:
        row, events = _row(ledger, ledger.get(lease)), [_event(event) for event in ledger.history(lease)]
    lines = [f"{key:18} {'-' if value is None else value}" for key, value in row.items()]
    lines += ["", *(f"{event['at']}  {event['cause']:11} {event['told']}" for event in events)]
    answer.object({**row, "history": events}, "\n".join(lines))


def _ledger() -> Path:
    path = context.current().settings().data_path / "ledger.db"
    if not path.exists():
        raise NotThere(
            f"there is no ledger at {path}: play with `skylease simulate`, or name another --data-dir"
        )
    return path


def _row(ledger: LedgerReader, lease: Lease) -> dict[str, Any]:
    now = time.time_ns() // 1_000_000
    return {
        "lease": lease.id,
        "agent": lease.agent_did,
        "environment": lease.environment_id,
        "environment_type": lease.environment_type,
        "authority": lease.authority_did,
        "tier": lease.tier,
        "status": lease.status,
        "epoch": lease.epoch,
        "sandbox": lease.sandbox_id,
        "node": lease.node_id,
        "last_turn": lease.last_turn,
        "leased_at": _when(lease.leased_at),
        "awake": _span(_awake_ms(ledger.history(lease.id), now)),
        "expires_in": _span(lease.expires_at - now) if lease.is_live else None,
        "conditions": ", ".join(lease.expiry_conditions),
        "ended_at": _when(lease.ended_at),
        "ended_by": lease.ended_by,
    }


def _awake_ms(history: list[LeaseEvent], now_ms: int) -> int:
    """How long the lease has been active, over all its epochs."""
    ends = [*(event.at for event in history[1:]), now_ms]
    return sum(
        until - event.at
        for event, until in zip(history, ends, strict=True)
        if event.to_status is LeaseStatus.ACTIVE
    )


def _event(event: LeaseEvent) -> dict[str, Any]:
    told = [event.condition, event.sandbox_state, event.node_id and event.node_id[:12], event.event]
    return {
        "at": _when(event.at),
        "cause": event.cause,
        "epoch": event.epoch,
        "from": event.from_status,
        "to": event.to_status,
        "told": " ".join(str(part) for part in told if part),
        "event": event.event,
        "author": event.author_did,
        "published": event.published_uri,
    }


def _when(epoch_ms: int | None) -> str | None:
    if epoch_ms is None:
        return None
    return (
        datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def _span(ms: int) -> str:
    """A length of time as a person says it: 4m12s, 23h55m."""
    seconds = abs(ms) // 1000
    hours, minutes, rest = seconds // 3600, seconds // 60 % 60, seconds % 60
    told = f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
    return f"-{told}" if ms < 0 else told
