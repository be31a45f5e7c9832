"""The records that environments, agents and the supervisor write: names, keys, constructors.

Their schemas are config/lexicons/*.json. A record is a plain dict ready for `com.atproto.repo.putRecord`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from firehose import FirehoseError, drisl, from_json

AUTHORITY: Final = "dev.skylease"
ENV_CREATED: Final = f"{AUTHORITY}.env.created"
ENV_JOINED: Final = f"{AUTHORITY}.env.joined"
GAME_TURN: Final = f"{AUTHORITY}.game.turn"
GAME_ACTION: Final = f"{AUTHORITY}.game.action"
GAME_FINISHED: Final = f"{AUTHORITY}.game.finished"
AGENT_DEATH: Final = f"{AUTHORITY}.agent.death"
CAMPAIGN_ENDED: Final = f"{AUTHORITY}.campaign.ended"
TASK_COMPLETE: Final = f"{AUTHORITY}.task.complete"
PR_MERGED: Final = f"{AUTHORITY}.pr.merged"
LEASE_ACQUIRED: Final = f"{AUTHORITY}.lease.acquired"
LEASE_ENDED: Final = f"{AUTHORITY}.lease.ended"
# The collections whose records are endings; a condition is the NSID without our authority.
ENDINGS: Final = (GAME_FINISHED, AGENT_DEATH, CAMPAIGN_ENDED, TASK_COMPLETE, PR_MERGED)
MAX_STATE_BYTES: Final = 64 * 1024  # of a turn's state inside its record; docs/records.md
MAX_ACTION_BYTES: Final = 64 * 1024  # of an action inside its record, as of a state
MAX_REASON_CHARS: Final = 500  # of a skip; config/lexicons/dev.skylease.game.action.json

Record = dict[str, Any]


def condition_of(collection: str) -> str:
    """The condition that a collection stands for: "dev.skylease.game.finished" is "game.finished"."""
    return collection.removeprefix(f"{AUTHORITY}.")


def turn_key(environment_id: str, turn: int) -> str:
    """Record key of a turn and of its action: one per (environment, turn), and ordered by turn.

    A repeated turn therefore rewrites its record instead of adding one.
    """
    return f"{environment_id}.{turn:06d}"


def death_key(environment_id: str, agent_did: str) -> str:
    """Record key of an agent's death: one dies once in an environment, however often it is told."""
    return f"{environment_id}.{agent_did}"


def lease_key(environment_id: str, agent_did: str, epoch: int) -> str:
    """Record key of what the supervisor says about one epoch of a lease: publishing twice writes it once."""
    return f"{environment_id}.{agent_did}.{epoch}"


