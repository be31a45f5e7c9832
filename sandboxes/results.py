"""What a command and a turn come back with."""

import json
import re
from dataclasses import dataclass
from typing import Any, Final, NoReturn

MAX_SKIP_CHARS: Final = 500
MAX_ACTION_DEPTH: Final = 64  # of nested lists and objects; the parser's own limit is the interpreter's stack
MAX_ACTION_BYTES: Final = 1 << 20  # of a turn's stdout; an action is a record of a few hundred bytes
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_BRACKETS: Final = re.compile(r"[\[\]{}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What a command did; a non-zero exit is a result, not an error."""

    exit_code: int  # 128 + n when signal n ended it
    stdout: bytes
    stderr: bytes
    duration_seconds: float
    truncated: bool = False  # output beyond the cap was dropped

    @property
    def stdout_text(self) -> str:
        """Stdout as text; undecodable bytes are replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """Stderr as text; undecodable bytes are replaced."""
        return self.stderr.decode("utf-8", "replace")

    @property
    def text(self) -> str:
        """The same as `stdout_text`."""
        return self.stdout_text


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What a turn came to: an action, or the reason why there is none."""

    action: dict[str, Any] | None
    skip: str | None  # at most MAX_SKIP_CHARS; exactly one of action and skip is None
    exit_code: int
    stdout: bytes
    stderr: bytes
    duration_seconds: float


class _NoAction(Exception):
    pass


def judge_turn(result: ExecResult, *, timeout_seconds: float, timed_out: bool) -> TurnResult:
    """Decide what a finished turn script has said: exactly one JSON object on stdout, and exit code 0, is an
    action.
    """
    action, skip = None, None
    try:
        if timed_out:
            raise _NoAction(f"the turn script did not end within {timeout_seconds:g} s")
        if result.exit_code != 0:
            last = result.stderr_text.strip().rpartition("\n")[2] or "nothing on stderr"
            raise _NoAction(f"the turn script exited with {result.exit_code}: {last}")
        action = parse_action(result.stdout, truncated=result.truncated)
    except _NoAction as reason:
        skip = clip(str(reason))
    return TurnResult(
        action=action,
        skip=skip,
        exit_code=result.exit_code,
        stdout=result.stdout,
        stderr=result.stderr,
        duration_seconds=result.duration_seconds,
    )


def parse_action(stdout: bytes, *, truncated: bool = False) -> dict[str, Any]:
    """Return the one JSON object on a turn's stdout."""
    if truncated or len(stdout) > MAX_ACTION_BYTES:
        raise _NoAction(f"the turn script wrote more than {MAX_ACTION_BYTES} bytes")
    if not stdout.strip():
        raise _NoAction("the turn script wrote nothing on stdout")
    try:
        text = stdout.decode("utf-8")
        if _depth(text) > MAX_ACTION_DEPTH:
            raise _NoAction(f"stdout is not one JSON object: nested deeper than {MAX_ACTION_DEPTH}")
        value = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()  # refuses lone surrogates, which no record can hold
    except ValueError as error:
        raise _NoAction(f"stdout is not one JSON object: {error}") from None
    if not isinstance(value, dict):
        raise _NoAction(f"stdout is a JSON {type(value).__name__}, not an object")
    return value


def _depth(text: str) -> int:
    """Return how deep brackets nest, without recursion."""
    depth = deepest = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def clip(reason: str) -> str:
    """Return a reason that fits into a record."""
    clean = "".join(char if char.isprintable() else " " for char in reason)
    return clean if len(clean) <= MAX_SKIP_CHARS else clean[: MAX_SKIP_CHARS - 1] + "…"


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
