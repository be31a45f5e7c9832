"""The ledger's schema, as numbered steps; a step and the record that it ran are one transaction.

Add a step, never edit one that was released. What each table means stands beside it.
"""

from typing import Final

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from leases.months import months_of

MIGRATIONS: Final = Migrations("skylease.ledger")


def unknown_steps(db: Database) -> list[str]:
    """Give the steps that ran on this file and that this version does not have: a newer one wrote it."""
    ours = {step.name for step in MIGRATIONS.pending(Database(memory=True))}
    return [step.name for step in MIGRATIONS.applied(db) if step.name not in ours]


_LEASES: Final = (
    """
    CREATE TABLE leases (
        id TEXT PRIMARY KEY,
        agent_did TEXT NOT NULL,
        environment_id TEXT NOT NULL,
        environment_type TEXT NOT NULL,
        authority_did TEXT NOT NULL,
        tier TEXT NOT NULL,
        image TEXT,
        leased_at INTEGER NOT NULL,
        last_activity INTEGER NOT NULL,
        expires_at INTEGER NOT NULL,
        max_expires_at INTEGER,
        ttl_ms INTEGER NOT NULL CHECK (ttl_ms > 0),
        sleep_after_ms INTEGER NOT NULL CHECK (sleep_after_ms > 0),
        expiry_conditions TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('active', 'sleeping', 'expired', 'destroyed')),
        epoch INTEGER NOT NULL CHECK (epoch > 0),
        sandbox_id TEXT NOT NULL,
        node_id TEXT,
        last_turn INTEGER,
        ended_at INTEGER,
        ended_by TEXT,
        UNIQUE (agent_did, environment_id),
        CHECK ((ended_at IS NULL) = (status IN ('active', 'sleeping'))),
        CHECK ((ended_by IS NULL) = (ended_at IS NULL)),
        CHECK (expires_at <= coalesce(max_expires_at, expires_at))
    )
    """,
    "CREATE INDEX leases_environment_id ON leases (environment_id)",
    "CREATE INDEX leases_status ON leases (status)",
    "CREATE INDEX leases_expires_at ON leases (expires_at)",
)

# seq counts per lease: equal histories are equal however leases interleaved; id orders what to publish
_LEASE_EVENTS: Final = (
    """
    CREATE TABLE lease_events (
        id INTEGER PRIMARY KEY,
        lease_id TEXT NOT NULL REFERENCES leases (id),
        seq INTEGER NOT NULL CHECK (seq > 0),
        epoch INTEGER NOT NULL,
        at INTEGER NOT NULL,
        cause TEXT NOT NULL,
        from_status TEXT,
        to_status TEXT NOT NULL,
        sandbox_id TEXT,
        sandbox_state TEXT,
        node_id TEXT,
        condition TEXT,
        author_did TEXT,
        event TEXT,
        detail TEXT,
        UNIQUE (lease_id, seq)
    )
    """,
    """
    CREATE TRIGGER lease_events_keep BEFORE UPDATE ON lease_events
    BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END
    """,
    """
    CREATE TRIGGER lease_events_stay BEFORE DELETE ON lease_events
    BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END
    """,
)

# beginnings and endings that the supervisor publishes as records; uri is null until it has
_OUTBOX: Final = (
    """
    CREATE TABLE outbox (
        event_id INTEGER PRIMARY KEY REFERENCES lease_events (id),
        uri TEXT,
        published_at INTEGER
    )
    """,
    "CREATE INDEX outbox_waiting ON outbox (event_id) WHERE uri IS NULL",
)

# awake intervals [started_at, ended_at); the one without an end is running
_USAGE: Final = (
    """
    CREATE TABLE usage (
        lease_id TEXT NOT NULL REFERENCES leases (id),
        epoch INTEGER NOT NULL,
        agent_did TEXT NOT NULL,
        tier TEXT NOT NULL,
        started_at INTEGER NOT NULL,
        ended_at INTEGER CHECK (ended_at >= started_at)
    )
    """,
    "CREATE UNIQUE INDEX usage_running ON usage (lease_id) WHERE ended_at IS NULL",
    "CREATE INDEX usage_lease ON usage (lease_id, started_at)",
    "CREATE INDEX usage_agent ON usage (agent_did, started_at)",
)

# one row per epoch that a sandbox was to be created in: written before the side effect, confirmed after
_SANDBOXES: Final = (
    """
    CREATE TABLE sandboxes (
        sandbox_id TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        lease_id TEXT NOT NULL REFERENCES leases (id),
        node_id TEXT NOT NULL,
        tier TEXT NOT NULL,
        image TEXT,
        state TEXT NOT NULL CHECK (state IN
            ('cold', 'warming', 'warm', 'running', 'waiting', 'suspending', 'failed', 'deleted')),
        placed_at INTEGER NOT NULL,
        changed_at INTEGER NOT NULL,
        PRIMARY KEY (sandbox_id, epoch)
    )
    """,
    "CREATE INDEX sandboxes_lease ON sandboxes (lease_id, epoch)",
    "CREATE INDEX sandboxes_left ON sandboxes (lease_id) WHERE state <> 'deleted'",
)

# agent_did '' is the default for every agent without its own row; hours null is unlimited
_SMALL: Final = (
    "CREATE TABLE budgets (agent_did TEXT PRIMARY KEY, hours REAL CHECK (hours > 0))",
    "CREATE TABLE cursors (name TEXT PRIMARY KEY, seq INTEGER NOT NULL)",
    "CREATE TABLE counters (name TEXT PRIMARY KEY, n INTEGER NOT NULL)",
    """
    CREATE TABLE accounts (
        did TEXT PRIMARY KEY,
        handle TEXT,
        active INTEGER NOT NULL CHECK (active IN (0, 1)),
        status TEXT,
        rev TEXT,
        seq INTEGER
    )
    """,
)


