"""What a turn script may have printed, and what of it can stand in a record."""

from typing import Any

import pytest

from actors.records import MAX_ACTION_BYTES, unpostable


@pytest.mark.parametrize(
    "action",
    [
        {},
        {"type": "wait", "messages": [{"to": "@party", "text": "é\x1b[2J"}]},
        {"type": "attack", "target": 3.0},  # JSON has one kind of number: this is 3
        {"type": "x" * (MAX_ACTION_BYTES - 100)},
    ],
    ids=lambda action: str(action)[:30],
)
def test_what_can_be_posted(action: dict[str, Any]) -> None:
    assert unpostable(action) is None


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ({"type": "x" * MAX_ACTION_BYTES}, "at most 65536"),
        ({"target": 1.5}, "float"),
        ({"target": float("nan")}, "float"),
        ({"target": 10**40}, "64 bits"),
        ({"text": "\ud800"}, "surrogate"),
        ({"where": {"$link": "x"}}, "link"),
        ({"where": {"$bytes": "?"}}, "bytes"),
        ({"where": {"$type": 7}}, "type"),
        ({"deep": [[]]}, ""),
    ],
    ids=lambda value: str(value)[:20].encode("ascii", "replace").decode(),
)
def test_what_cannot_be_posted(action: dict[str, Any], why: str) -> None:
    if "deep" in action:
        for _ in range(500):
            action = {"deep": action}
    said = unpostable(action)
    assert said is not None
    assert why in said
    assert said.isprintable()
