"""What a game master remembers: its own records, read back into the log of its game."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from actors import records
from actors.records import Decided
from firehose import XrpcClient

PAGE: Final = 100  # records asked for at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """`log` is for `Rules.replay`; `previous` the last decision in it; `is_begun`: a turn has been asked."""

    log: list[dict[str, Any]]
    previous: Decided | None
    is_begun: bool


async def recall(xrpc: XrpcClient, author_did: str, environment_id: str, players: Sequence[str]) -> Recalled:
    """Read what the turns, the deaths and the end that `author_did` has told say of this game."""
    decided: dict[int, Decided] = {}
    present: dict[int, list[dict[str, Any]]] = {}
    turns = await _turns(xrpc, author_did, environment_id)
    for turn in turns:
        present[turn["turn"]] = [
            {"turn": turn["turn"], "player": players.index(did), "presence": word}
            for word in ("away", "here")
            for did in turn.get(word, ())
        ]
    # a death or the end is told after a decision that no turn may carry yet
    for told in [*turns, *await _endings(xrpc, author_did, environment_id, players)]:
        if previous := told.get("previous"):
            decided[previous["turn"]] = Decided.parse(previous)
    log = []
    for number in sorted({*decided, *present}):
        log += present.get(number, [])
        if choice := decided.get(number):
            body = {"skip": choice.skip} if choice.action is None else {"action": choice.action}
            log.append({"turn": number, "player": players.index(choice.player_did), **body})
    return Recalled(
        log=log, previous=decided[max(decided)] if decided else None, is_begun=bool(turns or decided)
    )


async def _turns(xrpc: XrpcClient, author_did: str, environment_id: str) -> list[dict[str, Any]]:
    """Every turn asked in this environment, in order: their keys are."""
    prefix = f"{environment_id}."
    found: list[dict[str, Any]] = []
    cursor: str | None = prefix
    while cursor is not None:
        page, cursor = await xrpc.list_records(
            author_did, records.GAME_TURN, limit=PAGE, cursor=cursor, reverse=True
        )
        ours = [item["value"] for item in page if f"/{prefix}" in item["uri"]]
        found += ours
        if len(ours) < len(page):  # the next environment's begin here
            break
    return found


async def _endings(
    xrpc: XrpcClient, author_did: str, environment_id: str, players: Sequence[str]
) -> list[dict[str, Any]]:
    """What has been said already of deaths here and of the end."""
    keys = [(records.AGENT_DEATH, records.death_key(environment_id, player)) for player in players]
    keys.append((records.GAME_FINISHED, environment_id))
    told = [await xrpc.get_record(author_did, collection, key) for collection, key in keys]
    return [found["value"] for found in told if found is not None]
