"""What may follow what: every pair of a state and a cause."""

import itertools
from pathlib import Path

import pytest

from sandboxes import IllegalTransition, SandboxState
from sandboxes.pool.book import Book, read_states
from sandboxes.pool.states import LIVE, SLOT_TRANSITIONS, TRANSITIONS, Cause, Kind, following
from sandboxes.spec import SandboxState as S

WAYS = {  # to come to a state from nothing
    S.DELETED: (),
    S.WARMING: (Cause.ORDERED,),
    S.WARM: (Cause.ORDERED, Cause.READY),
    S.RUNNING: (Cause.ORDERED, Cause.READY, Cause.USED),
    S.WAITING: (Cause.ORDERED, Cause.READY, Cause.NAP),
    S.SUSPENDING: (Cause.ORDERED, Cause.READY, Cause.SLEPT),
    S.COLD: (Cause.ORDERED, Cause.READY, Cause.SLEPT, Cause.KEPT),
    S.FAILED: (Cause.ORDERED, Cause.BROKE),
}


@pytest.mark.parametrize("state", list(S))
def test_every_cause_in_every_state(tmp_path: Path, state: SandboxState) -> None:
    """A listed change is made, stored and told; any other raises, tells the story, and changes nothing."""
    for number, cause in enumerate(Cause):
        book = Book(tmp_path / f"{number}.db", clock=lambda: 5)
        for way in WAYS[state]:
            book.move("x", way, epoch=1)
        before, story = book.get("x"), book.story("x", 100)
        wanted = following(Kind.SANDBOX, state, cause)
        if wanted is None:
            with pytest.raises(IllegalTransition, match=state) as caught:
                book.move("x", cause)
            assert len(caught.value.story) == len(WAYS[state])
            assert (book.get("x"), book.story("x", 100)) == (before, story)
        else:
            after = book.move("x", cause)
            assert after.state is wanted
            assert [row["cause"] for row in book.story("x", 100)] == [*WAYS[state], cause]
            assert [entry.state for entry in read_states(book.path)] == [
                wanted for _ in [1] if wanted is not S.DELETED
            ]
        book.close()


def test_running_leads_to_no_rest() -> None:
    """Whoever runs becomes idle, dies or is destroyed; a nap that the kernel let through was not running."""
    assert {cause for state, cause in TRANSITIONS if state is S.RUNNING} == {
        Cause.IDLED, Cause.NAP, Cause.PAUSED, Cause.DIED, Cause.DESTROYED,
    }  # fmt: skip
    into = {state for (state, _), to in TRANSITIONS.items() if to is S.SUSPENDING}
    assert into == {S.WARM, S.WAITING}


def test_every_state_has_a_way_out_and_a_way_in() -> None:
    for table in (TRANSITIONS, SLOT_TRANSITIONS):
        used = {state for state, _ in table} | set(table.values())
        for state in used - {S.DELETED}:
            assert any(to is state for (frm, _), to in table.items() if frm is not state), state
            assert any(frm is state and to is not state for (frm, _), to in table.items()), state
    reached, more = {S.DELETED}, True
    while more:
        found = {to for (state, _), to in TRANSITIONS.items() if state in reached}
        more, reached = not found <= reached, reached | found
    assert reached == set(S)


def test_a_slot_is_never_put_to_sleep_and_a_sandbox_never_discarded() -> None:
    for state in S:
        assert following(Kind.SANDBOX, state, Cause.DISCARDED) is None
        assert following(Kind.SLOT, state, Cause.EVICTED) is None


def test_live_states_take_room() -> None:
    assert set(S) - LIVE == {S.COLD, S.FAILED, S.DELETED}
    assert len(list(itertools.product(S, Cause))) > len(TRANSITIONS)
