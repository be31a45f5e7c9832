"""What is on disk about each sandbox: one directory with `sandbox.json`, and a lock per name.

ROOT/.lock              byte-range locks, one byte per name; a dead holder's lock is gone with it
ROOT/.trash/            directories being removed
ROOT/NAME/sandbox.json  written before anything exists, rewritten with the pid; always whole
ROOT/NAME/workspace/    /workspace inside
ROOT/NAME/run/runner.sock
ROOT/NAME/logs/runner.log
"""

import contextlib
import fcntl
import hashlib
import json
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from sandboxes.names import check_name
from sandboxes.runner.tree import read_stat

LOCK_DEADLINE_S: Final = 60.0  # a create or destroy of the same name takes well under a second
LOCK_POLL_S: Final = 0.005
_FLOCK: Final = "hhqqi4x"  # struct flock on 64-bit Linux: type, whence, start, len, pid


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The contents of a `sandbox.json`."""

    name: str
    tier: str
    epoch: int
    labels: dict[str, str]
    created_ms: int
    uid: int | None
    data_dir: str | None
    pid: int | None = None
    start_ticks: int | None = None  # with pid and boot_id: this very process, not a later one with its number
    boot_id: str = ""
    ready: bool = False

    def is_alive(self) -> bool:
        """Whether the runner's process exists and is the one that was recorded."""
        if self.pid is None or self.boot_id != boot_id():
            return False
        stat = read_stat(self.pid)
        return stat is not None and stat[1] not in "ZX" and stat[2] == self.start_ticks


class Records:
    """The state directory of one tier on one node."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.trash = self.root / ".trash"
        self.tag_prefix = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:8]

    def prepare(self) -> None:
        """Make the root, private to us."""
        self.trash.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(self.root, 0o700)

    def directory(self, name: str) -> Path:
        """Return the directory of a sandbox, checked to be a direct child of the root."""
        return self.root / check_name(name)

    def tag(self, name: str) -> str:
        """Return the word that marks a sandbox's processes in the process list."""
        return f"skylease:{self.tag_prefix}:{name}"

    def names(self) -> list[str]:
        """Return the names of all directories, sorted."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(entry.name for entry in os.scandir(self.root) if not entry.name.startswith("."))
        return []

    def load(self, name: str) -> Record | None:
        """Return a sandbox's record; None if there is none, or it is not readable as one."""
        try:
            return Record(**json.loads((self.directory(name) / "sandbox.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def save(self, record: Record) -> None:
        """Write a record, whole or not at all."""
        path = self.directory(record.name) / "sandbox.json"
        temporary = path.with_suffix(".tmp")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(asdict(record), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    @contextlib.contextmanager
    def lock(self, name: str, *, wait_s: float = LOCK_DEADLINE_S) -> Iterator[bool]:
        """Hold the lock of a name against everybody, other threads and processes included; yields False if
        not got.
        """
        self.prepare()
        fd = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            byte = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])
            wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
            deadline = time.monotonic() + wait_s
            while True:
                try:
                    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wanted)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        yield False
                        return
                    time.sleep(LOCK_POLL_S)
            yield True
        finally:
            os.close(fd)


def boot_id() -> str:
    """Return what tells this boot of the machine from others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
