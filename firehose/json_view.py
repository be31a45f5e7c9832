"""Frames as JSON, for tools: what an event says, the records it carries, and the verdict on it."""

import json
from collections import OrderedDict
from typing import Any, Final

from firehose.car import split_car
from firehose.drisl import decode
from firehose.errors import FirehoseError
from firehose.frames import (
    AccountEvent,
    CommitEvent,
    ErrorFrame,
    Frame,
    IdentityEvent,
    InfoEvent,
    SyncEvent,
    UnknownFrame,
    parse_frame,
)
from firehose.json_form import to_json
from firehose.window import Entry

UNJUDGED: Final = "unverified"  # the verdict of a frame that nobody has judged
MAX_RENDERED: Final = 256  # kept for the next client; live clients want the same ones at the same time


class JsonView:
    """Renders each frame once, however many clients want it as JSON."""

    def __init__(self) -> None:
        self._rendered: OrderedDict[int, str] = OrderedDict()

    def of(self, entry: Entry) -> str:
        """The JSON text of a frame in the window."""
        text = self._rendered.get(entry.seq)
        if text is None:
            text = frame_json(entry.frame, verdict=entry.verdict, reason=entry.reason)
            self._rendered[entry.seq] = text
            if len(self._rendered) > MAX_RENDERED:
                self._rendered.popitem(last=False)
        return text


def frame_json(frame: bytes, *, verdict: str | None = None, reason: str = "") -> str:
    """A frame as one line of JSON; an unreadable one says so, and nothing else."""
    try:
        event = parse_frame(frame)
    except FirehoseError as error:
        return _text({"type": "unreadable", "verdict": verdict or UNJUDGED, "reason": str(error)})
    told = describe(event)
    if isinstance(event, InfoEvent | ErrorFrame):
        return _text(told)
    told |= {"verdict": verdict or UNJUDGED, "reason": reason}
    return _text(told)


def describe(event: Frame) -> dict[str, Any]:
    """What an event says, as plain values."""
    match event:
        case CommitEvent():
            return {
                **_head("commit", event),
                "rev": event.rev,
                "since": event.since,
                "commit": str(event.commit),
                "ops": _ops(event),
            }
        case SyncEvent():
            return {**_head("sync", event), "rev": event.rev}
        case IdentityEvent():
            return {**_head("identity", event), "handle": event.handle}
        case AccountEvent():
            return {**_head("account", event), "active": event.active, "status": event.status}
        case InfoEvent():
            return {"type": "info", "name": event.name, "message": event.message}
        case ErrorFrame():
            return {"type": "error", "error": event.name, "message": event.message}
        case UnknownFrame():
            return {"type": event.type or "unknown"}


def _head(kind: str, event: CommitEvent | SyncEvent | IdentityEvent | AccountEvent) -> dict[str, Any]:
    return {"seq": event.seq, "type": kind, "did": event.did, "time": event.time}


def _ops(event: CommitEvent) -> list[dict[str, Any]]:
    """Each op with its record, where the archive has it in a form that JSON can show."""
    try:
        blocks = split_car(event.blocks)[1]
    except FirehoseError:
        blocks = {}
    ops = []
    for op in event.ops:
        told: dict[str, Any] = {"action": str(op.action), "path": op.path}
        if op.cid is not None:
            told["cid"] = str(op.cid)
            block = blocks.get(op.cid.bytes)
            if block is not None:
                try:
                    told["record"] = to_json(decode(block))
                except (FirehoseError, RecursionError):
                    told["record"] = None
        ops.append(told)
    return ops


def _text(told: dict[str, Any]) -> str:
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))