@MIGRATIONS(name="0001_leases")
def _leases(db: Database) -> None:
    for statement in (*_LEASES, *_LEASE_EVENTS, *_OUTBOX, *_USAGE, *_SANDBOXES, *_SMALL):
        db.execute(statement)


# closed awake time by calendar month, so that what a month cost is not added up from years of intervals
_USAGE_MONTHS: Final = (
    """
    CREATE TABLE usage_months (
        month_start INTEGER NOT NULL,
        agent_did TEXT NOT NULL,
        tier TEXT NOT NULL,
        ms INTEGER NOT NULL CHECK (ms > 0),
        PRIMARY KEY (month_start, agent_did, tier)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX usage_awake ON usage (agent_did) WHERE ended_at IS NULL",
    "DROP INDEX usage_agent",
)

# budget_checks: when an agent that is awake has to be looked at next, at the latest; budget_warnings: who
# has used WARN_AT of its budget, once per month; month_start as in usage_months
_BUDGETS: Final = (
    "CREATE TABLE budget_checks (agent_did TEXT PRIMARY KEY, check_at INTEGER NOT NULL)",
    "CREATE INDEX budget_checks_due ON budget_checks (check_at)",
    """
    CREATE TABLE budget_warnings (
        month_start INTEGER NOT NULL,
        agent_did TEXT NOT NULL,
        at INTEGER NOT NULL,
        used_ms INTEGER NOT NULL,
        budget_hours REAL NOT NULL,
        PRIMARY KEY (month_start, agent_did)
    ) WITHOUT ROWID
    """,
)

# what was found to disagree with the ledger, and what was done about it
_REPAIRS: Final = (
    """
    CREATE TABLE repairs (
        id INTEGER PRIMARY KEY,
        at INTEGER NOT NULL,
        found TEXT NOT NULL,
        done TEXT NOT NULL,
        node_id TEXT NOT NULL,
        name TEXT NOT NULL,
        lease_id TEXT,
        detail TEXT
    )
    """,
)

# how many leases there are of each status, kept by the database itself: counting a million takes too long
_COUNTS: Final = (
    "CREATE TABLE lease_counts (status TEXT PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO lease_counts VALUES ('active', 0), ('sleeping', 0), ('expired', 0), ('destroyed', 0)",
    "UPDATE lease_counts SET n = (SELECT count(*) FROM leases WHERE leases.status = lease_counts.status)",
    """
    CREATE TRIGGER leases_came AFTER INSERT ON leases
    BEGIN UPDATE lease_counts SET n = n + 1 WHERE status = new.status; END
    """,
    """
    CREATE TRIGGER leases_moved AFTER UPDATE OF status ON leases WHEN old.status <> new.status
    BEGIN
        UPDATE lease_counts SET n = n - 1 WHERE status = old.status;
        UPDATE lease_counts SET n = n + 1 WHERE status = new.status;
    END
    """,
)

# every sweep asks for what is due, however many leases are not, and however many are over
_INDEXES: Final = (
    "DROP INDEX leases_expires_at",
    "CREATE INDEX leases_due ON leases (expires_at, id) WHERE status IN ('active', 'sleeping')",
    """
    CREATE INDEX leases_idle ON leases (last_activity + sleep_after_ms)
    WHERE status = 'active' AND node_id IS NOT NULL
    """,
    "DROP INDEX leases_status",
    "CREATE INDEX leases_status ON leases (status, leased_at, id)",
    "CREATE INDEX leases_leased_at ON leases (leased_at, id)",
)


@MIGRATIONS(name="0002_money")
def _money(db: Database) -> None:
    for statement in (*_USAGE_MONTHS, *_BUDGETS, *_REPAIRS, *_COUNTS, *_INDEXES):
        db.execute(statement)
    for agent_did, tier, started_at, ended_at in db.execute(
        "SELECT agent_did, tier, started_at, ended_at FROM usage WHERE ended_at IS NOT NULL"
    ).fetchall():
        for month, ms in months_of(started_at, ended_at):
            db.execute(
                "INSERT INTO usage_months VALUES (?, ?, ?, ?)"
                " ON CONFLICT (month_start, agent_did, tier) DO UPDATE SET ms = ms + excluded.ms",
                [month.start_ms, agent_did, tier, ms],
            )


# who holds what until when; the token stays when the holder goes, so that the next one's is larger
_GUARDS: Final = """
    CREATE TABLE guards (
        key TEXT PRIMARY KEY,
        token INTEGER NOT NULL CHECK (token > 0),
        holder TEXT,
        until INTEGER NOT NULL
    )
"""

# leases in another's sandbox, each for one epoch; the host is the lease that the sandbox was made for
_SHARES: Final = (
    """
    CREATE TABLE shares (
        lease_id TEXT PRIMARY KEY REFERENCES leases (id),
        epoch INTEGER NOT NULL,
        host_id TEXT NOT NULL REFERENCES leases (id),
        host_epoch INTEGER NOT NULL
    )
    """,
    "CREATE INDEX shares_host ON shares (host_id, host_epoch)",
)


@MIGRATIONS(name="0003_sharing")
def _sharing(db: Database) -> None:
    for statement in (_GUARDS, *_SHARES):
        db.execute(statement)
