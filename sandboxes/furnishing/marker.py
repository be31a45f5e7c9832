"""What a workspace knows of its own start: a file inside, which goes with it into every snapshot.

Its inhabitants may write it, so it is believed only where a lie harms nobody else: an entry that it calls
written is not written again, and what it calls ours and nobody wants any more is removed.
"""

import contextlib
import json
from dataclasses import dataclass
from typing import Any, Final

from sandboxes.errors import FileError, InvalidSpec
from sandboxes.furnishing.entries import OWN_DIRECTORY, check_target
from sandboxes.furnishing.hostfiles import MAX_FILES
from sandboxes.workspace import Workspace

MARKER: Final = f"{OWN_DIRECTORY}/workspace.json"
MARKER_VERSION: Final = 1
MAX_MARKER_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """`laid` are the keys of entries that were written once; `projected` is what projections brought, `hash`
    what that came to.
    """

    laid: frozenset[str] = frozenset()
    projected: frozenset[str] = frozenset()
    hash: str = ""

    def to_bytes(self) -> bytes:
        """Return it as JSON; the same marker gives the same bytes."""
        told = {
            "version": MARKER_VERSION,
            "laid": sorted(self.laid),
            "projected": sorted(self.projected),
            "hash": self.hash,
        }
        return json.dumps(told, separators=(",", ":")).encode()


def parse_marker(raw: bytes) -> Marker:
    """Return what a marker says; an empty one if these bytes are none."""
    try:
        told: dict[str, Any] = json.loads(raw)
        if told["version"] != MARKER_VERSION:
            return Marker()
        projected = set()
        for path in told["projected"][: 2 * MAX_FILES]:
            with contextlib.suppress(InvalidSpec, AttributeError):
                projected.add(check_target(path))
        laid = frozenset(key for key in told["laid"] if isinstance(key, str))
        return Marker(laid=laid, projected=frozenset(projected), hash=str(told["hash"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return Marker()


async def read_marker(workspace: Workspace) -> Marker:
    """Return a workspace's marker; an empty one if it has none that can be used."""
    raw = b""
    try:
        async for piece in workspace.stream_file(MARKER):
            raw += piece
            if len(raw) > MAX_MARKER_BYTES:
                return Marker()
    except FileError:
        return Marker()
    return parse_marker(raw)


async def write_marker(workspace: Workspace, marker: Marker) -> None:
    """Write a workspace's marker, whatever stands in its place."""
    seen = await workspace.look({OWN_DIRECTORY: None, MARKER: None})
    if seen[OWN_DIRECTORY].kind not in (None, "directory"):
        await workspace.delete(OWN_DIRECTORY)
    elif seen[MARKER].kind not in (None, "file"):
        await workspace.delete(MARKER, recursive=True)
    await workspace.mkdir(OWN_DIRECTORY)
    await workspace.write_file(MARKER, marker.to_bytes())
