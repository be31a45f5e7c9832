"""Anything in any order, with kills in between: the law of the pool."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sandboxes import PoolFull, SandboxState
from sandboxes.errors import SandboxBusy, SandboxNotFound
from sandboxes.pool.entry import Entry
from sandboxes.pool.states import Cause, following

NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f"])
CAPACITY = 3


class PoolMachine(RuleBasedStateMachine):
    """Six names, room for three. `has` is what each one's files are, `kept` what they were when it slept."""

    make_node: Callable[..., Any]

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.node = type(self).make_node(
            capacity=CAPACITY, evict_idle_s=0.0, nap_after_s=10, sleep_after_s=300, warm_slots=1
        )
        self.has: dict[str, bytes | None] = {}
        self.kept: dict[str, bytes | None] = {}
        self.using: dict[str, AsyncExitStack] = {}
        self.lost: set[str] = set()  # died since it was last asked for
        self.written = 0
        self.node.book.observe(self._observe)

    def _observe(self, before: Entry, cause: Cause, after: Entry, _: float) -> None:
        assert following(before.kind, before.state, cause) is after.state
        if cause is Cause.KEPT:
            assert before.name not in self.using, "a running one was put to sleep"
            self.kept[before.name] = self.has[before.name]

    def run(self, deed: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(deed, 20))

    async def _ask(self, name: str) -> bool:
        try:
            await self.node.up(name)
        except PoolFull:
            return False
        expected = self.kept.get(name) if name in self.lost or name not in self.has else self.has[name]
        self.lost.discard(name)
        assert self.node.read(name) == expected, name
        self.has[name] = expected
        return True

    @rule(name=NAMES)
    def ask(self, name: str) -> None:
        """It is there with what it had; refused only if three others run."""
        if not self.run(self._ask(name)):
            assert len(self.using) == CAPACITY

    @rule(names=st.lists(NAMES, min_size=2, max_size=6, unique=True))
    def ask_for_many_at_once(self, names: list[str]) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(*(self._ask(name) for name in names))

        self.run(all_of_them())

    @rule(name=NAMES)
    def write(self, name: str) -> None:
        if name in self.node.tier.alive:
            self.written += 1
            self.has[name] = b"%d" % self.written
            self.node.write(name, self.has[name])

    @rule(name=NAMES)
    def begin_a_request(self, name: str) -> None:
        if name in self.node.tier.alive and name not in self.using:
            self.using[name] = AsyncExitStack()
            self.run(self.using[name].enter_async_context(self.node.using(name)))

    @precondition(lambda self: self.using)
    @rule()
    def end_a_request(self) -> None:
        name = min(self.using)
        self.run(self.using.pop(name).aclose())

    @rule(seconds=st.sampled_from([1, 11, 400]))
    def time_passes(self, seconds: int) -> None:
        self.node.time.pass_(seconds)
        self.run(self.node.pool.tick())

    @rule(name=NAMES)
    def stop(self, name: str) -> None:
        state = self.node.state(name)
        try:
            self.run(self.node.pool.stop(name))
        except SandboxBusy:
            assert name in self.using
        except SandboxNotFound:
            assert state in (SandboxState.DELETED, SandboxState.FAILED) or name in self.lost

    @rule(name=NAMES)
    def pause(self, name: str) -> None:
        try:
            self.run(self.node.pool.pause(name))
        except SandboxBusy:
            assert name in self.using
        except SandboxNotFound:
            assert name not in self.node.tier.alive

    @rule(name=NAMES)
    def it_dies(self, name: str) -> None:
        if name in self.node.tier.alive and name not in self.using:
            self.node.die(name)
            self.lost.add(name)

    @rule(name=NAMES)
    def destroy(self, name: str) -> None:
        if name not in self.using:
            self.run(self.node.pool.destroy(name))
            for told in (self.has, self.kept):
                told.pop(name, None)
            self.lost.discard(name)

    @rule()
    def the_host_is_killed(self) -> None:
        self.node.begin()
        self.node.book.observe(self._observe)
        self.run(self.node.pool.start())

    @invariant()
    def never_more_than_there_is_room_for(self) -> None:
        if hasattr(self, "node"):
            assert self.node.tier.most <= CAPACITY

    @invariant()
    def who_runs_lives(self) -> None:
        if hasattr(self, "node"):
            assert set(self.using) <= self.node.tier.alive

    def teardown(self) -> None:
        """Whoever slept comes back with every byte, one after the other."""
        if not hasattr(self, "node"):
            return
        for stack in self.using.values():
            self.run(stack.aclose())
        self.using.clear()
        for name in sorted(self.kept):
            assert self.run(self._ask(name))
        self.loop.close()


def test_the_law_of_the_pool(make_node: Callable[..., Any]) -> None:
    class Machine(PoolMachine):
        pass

    Machine.make_node = staticmethod(make_node)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
