"""The ledger: who holds which sandbox and until when. Every mutation is one transaction with its row of history."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from leases import accounts, history, usage
from leases.conditions import Ending, Verdict, judge, sum_up
from leases.errors import FieldInvalid, InvalidTransition, LeaseEnded, LeaseEnding, StaleEpoch, UnknownSandbox
from leases.history import Happening
from leases.lease import (
    MAX_TEXT_CHARS,
    Acquired,
    Lease,
    LeaseId,
    LeaseStatus,
    SandboxState,
    check_did,
    check_key,
    check_range,
    check_text,
    check_word,
    lease_id_of,
)
from leases.months import month_of
from leases.reader import LedgerReader, placement_of, wall_clock_ms
from leases.store import Access, Store, Tracer
from leases.terms import Terms, conditions_for
from leases.transitions import ENDINGS, Cause
from leases.usage import DEFAULT_BUDGET, NO_RATES

DAY_MS: Final = 86_400_000
LOCK_WAIT_S: Final = 2.0  # a predecessor that is being replaced needs about as long to die
LeaseIds: TypeAlias = list[LeaseId]
Cursor: TypeAlias = tuple[str, int]  # a stream's name and the sequence number dealt with


class Ledger(LedgerReader):
    """The one writer of a ledger. Synchronous; threads may share it, their calls come one after another.

    A lease is named by its id and fenced by its epoch: a call with another epoch than the current one raises
    StaleEpoch and changes nothing. A call that comes after its lease ended says so and changes nothing.
    Times are epoch milliseconds from `clock`; if the clock goes back, a lease's own time stands still.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        clock: Callable[[], int] = wall_clock_ms,
        rates: Mapping[str, float] = NO_RATES,
        name_sandbox: Callable[[str, str], str] = lease_id_of,
        lock_wait_s: float = LOCK_WAIT_S,
        tracer: Tracer | None = None,
    ) -> None:
        """Open or create the ledger and bring its schema up to date.

        Args:
            path: the file; its folder exists.
            clock: the time of day in epoch milliseconds.
            rates: USD per awake hour by tier; others cost `usage.DEFAULT_RATE`.
            name_sandbox: gives the sandbox id of (agent DID, environment id); default: the canonical key itself.
            lock_wait_s: how long to wait for another writer that is about to leave, in seconds.
            tracer: gets every SQL statement just before it runs.

        Raises: LedgerLocked, LedgerTooNew, LedgerUnavailable.
        """
        self._open(Store(Path(path), Access.WRITE, lock_wait_s=lock_wait_s, tracer=tracer), clock, rates)
        self._name_sandbox = name_sandbox

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Make several calls one transaction: all of them happen or none. No await inside."""
        with self._store.atomic():
            yield

    # -- the life of a lease ------------------------------------------------------------------------------------------

    def acquire(
        self,
        agent_did: str,
        environment_id: str,
        environment_type: str,
        *,
        authority_did: str,
        ttl_ms: int = DAY_MS,
        max_ttl_ms: int | None = None,
        sleep_after_ms: int = 300_000,
        expiry_conditions: Iterable[str] | None = None,
        tier: str = "process",
        image: str | None = None,
    ) -> Acquired:
        """Give the agent its lease in the environment: the live one unchanged, else a new one with the next epoch.

        Args:
            ttl_ms: how long it lasts without a renewal.
            max_ttl_ms: how long it lasts at most from now, whatever is renewed; None: no limit.
            sleep_after_ms: idle time until its sandbox may sleep.
            expiry_conditions: endings that end it; None: those of the environment type.

        Raises:
            BudgetExceeded: it would be new, and the agent has used up this month; nothing is written.
            LeaseEnding: the last one ended and its sandbox is not confirmed gone; ask again after `destroyed`.
            FieldInvalid: a value that no lease can have.
        """
        lease_id = lease_id_of(agent_did, environment_id)
        terms = Terms(
            environment_type=environment_type,
            authority_did=authority_did,
            ttl_ms=ttl_ms,
            max_ttl_ms=max_ttl_ms,
            sleep_after_ms=sleep_after_ms,
            expiry_conditions=conditions_for(expiry_conditions, environment_type),
            tier=tier,
            image=image,
        )
        with self._store.atomic():
            last = next(iter(self._leases("WHERE id = ?", lease_id)), None)
            if last is not None and last.is_live:
                return Acquired(lease=last, is_new=False)
            now = self._clock()
            usage.check_budget(self._store, agent_did, month_of(now), now_ms=now)
            if last is not None and last.status is LeaseStatus.EXPIRED:
                last = self._clear_way(last)
            return Acquired(lease=self._create(agent_did, environment_id, terms, last), is_new=True)

    def place(self, lease_id: str, epoch: int, *, sandbox_id: str, node_id: str) -> None:
        """Write where the lease's sandbox is about to be created; call it before creating anything.

        Raises: UnknownLease, StaleEpoch. LeaseEnded: create nothing.
        """
        check_key("sandbox_id", sandbox_id)
        check_word("node_id", node_id)
        with self._store.atomic():
            lease = self._held(lease_id, epoch)
            if not lease.is_live:
                raise LeaseEnded(lease_id, lease.status, lease.ended_by)
            other = self._store.row(
                "SELECT lease_id FROM sandboxes WHERE sandbox_id = ? AND lease_id <> ?", sandbox_id, lease_id
            )
            if other is not None:
                raise FieldInvalid("sandbox_id", sandbox_id, f"it belongs to {other['lease_id']}")
            what = Happening(
                cause=Cause.PLACED,
                epoch=epoch,
                sandbox_id=sandbox_id,
                sandbox_state=SandboxState.WARMING,
                node_id=node_id,
            )
            at = self._happens(lease, what)
            self._store.run(
                "UPDATE leases SET sandbox_id = ?, node_id = ? WHERE id = ?", sandbox_id, node_id, lease_id
            )
            self._store.run(
                """
                INSERT INTO sandboxes (sandbox_id, epoch, lease_id, node_id, tier, image, state, placed_at, changed_at)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'warming', ?7, ?7)
                ON CONFLICT (sandbox_id, epoch) DO UPDATE
                SET node_id = excluded.node_id, state = 'warming', changed_at = excluded.changed_at
                """,
                *(sandbox_id, epoch, lease_id, node_id, lease.tier, lease.image, at),
            )

    def sandbox_state(self, sandbox_id: str, state: SandboxState | str, *, epoch: int | None = None) -> bool:
        """Write what the host reports of the sandbox that was placed last under this id.

        Returns: False if nothing changed: it is in that state, was deleted, or its lease is destroyed.
        Raises: UnknownSandbox. StaleEpoch: the report is about an older sandbox.
        """
        state = SandboxState(state)
        with self._store.atomic():
            row = self._store.row(
                "SELECT * FROM sandboxes WHERE sandbox_id = ? ORDER BY epoch DESC LIMIT 1", sandbox_id
            )
            if row is None:
                raise UnknownSandbox(sandbox_id)
            placed = placement_of(row)
            lease = self._held(placed.lease_id, placed.epoch if epoch is None else epoch)
            if placed.state in (state, SandboxState.DELETED) or lease.status is LeaseStatus.DESTROYED:
                return False
            what = Happening(
                cause=Cause.SANDBOX,
                epoch=lease.epoch,
                sandbox_id=sandbox_id,
                sandbox_state=state,
                node_id=placed.node_id,
            )
            at = self._happens(lease, what)
            self._store.run(
                "UPDATE sandboxes SET state = ?, changed_at = ? WHERE sandbox_id = ? AND epoch = ?",
                *(state, at, sandbox_id, placed.epoch),
            )
            return True

    def renew(
        self, lease_id: str, epoch: int, *, last_turn: int | None = None, cursor: Cursor | None = None
    ) -> bool:
        """Slide the expiry to now + ttl_ms, at most max_expires_at; note the turn and the cursor with it.

        Calls may overtake each other: expiry, last_turn and cursor never move back.

        Returns: False if the lease has ended (nothing changes). Raises: StaleEpoch: a newer holder exists. UnknownLease.
        """
        if last_turn is not None:
            check_range("last_turn", last_turn, 0, accounts.MAX_SEQ)
        now = self._clock()
        with self._store.atomic():
            renewed = self._store.run(
                """
                UPDATE leases SET last_activity = max(last_activity, ?1),
                    expires_at = max(expires_at, min(?1 + ttl_ms, coalesce(max_expires_at, ?1 + ttl_ms))),
                    last_turn = CASE WHEN ?2 IS NULL THEN last_turn ELSE max(coalesce(last_turn, 0), ?2) END
                WHERE id = ?3 AND epoch = ?4 AND status IN ('active', 'sleeping')
                """,
                *(now, last_turn, lease_id, epoch),
            )
            if not renewed:
                self._held(lease_id, epoch)  # unknown and stale raise; what is left has ended
                return False
            if cursor is not None:
                accounts.save_cursor(self._store, *cursor)
            return True

    def sleep(self, lease_id: str, epoch: int) -> bool:
        """Note that the sandbox sleeps: awake time stops here. Returns: False if it slept already or has ended."""
        return self._nap(lease_id, epoch, Cause.SLEPT, LeaseStatus.ACTIVE, LeaseStatus.SLEEPING)

    def wake(self, lease_id: str, epoch: int) -> bool:
        """Note that the sandbox is awake: awake time runs again. Returns: False if it was awake or has ended."""
        return self._nap(lease_id, epoch, Cause.WOKEN, LeaseStatus.SLEEPING, LeaseStatus.ACTIVE)

    def expire(
        self, lease_id: str, cause: Cause | str, event: str | None = None, *, epoch: int | None = None
    ) -> bool:
        """End a lease; its sandbox is to be destroyed next.

        Args:
            cause: one of ENDINGS, or somebody's own words (kept in `ended_by`).
            event: firehose reference of what ended it.
            epoch: refuse unless it is the current one; None: whatever is current.

        Returns: False if it had ended already (nothing changes).
        Raises: UnknownLease, StaleEpoch. InvalidTransition: a cause that ends nothing.
        """
        known, words = _cause(cause)
        check_text("event", event)
        with self._store.atomic():
            lease = self.get(lease_id) if epoch is None else self._held(lease_id, epoch)
            if known not in ENDINGS:
                raise InvalidTransition(
                    lease_id, lease.status, known, [str(one) for one in self.history(lease_id)]
                )
            if not lease.is_live:
                return False
            self._end(lease, Happening(cause=known, epoch=lease.epoch, condition=words, event=event))
            return True

    def expire_by_condition(
        self,
        environment_id: str,
        condition: str,
        *,
        author_did: str,
        subject_did: str | None = None,
        event: str | None = None,
    ) -> LeaseIds:
        """End the live leases of the environment that this ending ends, and count it by what it met.

        The counter is `ending.<verdict>`: `ends`, or the strongest reason why it ended none. Nothing is raised for what
        a stranger wrote.

        Returns: the leases ended, by id.
        """
        ending = Ending(
            condition=condition, environment_id=environment_id, author_did=author_did, subject_did=subject_did
        )
        with self._store.atomic():
            met = self._leases("WHERE environment_id = ? ORDER BY id", environment_id)
            verdicts = {lease.id: judge(ending, lease) for lease in met}
            ended = [lease for lease in met if verdicts[lease.id] is Verdict.ENDS]
            for lease in ended:
                self._end(
                    lease,
                    Happening(
                        cause=Cause.CONDITION,
                        epoch=lease.epoch,
                        condition=condition,
                        author_did=author_did,
                        event=event and event[:MAX_TEXT_CHARS],
                    ),
                )
            self.count(f"ending.{sum_up(verdicts.values())}")
            return [lease.id for lease in ended]

    def destroyed(self, lease_id: str, *, epoch: int | None = None) -> bool:
        """Note the tier's report that nothing of an ended lease's sandbox is left.

        Returns: False if it was noted already. Raises: UnknownLease, StaleEpoch. InvalidTransition: the lease is live.
        """
        with self._store.atomic():
            lease = self.get(lease_id) if epoch is None else self._held(lease_id, epoch)
            if lease.status is LeaseStatus.DESTROYED:
                return False
            self._bury(lease, Cause.TIER_EMPTY)
            return True

    # -- budgets, accounts, cursors, counters, publication --------------------------------------------------------------

    def set_budget(self, agent_did: str | None, hours: float | None) -> None:
        """Set awake hours per month for an agent, or for all without their own (None); hours None or 0: unlimited."""
        if agent_did is not None:
            check_did("agent_did", agent_did)
        usage.set_budget(self._store, DEFAULT_BUDGET if agent_did is None else agent_did, hours)

    def upsert_account(
        self,
        did: str,
        *,
        handle: str | None = None,
        active: bool | None = None,
        status: str | None = None,
        rev: str | None = None,
        seq: int | None = None,
    ) -> bool:
        """Note what the firehose said about an identity; what is None stays. Returns: False if `seq` is an old one."""
        check_did("did", did)
        with self._store.atomic():
            return accounts.upsert(
                self._store, did, handle=handle, active=active, status=status, rev=rev, seq=seq
            )

    def save_cursor(self, name: str, seq: int) -> None:
        """Note how far a stream has been dealt with; it never moves back."""
        accounts.save_cursor(self._store, name, seq)

    def forget_cursor(self, name: str) -> None:
        """Start a stream anew: its server counts differently now."""
        accounts.forget_cursor(self._store, name)

    def count(self, name: str, n: int = 1) -> None:
        """Add to one of the counters that `counters` shows."""
        accounts.count(self._store, name, n)

    def mark_published(self, event_id: int, uri: str) -> bool:
        """Note under which URI a beginning or ending was published. Returns: False if it was noted before."""
        check_key("uri", uri)
        return history.publish(self._store, event_id, uri, at=self._clock())

    # -- steps, each inside the caller's transaction --------------------------------------------------------------------

    def _held(self, lease_id: str, epoch: int) -> Lease:
        lease = self.get(lease_id)
        if lease.epoch != epoch:
            raise StaleEpoch(lease_id, epoch, lease.epoch)
        return lease

    def _happens(self, lease: Lease, what: Happening) -> int:
        at = history.last_moment(self._store, lease.id, self._clock())
        history.append(self._store, lease.id, lease.status, what, at=at)
        return at

    def _create(self, agent_did: str, environment_id: str, terms: Terms, last: Lease | None) -> Lease:
        lease_id = lease_id_of(agent_did, environment_id)
        epoch = 1 if last is None else last.epoch + 1
        at = history.last_moment(self._store, lease_id, self._clock())
        sandbox_id = self._name_sandbox(agent_did, environment_id)
        self._store.run(
            _CREATE,
            *(
                lease_id,
                agent_did,
                environment_id,
                terms.environment_type,
                terms.authority_did,
                terms.tier,
                terms.image,
            ),
            *(at, terms.expires_at(at), terms.max_expires_at(at), terms.ttl_ms, terms.sleep_after_ms),
            *(json.dumps(terms.expiry_conditions), epoch, sandbox_id),
        )
        what = Happening(cause=Cause.ACQUIRED, epoch=epoch, sandbox_id=sandbox_id, detail=terms.as_detail())
        history.append(self._store, lease_id, None if last is None else last.status, what, at=at)
        lease = self.get(lease_id)
        usage.begin(self._store, lease, at=at)
        return lease

    def _clear_way(self, lease: Lease) -> Lease:
        left = self._store.row(
            "SELECT sandbox_id, epoch FROM sandboxes WHERE lease_id = ? AND state <> 'deleted'", lease.id
        )
        if left is not None:
            raise LeaseEnding(lease.id, left["epoch"], left["sandbox_id"])
        self._bury(lease, Cause.NEVER_PLACED)
        return self.get(lease.id)

    def _nap(self, lease_id: str, epoch: int, cause: Cause, before: LeaseStatus, after: LeaseStatus) -> bool:
        with self._store.atomic():
            lease = self._held(lease_id, epoch)
            if lease.status is not before:
                return False
            at = self._happens(lease, Happening(cause=cause, epoch=epoch))
            if after is LeaseStatus.ACTIVE:
                usage.begin(self._store, lease, at=at)
            else:
                usage.end(self._store, lease_id, at=at)
            self._store.run("UPDATE leases SET status = ? WHERE id = ?", after, lease_id)
            return True

    def _end(self, lease: Lease, what: Happening) -> None:
        at = self._happens(lease, what)
        usage.end(self._store, lease.id, at=at)
        self._store.run(
            "UPDATE leases SET status = 'expired', ended_at = ?, ended_by = ? WHERE id = ?",
            at,
            what.condition,
            lease.id,
        )

    def _bury(self, lease: Lease, cause: Cause) -> None:
        at = self._happens(lease, Happening(cause=cause, epoch=lease.epoch))
        self._store.run("UPDATE leases SET status = 'destroyed' WHERE id = ?", lease.id)
        self._store.run(
            "UPDATE sandboxes SET state = 'deleted', changed_at = ? WHERE lease_id = ? AND state <> 'deleted'",
            at,
            lease.id,
        )


_CREATE: Final = """
    INSERT INTO leases (id, agent_did, environment_id, environment_type, authority_did, tier, image,
        leased_at, last_activity, expires_at, max_expires_at, ttl_ms, sleep_after_ms, expiry_conditions,
        status, epoch, sandbox_id)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9, ?10, ?11, ?12, ?13, 'active', ?14, ?15)
    ON CONFLICT (id) DO UPDATE SET environment_type = excluded.environment_type, authority_did = excluded.authority_did,
        tier = excluded.tier, image = excluded.image, leased_at = excluded.leased_at,
        last_activity = excluded.last_activity, expires_at = excluded.expires_at,
        max_expires_at = excluded.max_expires_at, ttl_ms = excluded.ttl_ms, sleep_after_ms = excluded.sleep_after_ms,
        expiry_conditions = excluded.expiry_conditions, status = 'active', epoch = excluded.epoch,
        sandbox_id = excluded.sandbox_id, node_id = NULL, ended_at = NULL, ended_by = NULL
"""


def _cause(cause: Cause | str) -> tuple[Cause, str]:
    try:
        return Cause(cause), Cause(cause).value
    except ValueError:
        check_text("cause", cause)
        return Cause.OTHER, cause