def datetime_of(epoch_ms: int) -> str:
    """Epoch milliseconds as an AT Protocol datetime, RFC 3339 with milliseconds and Z."""
    return (
        datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def _record(collection: str, now_ms: int, fields: Mapping[str, Any]) -> Record:
    present = {key: value for key, value in fields.items() if value is not None}
    return {"$type": collection, **present, "createdAt": datetime_of(now_ms)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What was decided on one turn: an action, or the reason why there is none."""

    turn: int
    player_did: str
    action: Record | None = None
    skip: str | None = None

    def as_json(self) -> Record:
        """The `previous` of the next turn's record."""
        choice = {"skip": self.skip} if self.action is None else {"action": self.action}
        return {"turn": self.turn, "player": self.player_did, **choice}

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> "Decided":
        """Read back what `as_json` wrote; the lexicon has checked the fields."""
        return cls(
            turn=value["turn"], player_did=value["player"], action=value.get("action"), skip=value.get("skip")
        )


def env_created(
    *, environment_id: str, type: str, players: Sequence[str], settings: Record, now_ms: int
) -> Record:
    """A game master opens an environment for these player DIDs."""
    fields = {"environment": environment_id, "type": type, "players": list(players), "settings": settings}
    return _record(ENV_CREATED, now_ms, fields)


def env_joined(*, environment_id: str, now_ms: int) -> Record:
    """An agent is ready for its turns."""
    return _record(ENV_JOINED, now_ms, {"environment": environment_id})


def game_turn(
    *,
    environment_id: str,
    turn: int,
    player_did: str,
    phase: str,
    state: Record,
    deadline_ms: int,
    previous: Decided | None,
    now_ms: int,
    away: Sequence[str] = (),
    here: Sequence[str] = (),
) -> Record:
    """The authority asks `player_did` for its decision number `turn`.

    `away` are those without whom the game begins, `here` those who came late: both just before this turn.
    """
    fields = {
        "environment": environment_id,
        "turn": turn,
        "player": player_did,
        "phase": phase,
        "state": state,
        "deadline": datetime_of(deadline_ms),
        "previous": previous.as_json() if previous else None,
        "away": list(away) or None,
        "here": list(here) or None,
    }
    return _record(GAME_TURN, now_ms, fields)


def game_action(
    *, environment_id: str, turn: int, action: Record | None, skip: str | None, now_ms: int
) -> Record:
    """A player's answer: `action`, or `skip` with a reason that is cut to 500 characters."""
    reason = None if skip is None else skip[:MAX_REASON_CHARS]
    fields = {"environment": environment_id, "turn": turn, "action": action, "skip": reason}
    return _record(GAME_ACTION, now_ms, fields)


def unpostable(action: Record) -> str | None:
    """Why an action cannot stand in a record: a turn script may have printed any JSON. None if it can."""
    try:
        size = len(drisl.encode(from_json({"action": action})))
    except FirehoseError as error:
        return str(error)
    return None if size <= MAX_ACTION_BYTES else f"it has {size} bytes, at most {MAX_ACTION_BYTES} are posted"


def game_finished(
    *,
    environment_id: str,
    reason: str,
    winner_did: str | None,
    turns: int,
    previous: Decided | None,
    now_ms: int,
) -> Record:
    """The end of a game; its author must be the environment's authority to count."""
    fields = {
        "environment": environment_id,
        "reason": reason,
        "winner": winner_did,
        "turns": turns,
        "previous": previous.as_json() if previous else None,
    }
    return _record(GAME_FINISHED, now_ms, fields)


def agent_death(
    *, environment_id: str, agent_did: str, cause: str, previous: Decided | None, now_ms: int
) -> Record:
    """One agent has died; `previous` is the decision it died of, so that a replay comes to the same."""
    fields = {
        "environment": environment_id,
        "subject": agent_did,
        "cause": cause[:MAX_REASON_CHARS],
        "previous": previous.as_json() if previous else None,
    }
    return _record(AGENT_DEATH, now_ms, fields)


def campaign_ended(*, environment_id: str, reason: str, now_ms: int) -> Record:
    """Nothing follows on this environment; `reason` is how it ended."""
    return _record(CAMPAIGN_ENDED, now_ms, {"environment": environment_id, "reason": reason})


def task_complete(
    *, environment_id: str, result: Record, now_ms: int, subject_did: str | None = None
) -> Record:
    """A piece of work is done; with a subject only for that agent."""
    return _record(
        TASK_COMPLETE, now_ms, {"environment": environment_id, "result": result, "subject": subject_did}
    )


def pr_merged(*, environment_id: str, uri: str | None, now_ms: int, subject_did: str | None = None) -> Record:
    """What came of a piece of work has been merged; with a subject only that agent's."""
    return _record(PR_MERGED, now_ms, {"environment": environment_id, "uri": uri, "subject": subject_did})


def lease_acquired(
    *,
    environment_id: str,
    agent_did: str,
    epoch: int,
    environment_type: str,
    authority_did: str,
    conditions: Sequence[str],
    tier: str,
    ttl_ms: int,
    now_ms: int,
) -> Record:
    """The supervisor says that `agent_did` holds a sandbox in an environment."""
    fields = {
        "environment": environment_id,
        "subject": agent_did,
        "epoch": epoch,
        "environmentType": environment_type,
        "authority": authority_did,
        "conditions": list(conditions),
        "tier": tier,
        "ttlMs": ttl_ms,
    }
    return _record(LEASE_ACQUIRED, now_ms, fields)


def lease_ended(
    *, environment_id: str, agent_did: str, epoch: int, condition: str, event: str | None, now_ms: int
) -> Record:
    """The supervisor says that a lease has ended, on which condition and by which event (its at:// URI)."""
    fields = {
        "environment": environment_id,
        "subject": agent_did,
        "epoch": epoch,
        "condition": condition,
        "event": event,
    }
    return _record(LEASE_ENDED, now_ms, fields)
