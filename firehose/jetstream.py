"""Jetstream, the firehose as JSON: small and easy to read, and nothing in it is signed.

Source: the README and the subscribe endpoint of github.com/bluesky-social/jetstream. Its server has seen the
proofs and does not pass them on: whoever believes it believes its operator. So what comes from here is
`Proof.UNVERIFIED` and never becomes a frame of a tap; a lease hears it only by a policy that says so
(`network.unverified` in the settings).
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from firehose.cid import Cid
from firehose.errors import DrislInvalid, FrameInvalid, SyntaxInvalid
from firehose.frames import MAX_SEQ, Action, FramePeek, FrameType
from firehose.json_form import from_json
from firehose.subscribe import Subscriber
from firehose.syntax import Did, Nsid, RecordKey, Tid, parse_did, parse_nsid, parse_record_key, parse_tid

SUBSCRIBE_PATH: Final = "/subscribe"


class Proof(StrEnum):
    """What stands behind an event."""

    VERIFIED = "verified"  # signature, hashes and the tree
    UNVERIFIED = "unverified"  # somebody's word


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldRecord:
    """One record's change, as somebody tells it."""

    did: Did
    collection: Nsid
    rkey: RecordKey
    action: Action
    cid: Cid | None  # None for a delete
    record: dict[str, Any] | None
    rev: Tid
    time_us: int  # Jetstream's cursor
    proof: Proof = Proof.UNVERIFIED

    @property
    def uri(self) -> str:
        """at://did/collection/rkey"""
        return f"at://{self.did}/{self.collection}/{self.rkey}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldAccount:
    """An account's status, as somebody tells it."""

    did: Did
    active: bool
    status: str | None
    time_us: int
    proof: Proof = Proof.UNVERIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldIdentity:
    """That an account's document or handle may have changed, as somebody tells it."""

    did: Did
    handle: str | None
    time_us: int
    proof: Proof = Proof.UNVERIFIED


Told = ToldRecord | ToldAccount | ToldIdentity


class Jetstream(Subscriber):
    """The events of one Jetstream server, resumed after every break like a `Subscriber`.

    `cursor` is the time of the last event in microseconds: any server of the same network understands it.
    """

    path = SUBSCRIBE_PATH

    async def events(self) -> AsyncIterator[Told]:
        """Every event from here on; one that is malformed or of an unknown kind is counted and passed over.

        Raises: SubscriptionError: as `frames`.
        """
        async for message in self.frames():
            try:
                event = parse_event(message)
            except FrameInvalid as error:
                self.counters[f"invalid {error.reason}"] += 1
                continue
            if event is None:
                self.counters["unknown-kind"] += 1
            else:
                yield event

    def _look(self, message: str | bytes) -> tuple[bytes, FramePeek]:
        raw = message.encode("utf-8", "surrogatepass") if isinstance(message, str) else message
        told = _object(raw)
        did = told.get("did")
        peeked = FramePeek(
            type=FrameType.UNKNOWN, seq=_time_us(told), did=did if isinstance(did, str) else None
        )
        return raw, peeked


def parse_event(raw: bytes) -> Told | None:
    """The event in a message, or None if it is of a kind that this version does not know.

    Raises: FrameInvalid: it is malformed; the reason is a stable word.
    """
    told = _object(raw)
    time_us, did = _time_us(told), _parsed("did", told.get("did"), parse_did)
    kind = told.get("kind")
    if kind == "commit":
        return _record(_part(told, "commit"), Did(did), time_us)
    if kind == "account":
        account = _part(told, "account")
        if type(account.get("active")) is not bool:
            raise FrameInvalid("jetstream-account", "active is neither true nor false")
        status = account.get("status")
        return ToldAccount(
            did=Did(did),
            active=account["active"],
            status=status if isinstance(status, str) else None,
            time_us=time_us,
        )
    if kind == "identity":
        handle = _part(told, "identity").get("handle")
        return ToldIdentity(did=Did(did), handle=handle if isinstance(handle, str) else None, time_us=time_us)
    return None


def _record(commit: dict[str, Any], did: Did, time_us: int) -> ToldRecord:
    try:
        action = Action(str(commit.get("operation")))
    except ValueError:
        raise FrameInvalid("jetstream-operation", f"{commit.get('operation')!r:.40}") from None
    record: Any = None
    cid = None
    if action is not Action.DELETE:
        try:
            cid = Cid.parse(commit.get("cid"))
            record = from_json(commit.get("record"))
        except (SyntaxInvalid, DrislInvalid) as error:
            raise FrameInvalid("jetstream-record", str(error)) from None
        if not isinstance(record, dict):
            raise FrameInvalid("jetstream-record", "no map")
    return ToldRecord(
        did=did,
        collection=Nsid(_parsed("collection", commit.get("collection"), parse_nsid)),
        rkey=RecordKey(_parsed("rkey", commit.get("rkey"), parse_record_key)),
        action=action,
        cid=cid,
        record=record,
        rev=Tid(_parsed("rev", commit.get("rev"), parse_tid)),
        time_us=time_us,
    )


def _object(raw: bytes) -> dict[str, Any]:
    try:
        told = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise FrameInvalid("jetstream-json", str(error)) from None
    if not isinstance(told, dict):
        raise FrameInvalid("jetstream-json", "no object")
    return told


def _time_us(told: dict[str, Any]) -> int:
    time_us = told.get("time_us")
    if type(time_us) is not int or not 0 < time_us <= MAX_SEQ:
        raise FrameInvalid("jetstream-time", f"{time_us!r:.40}")
    return time_us


def _part(told: dict[str, Any], name: str) -> dict[str, Any]:
    part = told.get(name)
    if not isinstance(part, dict):
        raise FrameInvalid(f"jetstream-{name}", "no object")
    return part


def _parsed(name: str, value: object, parse: Any) -> str:
    try:
        return str(parse(value))
    except SyntaxInvalid as error:
        raise FrameInvalid(f"jetstream-{name}", str(error)) from None
