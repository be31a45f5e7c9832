"""Anything in any order, with crashes in between, against a model of a few lines."""

import os
import signal
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leases import (
    ENDINGS,
    LIVE,
    Cause,
    InvalidTransition,
    LeaseEnded,
    LeaseEnding,
    LeaseStatus,
    Ledger,
    SandboxState,
    StaleEpoch,
    UnknownLease,
)

AGENTS, ENVIRONMENTS, GM = ("did:plc:alice", "did:plc:bob"), ("catan-7", "rpg-1"), "did:plc:gm"
TTL_MS, MAX_TTL_MS = 1_000, 2_500
PAIRS = st.tuples(st.sampled_from(AGENTS), st.sampled_from(ENVIRONMENTS))
STATES = st.sampled_from([state for state in SandboxState if state is not SandboxState.WARMING])


class Held:
    """What the model knows of one pair."""

    def __init__(self, epoch: int, now: int) -> None:
        self.status = LeaseStatus.ACTIVE
        self.epoch = epoch
        self.expires_at = now + TTL_MS
        self.max_expires_at = now + MAX_TTL_MS
        self.sandbox: SandboxState | None = None


class LedgerMachine(RuleBasedStateMachine):
    """Two agents in two environments, and everything that can happen to their leases."""

    @initialize()
    def open(self) -> None:
        self.folder = TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        self.now = 1_764_547_200_000 - 3_000  # three seconds before a month ends
        self.held: dict[str, Held] = {}
        self.awake: dict[str, int] = dict.fromkeys(AGENTS, 0)
        self.acquired = self.destroyed = self.endings = 0
        self._open()

    def _open(self) -> None:
        self.ledger = Ledger(Path(self.folder.name) / "ledger.db", clock=lambda: self.now, lock_wait_s=0)

    def teardown(self) -> None:
        self.ledger.close()
        self.folder.cleanup()

    @rule(ms=st.integers(1, 900))
    def time_passes(self, ms: int) -> None:
        for key, held in self.held.items():
            if held.status is LeaseStatus.ACTIVE:
                self.awake[key.rsplit("::", 1)[0]] += ms
        self.now += ms

    @rule(pair=PAIRS)
    def acquire(self, pair: tuple[str, str]) -> None:
        key = "::".join(pair)
        held = self.held.get(key)

        def ask() -> bool:
            return self.ledger.acquire(
                *pair, "rpg", authority_did=GM, ttl_ms=TTL_MS, max_ttl_ms=MAX_TTL_MS
            ).is_new

        if held is not None and held.status in LIVE:
            assert ask() is False
            return
        if held is not None and held.status is LeaseStatus.EXPIRED:
            if held.sandbox not in (None, SandboxState.DELETED):
                with pytest.raises(LeaseEnding):
                    ask()
                return
            self.destroyed += 1
        assert ask() is True
        self.held[key] = Held(1 if held is None else held.epoch + 1, self.now)
        self.acquired += 1

    @rule(pair=PAIRS, behind=st.integers(0, 1))
    def place(self, pair: tuple[str, str], behind: int) -> None:
        key = "::".join(pair)
        held = self.held.get(key)
        if not self._may(key, behind, lambda epoch: self._place(key, epoch)):
            return
        assert held is not None
        if held.status not in LIVE:
            with pytest.raises(LeaseEnded):
                self._place(key, held.epoch)
            return
        self._place(key, held.epoch)
        held.sandbox = SandboxState.WARMING

    def _place(self, key: str, epoch: int) -> None:
        self.ledger.place(key, epoch, sandbox_id=f"box-of-{key}", node_id="node")

    @rule(pair=PAIRS, state=STATES)
    def report(self, pair: tuple[str, str], state: SandboxState) -> None:
        held = self.held.get("::".join(pair))
        if held is None or held.sandbox is None:
            return
        changes = (
            held.sandbox not in (state, SandboxState.DELETED) and held.status is not LeaseStatus.DESTROYED
        )
        assert self.ledger.sandbox_state(f"box-of-{'::'.join(pair)}", state, epoch=held.epoch) is changes
        if changes:
            held.sandbox = state

    @rule(pair=PAIRS, behind=st.integers(0, 1), turn=st.none() | st.integers(0, 9))
    def renew(self, pair: tuple[str, str], behind: int, turn: int | None) -> None:
        key = "::".join(pair)
        if not self._may(key, behind, lambda epoch: self.ledger.renew(key, epoch)):
            return
        held = self.held[key]
        assert self.ledger.renew(key, held.epoch, last_turn=turn) is (held.status in LIVE)
        if held.status in LIVE:
            held.expires_at = min(self.now + TTL_MS, held.max_expires_at)

    @rule(pair=PAIRS, behind=st.integers(0, 1))
    def sleep(self, pair: tuple[str, str], behind: int) -> None:
        key = "::".join(pair)
        if not self._may(key, behind, lambda epoch: self.ledger.sleep(key, epoch)):
            return
        held = self.held[key]
        assert self.ledger.sleep(key, held.epoch) is (held.status is LeaseStatus.ACTIVE)
        if held.status is LeaseStatus.ACTIVE:
            held.status = LeaseStatus.SLEEPING

    @rule(pair=PAIRS, behind=st.integers(0, 1))
    def wake(self, pair: tuple[str, str], behind: int) -> None:
        key = "::".join(pair)
        if not self._may(key, behind, lambda epoch: self.ledger.wake(key, epoch)):
            return
        held = self.held[key]
        assert self.ledger.wake(key, held.epoch) is (held.status is LeaseStatus.SLEEPING)
        if held.status is LeaseStatus.SLEEPING:
            held.status = LeaseStatus.ACTIVE

    @rule(pair=PAIRS, behind=st.integers(0, 1), cause=st.sampled_from(sorted(ENDINGS)))
    def expire(self, pair: tuple[str, str], behind: int, cause: Cause) -> None:
        key = "::".join(pair)
        if not self._may(key, behind, lambda epoch: self.ledger.expire(key, cause, epoch=epoch)):
            return
        held = self.held[key]
        assert self.ledger.expire(key, cause) is (held.status in LIVE)
        if held.status in LIVE:
            held.status = LeaseStatus.EXPIRED

    @rule(
        environment=st.sampled_from(ENVIRONMENTS),
        condition=st.sampled_from(["game.finished", "agent.death", "pr.merged"]),
        author=st.sampled_from([GM, *AGENTS]),
        subject=st.none() | st.sampled_from(AGENTS),
    )
    def expire_by_condition(self, environment: str, condition: str, author: str, subject: str | None) -> None:
        ended = {
            key: held
            for key, held in self.held.items()
            if author == GM
            and condition != "pr.merged"
            and held.status in LIVE
            and key in {f"{agent}::{environment}" for agent in AGENTS if subject in (None, agent)}
        }
        told = self.ledger.expire_by_condition(
            environment, condition, author_did=author, subject_did=subject, event="at://x"
        )
        assert told == sorted(ended)
        for held in ended.values():
            held.status = LeaseStatus.EXPIRED
        self.endings += 1

    @rule()
    def sweep(self) -> None:
        late = {key for key, held in self.held.items() if held.status in LIVE and held.expires_at <= self.now}
        assert {lease.id for lease in self.ledger.expired()} == late
        for key in late:
            assert self.ledger.expire(key, Cause.TTL)
            self.held[key].status = LeaseStatus.EXPIRED

    @rule(pair=PAIRS)
    def tier_is_empty(self, pair: tuple[str, str]) -> None:
        key = "::".join(pair)
        held = self.held.get(key)
        if held is None:
            return
        if held.status in LIVE:
            with pytest.raises(InvalidTransition):
                self.ledger.destroyed(key)
            return
        assert self.ledger.destroyed(key) is (held.status is LeaseStatus.EXPIRED)
        self.destroyed += held.status is LeaseStatus.EXPIRED
        held.status = LeaseStatus.DESTROYED
        held.sandbox = None if held.sandbox is None else SandboxState.DELETED

    @rule()
    def publish(self) -> None:
        for event in self.ledger.unpublished(3):
            assert self.ledger.mark_published(event.id, f"at://us/lease/{event.id}")

    @precondition(lambda self: self.held)
    @rule(statements=st.integers(0, 12))
    def crash(self, statements: int) -> None:
        """Everything is ended by a process that is killed on the way; then the ledger is opened again."""
        self.ledger.close()
        child = os.fork()
        if child == 0:
            try:
                self._end_all_until_killed(statements)
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        self._open()
        for key, held in self.held.items():  # whole transactions may have happened, in order
            held.status = self.ledger.get(key).status

    def _end_all_until_killed(self, statements: int) -> None:
        self._open()
        left = [statements]

        def trace(_: str) -> None:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        self.ledger._store._connection.set_trace_callback(trace)
        for key in self.held:
            self.ledger.expire(key, Cause.LOST)

    def _may(self, key: str, behind: int, call: object) -> bool:
        """Try a call with an epoch that is too old, or for a pair that has no lease; both must be refused."""
        assert callable(call)
        held = self.held.get(key)
        if held is None:
            with pytest.raises(UnknownLease):
                call(1)
            return False
        if behind:
            with pytest.raises(StaleEpoch):
                call(held.epoch - behind)
            return False
        return True

    @invariant()
    def the_ledger_agrees(self) -> None:
        if not hasattr(self, "ledger"):
            return
        self.ledger.check_invariants()
        leases = {lease.id: lease for lease in self.ledger.list()}
        assert set(leases) == set(self.held)
        for key, lease in leases.items():
            held = self.held[key]
            assert (lease.status, lease.epoch) == (held.status, held.epoch)
            assert (lease.expires_at, lease.max_expires_at) == (held.expires_at, held.max_expires_at)

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "ledger"):
            return
        standing = sum(held.status is not LeaseStatus.DESTROYED for held in self.held.values())
        assert self.acquired == standing + self.destroyed
        assert sum(self.ledger.counters().values()) == self.endings
        pending = {key for key, held in self.held.items() if held.status is LeaseStatus.EXPIRED}
        assert {lease.id for lease in self.ledger.pending_destroy()} == pending

    @invariant()
    def awake_time_is_exact(self) -> None:
        if not hasattr(self, "ledger"):
            return
        months = ("2025-11", "2025-12")
        for agent in AGENTS:
            assert sum(self.ledger.awake_ms(agent, month) for month in months) == self.awake[agent]
        costs = [cost for month in months for cost in self.ledger.costs(month)]
        assert sum(cost.awake_ms for cost in costs) == sum(self.awake.values())


LedgerMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLedgerMachine = LedgerMachine.TestCase
