"""Times, places and speeds as people write them on the command line."""

from datetime import datetime

from actors.errors import WrongUse
from actors.replay import Start
from firehose import SyntaxInvalid, parse_datetime


def parse_moment_us(option: str, text: str) -> int:
    """An RFC 3339 time in microseconds since 1970. Raises: WrongUse: it is none."""
    try:
        return round(datetime.fromisoformat(parse_datetime(text)).timestamp() * 1_000_000)
    except (SyntaxInvalid, ValueError):
        raise WrongUse(f"{option} {text!r} is no time: it looks like 2026-11-21T12:00:00Z") from None


def parse_start(from_seq: int | None, from_time: str | None) -> Start:
    """Where in a trace to begin. Raises: WrongUse: both are given, or the time is none."""
    if from_seq is not None and from_time is not None:
        raise WrongUse("--from-seq and --from-time are two beginnings: give one of them")
    received_us = None if from_time is None else parse_moment_us("--from-time", from_time)
    return Start(seq=from_seq, received_us=received_us)


def parse_speed(text: str) -> float | None:
    """How many times as fast as it was recorded; None: as fast as possible. Raises: WrongUse."""
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.001 <= speed <= 1_000_000:
        raise WrongUse(f"--speed {text!r} is no speed: it is max, 1 or 10 (times as fast as it was recorded)")
    return speed
