"""The list of all tiers, and which of them this host gets when nobody names one."""

import functools
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandboxes.errors import InvalidSpec, TierUnavailable, UnknownTier
from sandboxes.names import check_name
from sandboxes.spec import ImageSpec

if TYPE_CHECKING:
    from sandboxes.tier import Tier

AUTO: Final = "auto"  # the word for "the strongest that works here"
NEVER_CHOSEN: Final = frozenset({"unsafe"})  # no isolation: only by name
TIERS: Final[Mapping[str, str]] = {  # the strongest first; imported when they are asked for
    "gvisor": "sandboxes.tiers.gvisor:GvisorTier",
    "docker": "sandboxes.tiers.docker_tier:DockerTier",
    "process": "sandboxes.tiers.process:ProcessTier",
    "unsafe": "sandboxes.tiers.unsafe:UnsafeTier",
}


ENTRY_POINTS: Final = "skylease.tiers"  # of other packages: name = "module:Class"
_registered: dict[str, str] = {}


def register_tier(name: str, kind: str) -> None:
    """Add a tier of somebody else's, for this process; packages name theirs as entry points "skylease.tiers".

    Args:
        name: the `Tier.name` of its class; the type of what is stored of its sandboxes.
        kind: "module:Class", a `Tier` whose constructor takes the state directory and keywords.

    Raises:
        InvalidSpec: the name is taken, or cannot be one; or `kind` names no class.
    """
    module, _, attribute = kind.partition(":")
    if check_name(name) == AUTO or _registered.get(name, kind) != kind or name in TIERS:
        raise InvalidSpec("tier", f"the name {name!r} is taken")
    if not module or not attribute.isidentifier():
        raise InvalidSpec("tier", f"{kind!r} is not module:Class")
    _registered[name] = kind


def known_tiers() -> dict[str, str]:
    """Return every tier by its name: ours, those of installed packages, those registered in this process."""
    return {**_installed(), **_registered, **TIERS}


@functools.cache
def _installed() -> dict[str, str]:
    from importlib.metadata import entry_points  # slow, and agents never ask

    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}


def open_tier(name: str, root: Path, **options: Any) -> "Tier":
    """Return the tier of this name over a state directory; `options` are its constructor's keywords.

    Raises:
        UnknownTier: there is none of this name.
    """
    found = TIERS.get(name) or known_tiers().get(name)
    if found is None:
        raise UnknownTier(name, ", ".join((AUTO, *known_tiers())))
    module, _, kind = found.partition(":")
    tier: Tier = getattr(importlib.import_module(module), kind)(root, **options)
    return tier


async def choose_tier(
    root: Path, *, images: Sequence[ImageSpec] = (), **options: Any
) -> "tuple[Tier, tuple[str, ...]]":
    """Return the strongest tier that works on this host and has these images; and why not a stronger one.

    Args:
        root: state directory.
        images: what the sandboxes will be made from; for a tier that needs images built, all must be there.
        options: keywords of the tiers' constructors.

    Raises:
        TierUnavailable: no tier but those without isolation works here; says why for each.
    """
    reasons: list[str] = []
    for name in TIERS:
        if name in NEVER_CHOSEN:
            continue
        tier = open_tier(name, root, **options)
        probe = await tier.probe()
        if not probe.ok:
            lack = probe.lacks[0]
            reasons.append(f"not {name}: {lack.what}: {lack.why}")
            continue
        missing = [image.name for image in images if not await tier.has_image(image)]
        if missing:
            reasons.append(
                f"not {name}: image {missing[0]} is not built (skylease images build {missing[0]})"
            )
            continue
        return tier, tuple(reasons)
    raise TierUnavailable(AUTO, "; ".join(reasons), "mend one of these, or choose the tier unsafe by name")
