"""The ledger: who holds which sandbox and until when. A mutation is one transaction with its history row."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

from leases import accounts, budgets, history, lifecycle, placements, repairs, shares
from leases.budgets import DEFAULT_BUDGET, BudgetUse
from leases.conditions import Ending, Verdict, judge, sum_up
from leases.errors import InvalidTransition, LeaseEnded, StaleEpoch
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
    is_environment_id,
    lease_id_of,
)
from leases.months import month_of
from leases.reader import Leases, LedgerReader, wall_clock_ms
from leases.repairs import Repair
from leases.rows import find_lease, find_leases, get_lease
from leases.store import Access, Store, Tracer
from leases.terms import Terms, conditions_for
from leases.transitions import ENDINGS, Cause, Why
from leases.usage import NO_RATES, SHARED

DAY_MS: Final = 86_400_000
SLEEP_AFTER_MS: Final = 300_000
LOCK_WAIT_S: Final = 2.0  # a predecessor that is being replaced needs about as long to die
LeaseIds: TypeAlias = list[LeaseId]
BudgetUses: TypeAlias = list[BudgetUse]
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
            name_sandbox: gives the sandbox id of (agent DID, environment id); default: the canonical key.
            lock_wait_s: how long to wait for another writer that is about to leave, in seconds.
            tracer: gets every SQL statement just before it runs.

        Raises: LedgerLocked, LedgerTooNew, LedgerUnavailable.
        """
        store = Store(Path(path), Access.WRITE, lock_wait_s=lock_wait_s, tracer=tracer)
        super()._adopt(store, clock, rates)
        self._name_sandbox = name_sandbox

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Make several calls one transaction: all of them happen or none. No await inside."""
        with self._store.atomic():
            yield

    # -- the life of a lease ---------------------------------------------------------------------------------

    def acquire(
        self,
        agent_did: str,
        environment_id: str,
        environment_type: str,
        *,
        authority_did: str,
        ttl_ms: int = DAY_MS,
        max_ttl_ms: int | None = None,
        sleep_after_ms: int = SLEEP_AFTER_MS,
        expiry_conditions: Iterable[str] | None = None,
        tier: str = "process",
        image: str | None = None,
        share_with: tuple[str, int] | None = None,
    ) -> Acquired:
        """Give the agent its lease in the environment: the live one unchanged, else one of the next epoch.

        Args:
            ttl_ms: how long it lasts without a renewal.
            max_ttl_ms: how long it lasts at most from now, whatever is renewed; None: no limit.
            sleep_after_ms: idle time until its sandbox may sleep.
            expiry_conditions: endings that end it; None: those of the environment type.
            share_with: id and epoch of the lease in whose sandbox it is to be (see shares.py); `tier` and
                `image` are that one's then.

        Raises:
            BudgetExceeded: it would be new, and the agent has used up this month; nothing is written.
            LeaseEnding: the last one's sandbox is not confirmed gone; ask again after `destroyed`.
            FieldInvalid: a value that no lease can have.
            UnknownLease, StaleEpoch, LeaseEnded: the lease to share with has no sandbox.
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
            last = find_lease(self._store, lease_id)
            if last is not None and last.is_live:
                return Acquired(lease=last, is_new=False)
            host = None if share_with is None else shares.check_host(self._store, *share_with, lease_id)
            return Acquired(lease=self._create(agent_did, environment_id, terms, last, host), is_new=True)

    def place(self, lease_id: str, epoch: int, *, sandbox_id: str, node_id: str) -> None:
        """Write where the lease's sandbox is about to be created; call it before creating anything.

        Raises: UnknownLease, StaleEpoch. LeaseEnded: create nothing. FieldInvalid: another lease's sandbox.
        """
        check_key("sandbox_id", sandbox_id)
        check_word("node_id", node_id)
        with self._store.atomic():
            lease = self._held(lease_id, epoch)
            if not lease.is_live:
                raise LeaseEnded(lease_id, lease.status, lease.ended_by)
            placements.place(self._store, lease, sandbox_id=sandbox_id, node_id=node_id, now_ms=self._clock())

    def move(self, lease_id: str, epoch: int, node_id: str) -> None:
        """Write that the lease's sandbox is another node's from now on, since its own is gone for good.

        Raises: UnknownLease, StaleEpoch.
        """
        check_word("node_id", node_id)
        with self._store.atomic():
            placements.move(self._store, self._held(lease_id, epoch), node_id, now_ms=self._clock())

    def sandbox_state(
        self,
        sandbox_id: str,
        state: SandboxState | str,
        *,
        epoch: int | None = None,
        at_ms: int | None = None,
    ) -> bool:
        """Write what the host reports of the sandbox that was placed last under this id; `at_ms`: since when.

        Returns: False if nothing changed: it is in that state, was deleted, or its lease is destroyed.
        Raises: UnknownSandbox. StaleEpoch: the report is about an older sandbox.
        """
        with self._store.atomic():
            return placements.report(
                self._store, sandbox_id, SandboxState(state), epoch=epoch, now_ms=self._then(at_ms)
            )

    def renew(
        self, lease_id: str, epoch: int, *, last_turn: int | None = None, cursor: Cursor | None = None
    ) -> bool:
        """Slide the expiry to now + ttl_ms, at most max_expires_at; note the turn and the cursor with it.

        Calls may overtake each other: expiry, last_turn and cursor never move back.

        Returns: False if the lease has ended (nothing changes).
        Raises: UnknownLease. StaleEpoch: a newer holder exists.
        """
        if last_turn is not None:
            check_range("last_turn", last_turn, 0, accounts.MAX_SEQ)
        with self._store.atomic():
            if not lifecycle.renew(self._store, lease_id, epoch, last_turn=last_turn, now_ms=self._clock()):
                self._held(lease_id, epoch)  # unknown and stale raise; what is left has ended
                return False
            if cursor is not None:
                accounts.save_cursor(self._store, *cursor)
            return True

    def sleep(self, lease_id: str, epoch: int, *, why: Why | None = None, at_ms: int | None = None) -> bool:
        """Note that the sandbox sleeps: awake time stops, at `at_ms` if that was noticed only now.

        It never stops before the lease's last event. Returns: False if it slept already or has ended.
        """
        with self._store.atomic():
            lease = self._held(lease_id, epoch)
            if lease.status is LeaseStatus.ACTIVE:
                lifecycle.put_to_sleep(self._store, lease, why, now_ms=self._then(at_ms))
            return lease.status is LeaseStatus.ACTIVE

    def check_wake(self, lease_id: str, epoch: int) -> None:
        """Ask before a sleeping lease's sandbox is woken.

        Raises: UnknownLease, StaleEpoch. BudgetExceeded: it sleeps, and its agent has used up this month.
        """
        lease, now = self._held(lease_id, epoch), self._clock()
        if lease.status is LeaseStatus.SLEEPING:
            budgets.check_budget(self._store, lease.agent_did, month_of(now), now_ms=now)

    def wake(self, lease_id: str, epoch: int, *, why: Why | None = None, at_ms: int | None = None) -> bool:
        """Note that the sandbox is awake: awake time runs, since `at_ms` if that was noticed only now.

        Returns: False if it was awake or has ended.
        """
        with self._store.atomic():
            lease = self._held(lease_id, epoch)
            if lease.status is LeaseStatus.SLEEPING:
                lifecycle.wake_up(self._store, lease, why, now_ms=self._then(at_ms))
            return lease.status is LeaseStatus.SLEEPING

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
            lease = self._held(lease_id, epoch)
            if known not in ENDINGS:
                story = [str(one) for one in self.history(lease_id)]
                raise InvalidTransition(lease_id, lease.status, known, story)
            if lease.is_live:
                what = Happening(cause=known, epoch=lease.epoch, condition=words, event=event)
                lifecycle.end(self._store, lease, what, now_ms=self._clock())
            return lease.is_live

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

        The counter is `ending.<verdict>`: `ends`, or the strongest reason why it ended none. Nothing is
        raised for what a stranger wrote.

        Returns: the ids of the leases that ended.
        """
        ending = Ending(
            condition=condition, environment_id=environment_id, author_did=author_did, subject_did=subject_did
        )
        event = event[:MAX_TEXT_CHARS] if event else None
        with self._store.atomic():
            met = self._leases_in(environment_id)
            verdicts = [judge(ending, lease) for lease in met]
            ended = [lease for lease, verdict in zip(met, verdicts, strict=True) if verdict is Verdict.ENDS]
            for lease in ended:
                what = Happening(
                    cause=Cause.CONDITION,
                    epoch=lease.epoch,
                    condition=condition,
                    author_did=author_did,
                    event=event,
                )
                lifecycle.end(self._store, lease, what, now_ms=self._clock())
            self.count(f"ending.{sum_up(verdicts)}")
            return [lease.id for lease in ended]

    def destroyed(self, lease_id: str, *, epoch: int | None = None) -> bool:
        """Note the tier's report that nothing of an ended lease's sandbox is left.

        Returns: False if it was noted already.
        Raises: UnknownLease, StaleEpoch. InvalidTransition: the lease is live.
        """
        with self._store.atomic():
            lease = self._held(lease_id, epoch)
            if lease.status is LeaseStatus.DESTROYED:
                return False
            lifecycle.bury(self._store, lease, Cause.TIER_EMPTY, now_ms=self._clock())
            return True

    # -- budgets, accounts, cursors, counters, publication ---------------------------------------------------

    def set_budget(self, agent_did: str | None, hours: float | None) -> None:
        """Set awake hours per month for an agent, or for all without their own (None).

        Hours None or 0 are unlimited. Raises: FieldInvalid.
        """
        if agent_did is not None:
            check_did("agent_did", agent_did)
        with self._store.atomic():
            budgets.set_budget(self._store, DEFAULT_BUDGET if agent_did is None else agent_did, hours)

    def drop_budget(self, agent_did: str) -> None:
        """Let an agent have the default budget again."""
        with self._store.atomic():
            budgets.drop_budget(self._store, agent_did)

    def sweep_budgets(self) -> BudgetUses:
        """Warn, once per month and agent, of budgets that are nearly used up; give those that are spent.

        A warning is a row in `budget_warnings` and in the history of what is awake, and is counted. One that
        is spent is given again until nothing of it is awake.
        """
        now = self._clock()
        if not budgets.is_due(self._store, now_ms=now):
            return []
        with self._store.atomic():
            found = budgets.look(self._store, now_ms=now)
            for use in found:
                if budgets.warn(self._store, use, now_ms=now):
                    self.count("budget_warnings")
                    told = {"budget_hours": use.budget_hours, "used_ms": use.used_ms}
                    for lease in use.leases:
                        what = Happening(cause=Cause.WARNED, epoch=lease.epoch, detail=told)
                        lifecycle.happen(self._store, lease, what, now_ms=now)
        return [use for use in found if use.is_spent]

    def note_repair(self, repair: Repair) -> None:
        """Write what was found to disagree with the ledger and what was done, also in its lease's history."""
        with self._store.atomic():
            repairs.write(self._store, repair)
            self.count("repairs")
            lease = None if repair.lease_id is None else find_lease(self._store, repair.lease_id)
            if lease is not None:
                told = {"found": repair.found, "done": repair.done}
                what = Happening(cause=Cause.REPAIRED, epoch=lease.epoch, node_id=repair.node_id, detail=told)
                lifecycle.happen(self._store, lease, what, now_ms=repair.at)

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
        """Note what the firehose said about an identity; what is None stays, `active=True` clears the status.

        Returns: False if a newer `seq` was noted before (nothing changes).
        """
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
        """Note the URI under which a beginning or ending was published. Returns: False if it was before."""
        check_key("uri", uri)
        return history.publish(self._store, event_id, uri, at=self._clock())

    def _then(self, at_ms: int | None) -> int:
        """When something happened that is noted now: never in the future."""
        now = self._clock()
        return now if at_ms is None else min(at_ms, now)

    def _held(self, lease_id: str, epoch: int | None) -> Lease:
        lease = get_lease(self._store, lease_id)
        if epoch is not None and lease.epoch != epoch:
            raise StaleEpoch(lease_id, epoch, lease.epoch)
        return lease

    def _leases_in(self, environment_id: str) -> Leases:
        if not is_environment_id(environment_id):  # a stranger's text need not even be encodable
            return []
        return find_leases(self._store, "WHERE environment_id = ? ORDER BY id", environment_id)

    def _create(
        self, agent_did: str, environment_id: str, terms: Terms, last: Lease | None, host: Lease | None
    ) -> Lease:
        now = self._clock()
        budgets.check_budget(self._store, agent_did, month_of(now), now_ms=now)
        if last is not None and last.status is LeaseStatus.EXPIRED:
            lifecycle.clear_way(self._store, last, now_ms=now)
        sandbox_id = self._name_sandbox(agent_did, environment_id)
        if host is not None:
            sandbox_id, terms = host.sandbox_id, replace(terms, tier=SHARED, image=host.image)
        lease = lifecycle.create(
            self._store, agent_did, environment_id, terms, sandbox_id=sandbox_id, now_ms=now
        )
        if host is not None:
            shares.note(self._store, lease, host)
        return lease


def _cause(cause: Cause | str) -> tuple[Cause, str]:
    if cause in {known.value for known in Cause}:
        return Cause(cause), str(cause)
    check_text("cause", cause)
    return Cause.OTHER, cause
