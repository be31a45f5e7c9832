"""The window and its subscriptions: who gets what, in which order, whatever happens in between."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firehose.wanted import Audience, Wanted
from firehose.window import Entry, FrameWindow, Pace, Subscription

A, B = "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa", "did:plc:bbbbbbbbbbbbbbbbbbbbbbbb"
NOTE, TURN, POST = "dev.example.note", "dev.example.game.turn", "app.bsky.feed.post"


def entry(seq: int, did: str = A, *collections: str, size: int = 10) -> Entry:
    return Entry(seq, b"x" * size, did, collections)


@pytest.mark.parametrize(
    ("dids", "collections", "seen", "is_wanted"),
    [
        pytest.param([], [], entry(1, A, NOTE), True, id="everything"),
        pytest.param([A], [], entry(1, A, NOTE), True, id="its-did"),
        pytest.param([B], [], entry(1, A, NOTE), False, id="another-did"),
        pytest.param([], [NOTE], entry(1, A, NOTE), True, id="its-collection"),
        pytest.param([], [TURN], entry(1, A, NOTE), False, id="another-collection"),
        pytest.param([], [TURN], entry(1, A, NOTE, TURN), True, id="one-op-of-several"),
        pytest.param([], ["dev.example.*"], entry(1, A, TURN), True, id="prefix"),
        pytest.param([], ["dev.example.*"], entry(1, A, POST), False, id="another-prefix"),
        pytest.param([], ["dev.example.game.*"], entry(1, A, NOTE), False, id="longer-prefix"),
        pytest.param([], ["dev.exam.*"], entry(1, A, NOTE), False, id="a-prefix-ends-at-a-dot"),
        pytest.param([], ["app.bsky.*", NOTE], entry(1, A, NOTE), True, id="prefix-or-exact"),
        pytest.param([A], [NOTE], entry(1, B, NOTE), False, id="both-must-hold"),
        pytest.param([], [NOTE], entry(1, A), True, id="identity-events-have-no-collection"),
        pytest.param([B], [NOTE], entry(1, A), False, id="identity-of-another"),
    ],
)
def test_wanted(dids: list[str], collections: list[str], seen: Entry, is_wanted: bool) -> None:
    assert Wanted.parse(dids, collections).matches(seen) is is_wanted


@pytest.mark.parametrize(
    "bad",
    [
        {"collections": ["*"]},
        {"collections": ["app.*.feed"]},
        {"collections": ["app.bsky*"]},
        {"collections": [f"a.b.c{n}" for n in range(101)]},
        {"dids": [f"did:plc:{n}" for n in range(10_001)]},
    ],
)
def test_wanted_has_limits(bad: dict[str, list[str]]) -> None:
    with pytest.raises(ValueError, match="wanted"):
        Wanted.parse(bad.get("dids", []), bad.get("collections", []))


NAMES = [NOTE, TURN, POST, "app.bsky.feed.like", "app.bsky.graph.follow", "dev.example.game.action"]
PATTERNS = [*NAMES, "app.bsky.*", "app.bsky.feed.*", "dev.*", "dev.example.*", "dev.example.game.*"]
FILTERS = st.builds(
    Wanted.parse,
    st.lists(st.sampled_from([A, B]), max_size=2),
    st.lists(st.sampled_from(PATTERNS), max_size=3),
)
ENTRIES = st.builds(
    lambda seq, did, names: Entry(seq, b"x", did, tuple(names)),
    st.integers(1, 99),
    st.sampled_from([A, B, "did:plc:c", None]),
    st.lists(st.sampled_from(NAMES), max_size=3, unique=True),
)


@given(wanted=st.lists(FILTERS, max_size=8), changes=st.lists(FILTERS, max_size=3), seen=ENTRIES)
def test_an_audience_is_who_wants_it(wanted: list[Wanted], changes: list[Wanted], seen: Entry) -> None:
    audience: Audience[int] = Audience()
    asked = dict(enumerate(wanted))
    for member, filter_ in asked.items():
        audience.put(member, filter_)
    for member, filter_ in zip(list(asked), changes, strict=False):
        asked[member] = filter_
        audience.put(member, filter_)
    found = audience.of(seen)
    assert sorted(found) == [member for member, filter_ in asked.items() if filter_.matches(seen)]
    for member in asked:
        audience.discard(member)
    audience.discard(99)  # nobody
    assert (len(audience), audience.of(seen), audience.members()) == (0, [], [])


@pytest.mark.parametrize(
    ("message", "why"),
    [
        pytest.param("hello?", "options_update", id="no-json"),
        pytest.param(b"{}", "options_update", id="binary"),
        pytest.param("[" * 100_000, "options_update", id="deep"),
        pytest.param('{"type":"options_update"}', "payload", id="no-payload"),
        pytest.param('{"type":"options_update","payload":{"wantedDids":"x"}}', "wantedDids", id="no-list"),
        pytest.param('{"type":"options_update","payload":{"wantedDids":[1]}}', "wantedDids", id="no-strings"),
        pytest.param(
            '{"type":"options_update","payload":{"wantedCollections":["*"]}}', "may only", id="star"
        ),
    ],
)
def test_an_update_that_is_none_is_refused(message: str | bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Wanted.parse_update(message)


def test_an_update_says_the_whole_filter() -> None:
    update = '{"type":"options_update","payload":{"wantedCollections":["a.b.*"],"maxMessageSizeBytes":9}}'
    assert Wanted.parse_update(update) == Wanted.parse([], ["a.b.*"])
    assert Wanted.parse_update('{"type":"options_update","payload":{"wantedDids":[]}}') == Wanted()


def test_the_oldest_go_first() -> None:
    window = FrameWindow(max_frames=3, missing_seq=4)
    assert (window.last_seq, window.missing_seq) == (None, 4)
    for seq in (5, 7, 9, 20):
        window.append(entry(seq))
    assert [kept.seq for kept in window.after(0, 10)] == [7, 9, 20]
    assert [kept.seq for kept in window.after(7, 1)] == [9]
    assert (window.last_seq, window.missing_seq, len(window), window.size_bytes) == (20, 5, 3, 30)
    with pytest.raises(ValueError, match="seq 20"):
        window.append(entry(20))


def test_bytes_are_bounded_but_the_newest_frame_always_stays() -> None:
    window = FrameWindow(max_bytes=100)
    for seq in range(1, 3000):  # past the slack after which lists are cut
        window.append(entry(seq, size=40))
    assert [kept.seq for kept in window.after(0, 10)] == [2998, 2999]
    window.append(entry(3000, size=500))
    assert [kept.seq for kept in window.after(0, 10)] == [3000]
    assert window.missing_seq == 2999


Step = tuple[str, int]
STEPS = st.lists(st.tuples(st.sampled_from(["publish", "take"]), st.integers(0, 3)), max_size=60)


@given(steps=STEPS, start=st.integers(0, 5), limit=st.integers(1, 4))
def test_every_wanted_frame_once_and_in_order(steps: list[Step], start: int, limit: int) -> None:
    """Whatever the interleaving of publishing, taking and waiting."""

    async def run() -> None:
        window = FrameWindow()
        for seq in range(1, 6):
            window.append(entry(seq, A if seq % 2 else B))
        wanted = Wanted.parse([A], [])
        subscription = Subscription(window, wanted, start)
        audience: Audience[Subscription] = Audience()
        audience.put(subscription, wanted)
        got: list[int] = []
        waiting: asyncio.Task[None] | None = None
        for action, number in steps:
            if action == "publish":
                fresh = entry((window.last_seq or 0) + 1 + number, A if number % 2 else B)
                window.append(fresh)
                for member in audience.of(fresh):
                    member.offer(fresh)
            else:
                taken = subscription.take(limit)
                for one in taken:
                    got.append(one.seq)
                    subscription.sent(one)
                if not taken and waiting is None:
                    waiting = asyncio.ensure_future(subscription.wait())
            await asyncio.sleep(0)
            if waiting is not None and waiting.done():
                waiting = None
        while subscription.position < (window.last_seq or 0):
            for one in subscription.take(limit):
                got.append(one.seq)
                subscription.sent(one)
        if waiting is not None:
            waiting.cancel()
        assert got == [one.seq for one in window.after(start, 1000) if one.did == A]

    asyncio.run(run())


async def a_live(window: FrameWindow, **settings: Any) -> Subscription:
    """A subscription that has seen everything and waits."""
    subscription = Subscription(window, Wanted.parse([A], []), 0, **settings)
    task = asyncio.ensure_future(subscription.wait())
    await asyncio.sleep(0)
    task.cancel()
    return subscription


async def test_a_live_client_that_falls_behind_is_too_slow() -> None:
    window = FrameWindow()
    subscription = await a_live(window, max_lag_frames=3)
    assert subscription.pace is Pace.LIVE
    for seq in range(1, 4):
        window.append(entry(seq))
        subscription.offer(entry(seq))
    assert not subscription.is_lost()
    window.append(entry(4))
    subscription.offer(entry(4))
    assert subscription.is_lost()
    assert subscription.lost.is_set()


async def test_backfilling_may_take_its_time() -> None:
    window = FrameWindow()
    subscription = Subscription(window, Wanted.parse([A], []), 0, max_lag_frames=3)
    for seq in range(1, 50):
        window.append(entry(seq))
        subscription.offer(entry(seq))
    assert not subscription.is_lost()


async def test_who_waits_is_not_behind_whatever_it_did_not_want() -> None:
    window = FrameWindow(max_frames=4)
    subscription = Subscription(window, Wanted.parse([A], []), 0)
    waiting = asyncio.ensure_future(subscription.wait())
    await asyncio.sleep(0)
    for seq in range(1, 50):  # most of them are no longer kept
        window.append(entry(seq, B))
    window.append(entry(50, A))
    subscription.offer(entry(50, A))
    await waiting
    assert not subscription.is_lost()
    assert [one.seq for one in subscription.take(1)] == [50]  # and it looks at nothing before


async def test_a_changed_filter_holds_for_what_was_not_sent() -> None:
    window = FrameWindow()
    subscription = Subscription(window, Wanted.parse([A], []), 0)
    window.append(entry(1, A))
    window.append(entry(2, B))
    subscription.change(Wanted.parse([B], []))
    assert [one.seq for one in subscription.take(9)] == [2]
    subscription.sent(entry(2, B))
    waiting = asyncio.ensure_future(subscription.wait())
    await asyncio.sleep(0)
    window.append(entry(3, A))
    subscription.change(Wanted())  # what it waited through is over
    await waiting
    window.append(entry(4, A))
    assert [one.seq for one in subscription.take(9)] == [4]


async def test_what_is_no_longer_kept_cannot_be_caught_up() -> None:
    window = FrameWindow(max_frames=5)
    subscription = Subscription(window, Wanted(), 0)
    for seq in range(1, 7):
        window.append(entry(seq))
    assert subscription.is_lost()
