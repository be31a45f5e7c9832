"""`skylease leases`: the ledger, read beside its writer."""

import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from actors.cli import context
from actors.cli.console import Answer, progress
from actors.errors import NotThere, WrongUse
from leases import Cause, FieldInvalid, Lease, LeaseEvent, LeaseStatus, LedgerReader

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
COST_COLUMNS = {
    "agent": "AGENT",
    "tier": "TIER",
    "awake": "AWAKE",
    "cost": "COST",
    "share": "",
    "budget": "OF ITS BUDGET",
}
BAR_CHARS = 24
PAGE = 1000
MS_PER_HOUR = 3_600_000


@app.command("list")
def list_leases(
    status: Annotated[str | None, typer.Option(help="active, sleeping, expired or destroyed.")] = None,
    environment: Annotated[str | None, typer.Option(help="Only this environment's.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = PAGE,
    after: Annotated[str | None, typer.Option(help="Those after this lease id: the next page.")] = None,
    as_json: Json = False,
) -> None:
    """Leases by the time they began, a page at a time."""
    if status is not None and status not in tuple(LeaseStatus):
        raise WrongUse(f"there is no lease status {status!r}: there is {', '.join(LeaseStatus)}")
    answer = Answer(as_json=as_json)
    with LedgerReader(ledger_path()) as ledger:
        if after is not None:
            ledger.get(after)
        page = ledger.list(status, environment, limit=limit + 1, after=after)
        rows = [_row(ledger, lease) for lease in page[:limit]]
    answer.rows(rows, COLUMNS, "no leases")
    if len(page) > limit:
        progress.print(f"there are more: --after {page[limit - 1].id}", markup=False, soft_wrap=True)


@app.command("show")
def show(
    lease: Annotated[str, typer.Argument(help="Lease id: {agent DID}::{environment id}.")],
    as_json: Json = False,
) -> None:
    """One lease and everything that happened to it."""
    answer = Answer(as_json=as_json)
    with LedgerReader(ledger_path()) as ledger:
        row, history = _row(ledger, ledger.get(lease)), ledger.history(lease)
    befores: list[LeaseEvent | None] = [None, *history]
    events = [_event(event, before) for event, before in zip(history, befores, strict=False)]
    lines = [f"{key:18} {'-' if value is None else value}" for key, value in row.items()]
    lines += ["", *(f"{event['at']}  {event['cause']:12} {event['told']}" for event in events)]
    answer.object({**row, "history": events}, "\n".join(lines))


@app.command("costs")
def costs(
    month: Annotated[str | None, typer.Option(help="YYYY-MM, UTC; default: this month.")] = None,
    as_json: Json = False,
) -> None:
    """What agents used in a month, and what it cost; only awake time counts."""
    answer = Answer(as_json=as_json)
    prices = context.current().settings().budget.usd_per_hour
    with LedgerReader(ledger_path(), rates=prices) as ledger:
        try:
            used = ledger.costs(month)
        except FieldInvalid as error:
            raise WrongUse(str(error)) from None
        totals: Counter[str] = Counter()
        for cost in used:
            totals[cost.agent_did] += cost.awake_ms
        warned = {warning.agent_did: warning.at for warning in ledger.budget_warnings(month)}
        rows = [
            {
                "agent": cost.agent_did,
                "tier": cost.tier,
                "awake_ms": cost.awake_ms,
                "awake": span(cost.awake_ms),
                "budget_hours": ledger.budget(cost.agent_did),
                "warned_at": when(warned.get(cost.agent_did)),
                "budget": share(totals[cost.agent_did], ledger.budget(cost.agent_did)),
                "cost_usd": cost.cost_usd,
                "cost": f"${cost.cost_usd:.4f}",
                "share": _bar(cost.cost_usd, max(other.cost_usd for other in used)),
            }
            for cost in used
        ]
    if as_json:
        rows = [
            {key: value for key, value in row.items() if key not in ("cost", "share", "budget")}
            for row in rows
        ]
    answer.rows(rows, COST_COLUMNS, "nothing was used in that month")


def share(used_ms: int, budget_hours: float | None) -> str | None:
    """How much of a budget is used; None: it is unlimited."""
    return None if budget_hours is None else f"{used_ms / MS_PER_HOUR / budget_hours:.0%}"


def _bar(part: float, most: float) -> str:
    """A bar for a chart in text, exact to an eighth of a character; the longest has BAR_CHARS."""
    eighths = round(part / most * BAR_CHARS * 8) if most else 0
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def ledger_path() -> Path:
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
        "image": lease.image,
        "status": lease.status,
        "epoch": lease.epoch,
        "sandbox": lease.sandbox_id,
        "node": lease.node_id,
        "last_turn": lease.last_turn,
        "leased_at": when(lease.leased_at),
        "awake": span(awake_ms(ledger.history(lease.id), now)),
        "expires_in": span(lease.expires_at - now) if lease.is_live else None,
        "conditions": ", ".join(lease.expiry_conditions),
        "ended_at": when(lease.ended_at),
        "ended_by": lease.ended_by,
    }


def awake_ms(history: list[LeaseEvent], now_ms: int) -> int:
    """How long the lease has been active, over all its epochs."""
    ends = [*(event.at for event in history[1:]), now_ms]
    return sum(
        until - event.at
        for event, until in zip(history, ends, strict=True)
        if event.to_status is LeaseStatus.ACTIVE
    )


def _told(event: LeaseEvent, before: LeaseEvent | None) -> list[str | None]:
    """What happened, beside its name; `before` is what happened before."""
    detail, where = event.detail, event.node_id and f"on {event.node_id[:12]}"
    match event.cause:
        case Cause.ACQUIRED:
            return [detail.get("tier"), f"epoch {event.epoch}"]
        case Cause.WOKEN if before is not None:
            slept = event.at - before.at if before.cause is Cause.SLEPT else None
            return [detail.get("why"), (slept is not None and f"after {span(slept)} asleep") or None]
        case Cause.SLEPT:
            return [detail.get("why")]
        case Cause.SANDBOX_LOST:
            return ["found dead", where]
        case Cause.WARNED:
            hours = detail["used_ms"] / MS_PER_HOUR
            return [f"{hours:.4g} of {detail['budget_hours']:.4g} awake hours used"]
        case Cause.REPAIRED if "from_node" in detail:
            return [f"moved from {str(detail['from_node'])[:12]}", where]
        case Cause.REPAIRED:
            return [f"{detail.get('found')}: {detail.get('done')}", where]
        case _:
            return [event.condition, event.sandbox_state, where, event.event]


def _event(event: LeaseEvent, before: LeaseEvent | None) -> dict[str, Any]:
    return {
        "at": when(event.at),
        "cause": event.cause,
        "epoch": event.epoch,
        "from": event.from_status,
        "to": event.to_status,
        "told": " ".join(str(part) for part in _told(event, before) if part),
        "why": event.detail.get("why"),
        "event": event.event,
        "author": event.author_did,
        "published": event.published_uri,
    }


def when(epoch_ms: int | None) -> str | None:
    if epoch_ms is None:
        return None
    return (
        datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def span(ms: int) -> str:
    """A length of time as a person says it: 4m12s, 23h55m."""
    seconds = abs(ms) // 1000
    hours, minutes, rest = seconds // 3600, seconds // 60 % 60, seconds % 60
    told = f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
    return f"-{told}" if ms < 0 else told
