"""Warm slots: running, hardened, empty sandboxes that belong to nobody until one is claimed."""

import hashlib
import json
import re
from dataclasses import dataclass, fields
from typing import Final

from sandboxes.errors import InvalidSpec
from sandboxes.names import check_name
from sandboxes.spec import ImageSpec, Limits, SandboxState

_NAME: Final = re.compile(r"slot-[0-9a-f]{16}")
_OF_THE_CLAIM: Final = frozenset({"idle_deadline_s", "wall_deadline_s", "start_deadline_s"})
_OF_AN_IMAGE: Final = tuple(field.name for field in fields(ImageSpec))
_OF_LIMITS: Final = tuple(field.name for field in fields(Limits) if field.name not in _OF_THE_CLAIM)


def is_slot_name(name: str) -> bool:
    """Say whether this is a slot's name, which no sandbox may have."""
    return _NAME.fullmatch(name) is not None


def check_slot_name(name: str) -> str:
    """Return `name` if it can be a slot's name.

    Raises:
        InvalidSpec: it is not `slot-` and 16 hex digits.
    """
    if not is_slot_name(name):
        raise InvalidSpec("slot", f"{name!r} is not slot- and 16 hex digits")
    return name


def check_free_name(name: str) -> str:
    """Return `name` if a sandbox can have it.

    Raises:
        InvalidSpec: it cannot be a name, or only a slot's.
    """
    if is_slot_name(check_name(name)):
        raise InvalidSpec("name", f"{name!r} is the name of a warm slot")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSpec:
    """What a slot is made from: all that cannot come with the claim. The deadlines of `limits` do."""

    name: str  # "slot-" and 16 hex digits
    image: ImageSpec
    limits: Limits
    reaches_out: bool = (
        False  # whether specs with egress will claim it; no tier needs to know it before so far
    )

    def __post_init__(self) -> None:
        check_slot_name(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotInfo:
    """What a tier knows of a slot."""

    name: str
    tier: str
    state: SandboxState  # warming, warm or failed
    fits: str  # `fitting` of what it was made from
    created_ms: int
    pid: int | None  # of the runner, in the host's numbering
    uid: int | None = None


def fitting(image: ImageSpec, limits: Limits) -> str:
    """Return what is equal for a slot and the specs that can claim it."""
    folder = {name: getattr(image, name) for name in _OF_AN_IMAGE} | {"root": str(image.root.absolute())}
    made_from = {"image": folder, "limits": {name: getattr(limits, name) for name in _OF_LIMITS}}
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:32]
