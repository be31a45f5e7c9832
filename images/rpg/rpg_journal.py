"""The agent's own files: its character, its memories, its campaigns. The schema is in data.md.

Every file is checked when read, bounded in size and written atomically. A file that cannot be read as what it
should be is kept aside as `<name>.corrupt-N` and reported; a character that another one replaces goes into
`campaign/former.json`, so nothing is lost in silence.
"""

import hashlib
import json
import os
import re

SCHEMA = 1
MAX_CHARACTER_BYTES = 16 * 1024
MAX_CAMPAIGN_BYTES = 16 * 1024
MAX_FORMER_BYTES = 128 * 1024
MAX_FORMER = 20  # characters that were replaced, the newest kept
MAX_CAMPAIGNS = 20  # files of adventures, the newest kept
MAX_MEMORY_LINES = 200
MAX_MEMORY_BYTES = 64 * 1024
MAX_CORRUPT = 99  # files kept aside of one name; then the corrupt one stays and nothing is written
MAX_POINTS = 1_000_000
NUMBERS = ("hp", "max_hp", "mp", "max_mp", "xp", "level", "gold")
TABLES = ("stats", "skills", "items", "standing")
STATUSES = ("alive", "dead")


class Invalid(Exception):
    """A file is not what it should be."""


class Journal:
    """The files under `root`, for one environment; `troubles` went wrong, `memories` are known."""

    def __init__(self, root, environment):
        self.root, self.environment = root, environment
        self.troubles, self.memories = [], []

    def update(self, state):
        """Bring every file up to date with a state or a notice."""
        os.makedirs(self.path("memory"), exist_ok=True)
        os.makedirs(self.path("campaign"), exist_ok=True)
        before = self.load(self.campaign_file(), MAX_CAMPAIGN_BYTES, check_campaign)
        after = campaign_of(state, self.environment)
        self.keep_character(state)
        if after != before:
            self.save(self.campaign_file(), after, MAX_CAMPAIGN_BYTES)
            if before is None:
                self.forget_old_campaigns()
        self.remember(state, notes(before, after, state))

    def keep_character(self, state):
        """Write `character.json`; the one that was there before is archived if it is somebody else."""
        character = check_character(state.get("character"))
        current = {
            "schema": SCHEMA,
            "status": "dead" if character["dead"] else "alive",
            "environment": self.environment,
            "adventure": state["adventure"],
            "character": character,
        }
        known = self.load("character.json", MAX_CHARACTER_BYTES, check_sheet)
        if known == current:
            return
        if known is not None and known["character"]["id"] != character["id"]:
            self.archive(known, character)
        self.save("character.json", current, MAX_CHARACTER_BYTES, durable=True)

    def archive(self, known, successor):
        """Keep a character that is replaced: dead with nothing left if its successor remembers its death."""
        died = {one["id"]: one["cause"] for one in successor["ancestors"]}
        old = known["character"]
        if old["id"] in died:
            known["status"] = "dead"
            old.update(dead=True, cause=died[old["id"]], hp=0, mp=0, gold=0, items={})
        former = self.load("campaign/former.json", MAX_FORMER_BYTES, check_former)
        sheets = [one for one in (former or {"sheets": []})["sheets"] if one["character"]["id"] != old["id"]]
        kept = {"schema": SCHEMA, "sheets": [*sheets, known][-MAX_FORMER:]}
        self.save("campaign/former.json", kept, MAX_FORMER_BYTES, durable=True)

    def remember(self, state, new):
        """Append to `memory/adventures.jsonl`, the oldest lines fall off."""
        name = "memory/adventures.jsonl"
        lines = self.load(name, 2 * MAX_MEMORY_BYTES, check_memory, parse=parse_lines) or []
        for kind, text in new:
            line = {"schema": SCHEMA, "environment": self.environment, "adventure": state["adventure"]}
            lines.append({**line, "turn": state.get("turn", 0), "kind": kind, "text": text})
        lines = lines[-MAX_MEMORY_LINES:]
        while sum(len(dump(line)) + 1 for line in lines) > MAX_MEMORY_BYTES:
            del lines[0]
        self.memories = lines
        if new:
            self.write(name, b"".join(dump(line) + b"\n" for line in lines))

    def forget_old_campaigns(self):
        """Keep the newest files of adventures only."""
        folder = self.path("campaign")
        files = [
            os.path.join(folder, name)
            for name in os.listdir(folder)
            if name.endswith(".json") and name != "former.json"
        ]
        for path in sorted(files, key=lambda path: (os.path.getmtime(path), path))[:-MAX_CAMPAIGNS]:
            os.remove(path)

    def campaign_file(self):
        """Where this environment's adventure is kept: its name, made safe for a file."""
        slug = re.sub(r"[^A-Za-z0-9_-]", "-", self.environment)[:40]
        digest = hashlib.sha256(self.environment.encode("utf-8", "replace")).hexdigest()[:12]
        return f"campaign/{slug}-{digest}.json"

    def path(self, name):
        """A file or folder under the root."""
        return os.path.join(self.root, name)

    def load(self, name, max_bytes, check, parse=None):
        """A checked file; None when there is none, or it was corrupt and is now kept aside."""
        try:
            with open(self.path(name), "rb") as file:
                raw = file.read(max_bytes + 1)
        except FileNotFoundError:
            return None
        try:
            if len(raw) > max_bytes:
                raise Invalid(f"larger than {max_bytes} bytes")
            return check((parse or json.loads)(raw.decode("utf-8")))
        except (Invalid, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            self.set_aside(name, error)
            return None

    def set_aside(self, name, error):
        """Keep a corrupt file under another name. Raises: Invalid, when there are too many of them."""
        for number in range(1, MAX_CORRUPT + 1):
            aside = f"{name}.corrupt-{number}"
            try:
                os.link(self.path(name), self.path(aside))  # unlike rename, never onto an older one
            except FileExistsError:
                continue
            os.unlink(self.path(name))
            self.troubles.append(f"{name} is corrupt ({error}); kept as {aside}")
            return
        raise Invalid(f"{name} is corrupt ({error}) and {MAX_CORRUPT} such files are kept already")

    def save(self, name, value, max_bytes, durable=False):
        """Write JSON. Raises: Invalid, when it is too large; the old file stays."""
        raw = dump(value) + b"\n"
        if len(raw) > max_bytes:
            raise Invalid(f"{name} would be larger than {max_bytes} bytes")
        self.write(name, raw, durable)

    def write(self, name, raw, durable=False):
        """Replace a file as a whole or not at all."""
        temporary = self.path(f"{name}.new")
        with open(temporary, "wb") as file:
            file.write(raw)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, self.path(name))


