"""What a turn's output is worth."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.results import MAX_ACTION_DEPTH, MAX_SKIP_CHARS, ExecResult, clip, judge_turn

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=20,
)


def result(stdout: bytes, exit_code: int = 0, stderr: bytes = b"") -> ExecResult:
    return ExecResult(exit_code=exit_code, stdout=stdout, stderr=stderr, duration_seconds=0.1)


@given(action=st.dictionaries(st.text(st.characters(codec="utf-8")), json_values))
def test_every_object_is_an_action(action: dict[str, Any]) -> None:
    turn = judge_turn(result(json.dumps(action).encode() + b"\n"), timeout_seconds=1, timed_out=False)
    assert turn.action == action
    assert turn.skip is None


@given(stdout=st.binary(max_size=200), exit_code=st.integers(0, 255), timed_out=st.booleans())
def test_any_output_is_an_action_or_a_reason(stdout: bytes, exit_code: int, timed_out: bool) -> None:
    turn = judge_turn(result(stdout, exit_code, stdout), timeout_seconds=1, timed_out=timed_out)
    assert (turn.action is None) != (turn.skip is None)
    assert turn.skip is None or 0 < len(turn.skip) <= MAX_SKIP_CHARS
    assert not (timed_out or exit_code) or turn.action is None


@pytest.mark.parametrize(
    ("depth", "accepted"), [(MAX_ACTION_DEPTH, True), (MAX_ACTION_DEPTH + 1, False), (500_000, False)]
)
def test_depth_is_limited_without_recursion(depth: int, accepted: bool) -> None:
    stdout = b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"
    if depth == 1:
        stdout = b"{}"
    assert (judge_turn(result(stdout), timeout_seconds=1, timed_out=False).action is not None) is accepted


def test_brackets_in_strings_do_not_nest() -> None:
    stdout = json.dumps({"text": '[{"\\' * 200}).encode()
    assert judge_turn(result(stdout), timeout_seconds=1, timed_out=False).action is not None


def test_a_reason_is_printable_and_short() -> None:
    assert clip("a\x1b[31m\nb\ud800") == "a [31m b "
    assert clip("x" * 501) == "x" * 499 + "…"


def test_a_crash_tells_the_last_line_of_stderr() -> None:
    turn = judge_turn(
        result(b"{}", 1, b"Traceback\n  x\nValueError: no\n"), timeout_seconds=1, timed_out=False
    )
    assert turn.skip == "the turn script exited with 1: ValueError: no"
