"""Whether what a spec wants shown of this host can be shown in a sandbox; asked before anything is made."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandboxes.errors import InvalidSpec
from sandboxes.spec import ImageSpec, Mount, SandboxSpec
from sandboxes.tiers.record import Record, Records

MAX_PATH_BYTES: Final = 4000  # of a data directory: a mount's source must fit a page with all else it says


class Admission:
    """Checks specs for one state directory; what it has read of the sandboxes there is read once."""

    def __init__(self, records: Records, allow_mounts: tuple[Path, ...]) -> None:
        self._records, self._allow_mounts = records, allow_mounts
        self._seen: dict[str, tuple[tuple[int, int], Record | None]] = {}

    def check(self, spec: SandboxSpec) -> None:
        """Check what a spec wants to show.

        Raises:
            InvalidSpec: it is not there, not allowed, or somebody else's.
        """
        self._check_image(spec.image)
        for mount in spec.mounts:
            self._check_mount(mount)
        if spec.data_dir is not None:
            self._check_data(spec.name, spec.data_dir.absolute())

    def _check_image(self, image: ImageSpec) -> None:
        script = image.root / image.script
        if not (script.is_file() if image.turn_script else image.root.is_dir()):
            raise InvalidSpec("image", f"{script} is not there")
        self._check_hides_state("image", image.root, Path(os.path.realpath(image.root)))

    def _check_mount(self, mount: Mount) -> None:
        real = Path(os.path.realpath(mount.source))
        if not any(real.is_relative_to(os.path.realpath(allowed)) for allowed in self._allow_mounts):
            raise InvalidSpec("mounts", f"{mount.source} is under none of the directories that are allowed")
        if not real.exists():
            raise InvalidSpec("mounts", f"{mount.source} is not there")
        self._check_hides_state("mounts", mount.source, real)

    def _check_hides_state(self, field: str, shown: Path, real: Path) -> None:
        if Path(os.path.realpath(self._records.root)).is_relative_to(real):
            raise InvalidSpec(field, f"{shown} holds the state directory, which sandboxes must not see")

    def _check_data(self, name: str, wanted: Path) -> None:
        if not wanted.is_dir():
            raise InvalidSpec("data_dir", f"{wanted} is not a directory")
        if len(os.fsencode(wanted)) > MAX_PATH_BYTES:
            raise InvalidSpec("data_dir", f"its path is longer than {MAX_PATH_BYTES} bytes")
        for record in self._all_records():
            if record.name != name and record.data_dir == str(wanted) and record.is_running():
                raise InvalidSpec("data_dir", f"{wanted} is in use by sandbox {record.name}")

    def _all_records(self) -> Iterator[Record]:
        """Return the records of all sandboxes; those that have not changed are not read again."""
        before, self._seen = self._seen, {}
        for name in self._records.names():
            try:
                found = os.stat(self._records.root / name / "sandbox.json")
            except OSError:
                continue
            key = (found.st_ino, found.st_mtime_ns)
            entry = before.get(name)
            if entry is None or entry[0] != key:
                entry = (key, self._records.load(name))
            self._seen[name] = entry
            if entry[1] is not None:
                yield entry[1]