def dump(value):
    """Canonical JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def parse_lines(text):
    """The objects of a JSON Lines text."""
    return [json.loads(line) for line in text.splitlines() if line]


def campaign_of(state, environment):
    """What is kept of an adventure in `campaign/`: where the party is and who lives."""
    room = state.get("room")
    return {
        "schema": SCHEMA,
        "environment": environment,
        "adventure": state["adventure"],
        "adventures": state["adventures"],
        "room": [room["number"], room["of"], room["kind"]] if room else None,
        "notice": state.get("notice"),
        "reason": state.get("reason"),
        "party": [[one["class"], one["level"], bool(one["dead"])] for one in state["party"]],
    }


def notes(before, after, state):
    """What is worth remembering between two looks at an adventure: (kind, text) each."""
    new = []
    if before is None:
        new.append(("joined", f"a party of {len(after['party'])}, I am a {state['character']['class']}"))
    if after["room"] and after["room"] != (before or {}).get("room"):
        new.append(("room", "room {} of {}: {}".format(*after["room"])))
    for player, (klass, level, dead) in enumerate(after["party"]):
        fell = (
            dead and before is not None and len(before["party"]) > player and not before["party"][player][2]
        )
        if fell and player != state["you"]:
            new.append(("ally_died", f"the {klass} of level {level} died"))
    if after["notice"] and after["notice"] != (before or {}).get("notice"):
        cause = state["character"]["cause"]
        text = f"I died: {cause}" if after["notice"] == "death" else f"the adventure ended: {after['reason']}"
        new.append((after["notice"], text))
    return new


def check_character(value):
    """A character as the game gives it, or Invalid."""
    if not isinstance(value, dict):
        raise Invalid("a character is an object")
    for name in NUMBERS:
        if type(value.get(name)) is not int or not 0 <= value[name] <= MAX_POINTS:
            raise Invalid(f"{name} is no whole number from 0 to {MAX_POINTS}")
    for name in TABLES:
        table = value.get(name)
        if not isinstance(table, dict) or any(type(number) is not int for number in table.values()):
            raise Invalid(f"{name} is no table of whole numbers")
    for name in ("id", "class"):
        if not isinstance(value.get(name), str) or not 0 < len(value[name]) <= 100:
            raise Invalid(f"{name} is no text of 1 to 100 characters")
    if type(value.get("dead")) is not bool or not isinstance(value.get("ancestors"), list):
        raise Invalid("dead or ancestors is missing")
    if value["hp"] > value["max_hp"] or value["mp"] > value["max_mp"]:
        raise Invalid("more points than the most there can be")
    if value["dead"] and value["items"]:
        raise Invalid("the dead carry nothing")
    return value


def check_sheet(value):
    """The content of `character.json`, or Invalid."""
    if not isinstance(value, dict) or value.get("schema") != SCHEMA or value.get("status") not in STATUSES:
        raise Invalid(f"no sheet of schema {SCHEMA}")
    if not isinstance(value.get("environment"), str) or type(value.get("adventure")) is not int:
        raise Invalid("environment or adventure is missing")
    if (value["status"] == "dead") is not check_character(value.get("character"))["dead"]:
        raise Invalid("status and character do not agree")
    return value


def check_former(value):
    """The content of `campaign/former.json`, or Invalid."""
    if (
        not isinstance(value, dict)
        or value.get("schema") != SCHEMA
        or not isinstance(value.get("sheets"), list)
    ):
        raise Invalid(f"no list of sheets of schema {SCHEMA}")
    for sheet in value["sheets"]:
        check_sheet(sheet)
    return value


def check_campaign(value):
    """The content of a file of an adventure, or Invalid."""
    if (
        not isinstance(value, dict)
        or value.get("schema") != SCHEMA
        or not isinstance(value.get("party"), list)
    ):
        raise Invalid(f"no adventure of schema {SCHEMA}")
    if any(not isinstance(one, list) or len(one) != 3 for one in value["party"]):
        raise Invalid("the party is not a list of class, level, dead")
    return value


def check_memory(lines):
    """The lines of a memory file, or Invalid."""
    for line in lines:
        if (
            not isinstance(line, dict)
            or line.get("schema") != SCHEMA
            or not isinstance(line.get("text"), str)
        ):
            raise Invalid(f"a line is no memory of schema {SCHEMA}")
    return lines
