"""How long things took, from what the tap recorded: no clock of an agent is involved."""

from pathlib import Path
from statistics import quantiles

from actors import records
from firehose import CommitEvent, FrameInvalid, parse_frame
from firehose.trace import read_trace


def percentiles(samples_ms: list[float]) -> dict[str, float | None]:
    """`{p50, p99}` in ms, one decimal; None where there is nothing to measure."""
    if len(samples_ms) < 2:
        only = round(samples_ms[0], 1) if samples_ms else None
        return {"p50": only, "p99": only}
    cuts = quantiles(samples_ms, n=100, method="inclusive")
    return {"p50": round(cuts[49], 1), "p99": round(cuts[98], 1)}


def event_to_action_ms(window: Path, environment_id: str, after_seq: int) -> list[float]:
    """From each turn's arrival at the tap to its action's arrival there, in ms.

    The action has been accepted by the PDS and come back over the firehose by then, so this is an upper
    bound of "event at the tap → action accepted". Empty where this node does not have the tap's window.
    """
    asked: dict[str, int] = {}
    took: list[float] = []
    if not window.exists():
        return took
    for recorded in read_trace(window, tolerate_torn_tail=True, after_seq=after_seq):
        try:
            event = parse_frame(recorded.frame)
        except FrameInvalid:
            continue
        if not isinstance(event, CommitEvent) or event.seq <= after_seq:
            continue
        for op in event.ops:
            collection, _, key = op.path.partition("/")
            if not key.startswith(f"{environment_id}."):
                continue
            if collection == records.GAME_TURN:
                asked[key] = recorded.received_us
            elif collection == records.GAME_ACTION and key in asked:
                took.append((recorded.received_us - asked.pop(key)) / 1000)
    return took
