"""The agent's own files: its character, its memories, its campaigns. The schema is in data.md.

Every file is checked when read, bounded in size and written atomically. A file that cannot be read as what it
should be is kept aside as `<name>.corrupt-N` and reported; a character that another one replaces goes into
`campaign/former.json`, so nothing is lost in silence.
"""

import hashlib
import json
import os
import re

from rpg_sheets import (
    SCHEMA,
    Invalid,
    check_campaign,
    check_character,
    check_former,
    check_memory,
    check_sheet,
    mark_dead,
    plain,
)

MAX_CHARACTER_BYTES = 16 * 1024
MAX_CAMPAIGN_BYTES = 16 * 1024
MAX_FORMER_BYTES = 128 * 1024
MAX_FORMER = 20  # characters that were replaced, the newest kept
MAX_CAMPAIGNS = 20  # files of adventures, the newest kept
MAX_MEMORY_LINES = 200
MAX_MEMORY_BYTES = 64 * 1024
MAX_CORRUPT = 99  # files kept aside of one name; then the corrupt one stays and nothing is written


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
        if "character" not in state:
            self.close(state, before)
            return
        after = campaign_of(state, self.environment)
        self.keep_character(state)
        if after != before:
            self.save(self.campaign_file(), after, MAX_CAMPAIGN_BYTES)
            if before is None:
                self.forget_old_campaigns()
        self.remember(state, notes(before, after, state))

    def close(self, state, campaign):
        """A notice that says no more than what ended: our own files know the rest."""
        death, why = state["notice"] == "death", plain(state.get("cause") or state.get("reason"))
        known = self.load("character.json", MAX_CHARACTER_BYTES, check_sheet)
        if campaign is not None and campaign["notice"] == state["notice"]:
            return
        if campaign is not None:
            campaign.update(notice=state["notice"], reason=None if death else why)
            self.save(self.campaign_file(), campaign, MAX_CAMPAIGN_BYTES)
        if known is not None and death:
            mark_dead(known, why)
            self.save("character.json", known, MAX_CHARACTER_BYTES, durable=True)
        text = f"I died: {why}" if death else f"the adventure ended: {why}"
        adventure = known["adventure"] if known is not None else 0
        self.remember({"adventure": adventure}, [(state["notice"], text)])

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
            mark_dead(known, died[old["id"]])
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
        "you": state["you"],
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
