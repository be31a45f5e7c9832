"""How far each upstream was followed: one small file, each cursor under its URL, replaced in one step.

Source: atproto.com/specs/event-stream, "Sequence Numbers": a seq means something at its own host only, so no
cursor is ever offered to another one.
"""

import contextlib
import json
import os
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from firehose.errors import WindowUnavailable

VERSION: Final = 1


class Numbering(StrEnum):
    """Whose numbers the frames of a merged stream have."""

    UPSTREAM = "upstream"  # those of the one host that is followed
    OWN = "own"  # ours: several hosts, or another one than before


@dataclass(slots=True, kw_only=True)
class Cursors:
    """What the file holds."""

    numbering: Numbering = Numbering.UPSTREAM
    last_seq: int | None = None  # the highest that we gave out ourselves
    by_url: dict[str, int] = field(default_factory=dict)


class CursorFile:
    """The file at `path`; a missing one holds nothing."""

    def __init__(self, path: Path) -> None:
        """Take the place; nothing is opened yet."""
        self.path = path

    def load(self) -> Cursors:
        """What was saved last.

        Raises: WindowUnavailable: it cannot be read, or it is not ours.
        """
        try:
            held = json.loads(self.path.read_bytes())
            if held["version"] != VERSION:
                raise ValueError(f"version {held['version']!r:.20}")
            cursors = {str(url): int(seq) for url, seq in held["cursors"].items()}
            last_seq = held["last_seq"]
            return Cursors(
                numbering=Numbering(held["numbering"]),
                last_seq=None if last_seq is None else int(last_seq),
                by_url=cursors,
            )
        except FileNotFoundError:
            return Cursors()
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            # Going on without it would ask upstream for other events than those that are missing.
            reason = f"not cursors: {error}; move it away to begin at the window's end"
            raise WindowUnavailable(str(self.path), reason) from None

    def save(self, cursors: Cursors) -> None:
        """Replace what was saved.

        Raises: WindowUnavailable: the disk refuses; what was saved before stays.
        """
        text = json.dumps(
            {
                "version": VERSION,
                "numbering": cursors.numbering,
                "last_seq": cursors.last_seq,
                "cursors": cursors.by_url,
            }
        )
        replace_file(self.path, text.encode())


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` at `path` in one step: whoever is killed meanwhile leaves the old file or the new one.

    Raises: WindowUnavailable: the disk refuses.
    """
    fresh = path.with_name(path.name + ".new")
    try:
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise WindowUnavailable(str(path), error.strerror or str(error)) from error
