"""What an agent keeps of itself under /data, read by the host (images/rpg/data.md has the schema).

A sandbox writes these files, so all of it is a stranger's: no link is followed, nothing but a regular file of
bounded size is read, every field is checked, and what cannot be used is told in `troubles`.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from games import SettingsInvalid
from games.rpg import parse_hero

SCHEMA: Final = 1
MAX_SHEET_BYTES: Final = 16 * 1024  # the limits that the image keeps to; images/rpg/data.md
MAX_FORMER_BYTES: Final = 128 * 1024
MAX_MEMORY_BYTES: Final = 128 * 1024
MAX_CAMPAIGNS: Final = 64  # files looked at; the image keeps 20
MAX_TEXT: Final = 200  # characters of any text that is shown
MAX_ASIDE: Final = 20  # corrupt files that are told by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A character and the adventure in which it was noted; `hero` has the fields of `Hero.to_json`."""

    environment_id: str
    adventure: int
    hero: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One adventure as the agent noted it: how far it came, and what it was in the end."""

    environment_id: str
    adventure: int
    adventures: int
    room: str | None  # "3 of 4, combat"
    klass: str | None
    level: int | None
    fallen: int  # heroes of the party who were dead at the last look
    reason: str | None


@dataclass(slots=True, kw_only=True)
class Keepsakes:
    """All that was found; `troubles` say what could not be read, a line each."""

    sheet: Sheet | None = None
    former: list[Sheet] = field(default_factory=list)
    visits: dict[str, Visit] = field(default_factory=dict)  # by environment id
    memories: list[str] = field(default_factory=list)  # oldest first
    troubles: list[str] = field(default_factory=list)


class _Unusable(Exception):
    """A file is not what it should be."""


def read_keepsakes(folder: Path) -> Keepsakes:
    """Read the folder that is /data in an agent's sandboxes; an empty one gives empty keepsakes."""
    kept = Keepsakes()
    with _told(kept, "character.json"):
        raw = _read(folder, "character.json", MAX_SHEET_BYTES)
        kept.sheet = None if raw is None else _sheet(_object(raw))
    with _told(kept, "campaign/former.json"):
        raw = _read(folder, "campaign/former.json", MAX_FORMER_BYTES)
        kept.former = [] if raw is None else [_sheet(one) for one in _list(_object(raw).get("sheets"))]
    for name in _campaigns(folder, kept):
        with _told(kept, f"campaign/{plain(name)}"):
            raw = _read(folder, f"campaign/{name}", MAX_SHEET_BYTES)
            if raw is not None:
                visit = _visit(_object(raw))
                kept.visits[visit.environment_id] = visit
    with _told(kept, "memory/adventures.jsonl"):
        raw = _read(folder, "memory/adventures.jsonl", MAX_MEMORY_BYTES)
        lines = (raw or b"").splitlines()
        kept.memories = [plain(_object(line).get("text")) for line in lines if line]
    _tell_set_aside(folder, kept)
    return kept


def plain(text: object) -> str:
    """A stranger's text as it may be shown: no control codes, not too long."""
    return "".join(letter for letter in str(text)[:MAX_TEXT] if letter.isprintable())


def _tell_set_aside(folder: Path, kept: Keepsakes) -> None:
    """Name the files that the agent found corrupt and kept under another name."""
    aside: list[str] = []
    for parts in ([], ["campaign"], ["memory"]):
        with suppress(OSError), _opened(folder, parts) as descriptor:
            names = [name for name in os.listdir(descriptor) if ".corrupt-" in name]
            aside += sorted("/".join([*parts, plain(name)]) for name in names)
    kept.troubles += [f"{name}: found corrupt, and kept aside" for name in aside[:MAX_ASIDE]]
    if len(aside) > MAX_ASIDE:
        kept.troubles.append(f"{len(aside) - MAX_ASIDE} more files were found corrupt, and kept aside")


@contextmanager
def _told(kept: Keepsakes, name: str) -> Iterator[None]:
    try:
        yield
    except (_Unusable, SettingsInvalid) as error:
        kept.troubles.append(f"{name}: {plain(error)}")
    except OSError as error:
        kept.troubles.append(f"{name}: {plain(error.strerror or error)}")


def _campaigns(folder: Path, kept: Keepsakes) -> list[str]:
    try:
        with _opened(folder, ["campaign"]) as descriptor:
            names = [name for name in os.listdir(descriptor) if name.endswith(".json")]
    except FileNotFoundError:
        return []
    except OSError as error:
        kept.troubles.append(f"campaign: {plain(error.strerror or error)}")
        return []
    if len(names) > MAX_CAMPAIGNS:
        kept.troubles.append(f"campaign: {len(names)} files, of which {MAX_CAMPAIGNS} are read")
    return [name for name in sorted(names)[:MAX_CAMPAIGNS] if name != "former.json"]


@contextmanager
def _opened(folder: Path, parts: list[str]) -> Iterator[int]:
    """A folder below `folder`, reached without following any link. Raises: OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder, flags)
    try:
        for part in parts:
            below = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _read(folder: Path, name: str, max_bytes: int) -> bytes | None:
    """A regular file, whole; None when there is none. Raises: _Unusable, OSError."""
    *parts, leaf = name.split("/")
    try:
        with _opened(folder, parts) as parent:
            # non-blocking: a named pipe would wait for its writer
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(leaf, flags, dir_fd=parent)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _Unusable("is no regular file")
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise _Unusable(f"is larger than {max_bytes} bytes")
    return raw


def _object(raw: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _Unusable(f"is no JSON: {error}") from error
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise _Unusable(f"is no object of schema {SCHEMA}")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise _Unusable("has no list where one belongs")
    return value


def _number(value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise _Unusable(f"a number is not from {least} to {most}")
    return value


def _word(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or not value.isprintable():
        raise _Unusable(f"a text is not printable, or not of 1 to {MAX_TEXT} characters")
    return value


def _sheet(value: object) -> Sheet:
    if not isinstance(value, dict):
        raise _Unusable("a sheet is an object")
    hero = parse_hero(value.get("character"), "character").to_json()
    if (value.get("status") == "dead") is not hero["dead"]:
        raise _Unusable("status and character do not agree")
    return Sheet(
        environment_id=_word(value.get("environment")),
        adventure=_number(value.get("adventure"), 0, 100),
        hero=hero,
    )


def _visit(value: Mapping[str, Any]) -> Visit:
    room, party, you = value.get("room"), _list(value.get("party")), value.get("you")
    members = [
        (_word(klass), _number(level, 1, 10), dead is True) for klass, level, dead in map(_three, party)
    ]
    me = members[_number(you, 0, len(members) - 1)] if you is not None else None
    where = None if room is None else "{} of {}, {}".format(*map(plain, _three(room)))
    return Visit(
        environment_id=_word(value.get("environment")),
        adventure=_number(value.get("adventure"), 1, 100),
        adventures=_number(value.get("adventures"), 1, 100),
        room=where,
        klass=me and me[0],
        level=me and me[1],
        fallen=sum(dead for _, _, dead in members),
        reason=None if value.get("reason") is None else _word(value["reason"]),
    )


def _three(value: object) -> list[Any]:
    found = _list(value)
    if len(found) != 3:
        raise _Unusable("a list has not its three parts")
    return found
