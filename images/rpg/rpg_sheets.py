"""What the agent's own files must look like, checked by hand: the sandbox has the standard library only."""

SCHEMA = 1
MAX_POINTS = 1_000_000
MAX_TEXT = 100  # characters of a cause
NUMBERS = ("hp", "max_hp", "mp", "max_mp", "xp", "level", "gold")
TABLES = ("stats", "skills", "items", "standing")
STATUSES = ("alive", "dead")


class Invalid(Exception):
    """A file is not what it should be."""


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


def plain(text):
    """A short text without control codes."""
    return "".join(letter for letter in str(text) if letter.isprintable())[:MAX_TEXT]


def mark_dead(sheet, cause):
    """A dead character has nothing left."""
    sheet["status"] = "dead"
    sheet["character"].update(dead=True, cause=cause, hp=0, mp=0, gold=0, items={})
