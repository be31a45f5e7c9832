"""What is on disk about each sandbox: one directory with `sandbox.json`, and a lock per name.

ROOT/.lock              byte-range locks, one byte per name; a dead holder's lock is gone with it
ROOT/.trash/            directories being removed
ROOT/NAME/sandbox.json  written before anything exists, rewritten with the pid; always whole; once it says
                        "ended", no writer takes that back
ROOT/NAME/workspace/    /workspace inside
ROOT/NAME/run/runner.sock
ROOT/NAME/logs/runner.log
ROOT/.slots/SLOT/       a warm slot: the same; its claim renames it to ROOT/NAME
ROOT/.handles/SLOT      a link to where that directory is now: what keeps the slot's name is found by it
"""

import contextlib
import fcntl
import hashlib
import json
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from sandboxes.errors import SandboxFailed
from sandboxes.names import check_name
from sandboxes.runner.tree import read_stat
from sandboxes.slot import is_slot_name

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
    fits: str = ""  # a slot: what can be made of it; else empty
    handle: str | None = None  # the slot that it was: its cgroup, container and processes have that name
    generation: str = ""  # of one making: tells a sandbox from an earlier one of its name and epoch
    ended: bool = False  # it is being removed, and nothing brings it back

    @property
    def outside(self) -> str:
        """The name of what it holds outside its directory."""
        return self.handle or self.name

    def is_alive(self) -> bool:
        """Whether its runner runs, and nobody is removing it."""
        return not self.ended and self.is_running()

    def is_running(self) -> bool:
        """Whether the runner's process exists and is the one that was recorded."""
        if self.pid is None or self.boot_id != boot_id():
            return False
        stat = read_stat(self.pid)
        return stat is not None and stat[1] not in "ZX" and stat[2] == self.start_ticks


class Records:
    """The state directory of one tier on one node."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.trash, self.slots, self.handles = (self.root / name for name in (".trash", ".slots", ".handles"))
        self.tag_prefix = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:8]

    def prepare(self) -> None:
        """Make the root, private to us."""
        self.trash.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(self.root, 0o700)

    def directory(self, name: str) -> Path:
        """Return the directory of a sandbox, checked to be a direct child of the root, or of a slot."""
        return (self.slots if is_slot_name(name) else self.root) / check_name(name)

    def tag(self, name: str) -> str:
        """Return the word that marks a sandbox's processes in the process list."""
        return f"skylease:{self.tag_prefix}:{name}"

    def names(self) -> list[str]:
        """Return the names of all directories of sandboxes, sorted."""
        return _names(self.root)

    def slot_names(self) -> list[str]:
        """Return the names of all directories of slots, sorted."""
        return _names(self.slots)

    def handle_names(self) -> list[str]:
        """Return the slots that have a handle, claimed ones included, sorted."""
        return _names(self.handles)

    def handle(self, slot: str) -> Path:
        """Return a path that leads to the directory of a slot, before and after its claim."""
        return self.handles / slot

    def turn_handle(self, slot: str, name: str) -> None:
        """Let the handle of a slot lead to the directory that is or will be this name's."""
        self.handles.mkdir(mode=0o700, exist_ok=True)
        fresh = self._fresh(slot)
        fresh.unlink(missing_ok=True)  # of somebody who died
        os.symlink(os.path.relpath(self.directory(name), self.handles), fresh)
        os.replace(fresh, self.handle(slot))

    def drop_handle(self, slot: str) -> None:
        """Remove the handle of a slot, if it has one."""
        self.handle(slot).unlink(missing_ok=True)
        self._fresh(slot).unlink(missing_ok=True)

    def _fresh(self, slot: str) -> Path:
        return self.handles / f".{slot}"

    def leads_to(self, slot: str) -> str:
        """Return the name of what a slot is now (a slot, or a sandbox); by now it may be gone.

        Empty: nothing leads anywhere.
        """
        try:
            return slot if (self.slots / slot).is_dir() else os.path.basename(os.readlink(self.handle(slot)))
        except OSError:
            return ""

    def claimed_by(self, slot: str) -> Record | None:
        """Return what a slot has become, None if that is not there (any more)."""
        name = self.leads_to(slot)
        record = self.load(name) if name not in ("", slot) else None
        return record if record is not None and record.handle == slot else None

    def load(self, name: str) -> Record | None:
        """Return a sandbox's record; None if there is none, or it is not readable as one.

        One that is still that of a slot is of a sandbox whose claim has not come to its end.
        """
        try:
            record = Record(**json.loads((self.directory(name) / "sandbox.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
        if record.name == name:
            return record
        return replace(record, name=name, handle=record.outside, fits="", ready=False)

    def save(self, record: Record, *, durable: bool = True) -> None:
        """Write a record, whole or not at all, and not over one that has ended or is of a later making.

        One that is not durable may be the one before it again after a power cut (ext4 writes a file before
        the rename that puts it in the place of another: kernel documentation, "auto_da_alloc").

        Raises:
            SandboxFailed: the writer comes too late.
        """
        with self._writing(record.name):
            there = self._raw(record.name)
            why = "" if there is None else _why_late(record, there)
            if why:
                raise SandboxFailed(record.name, why)
            self._write(record.name, asdict(record), durable=durable)

    def end(self, name: str) -> None:
        """Note that a sandbox is being removed: from here on nobody finds it alive, whoever writes late."""
        with (
            contextlib.suppress(OSError),
            self._writing(name),
        ):  # on a full disk it can be removed all the same
            there = self._raw(name)
            if there is not None and not there.get("ended"):
                self._write(name, {**there, "ended": True}, durable=False)

    def _writing(self, name: str) -> contextlib.AbstractContextManager[bool]:
        """Hold the lock of a record: of a name's it is another, which its holder may have."""
        return self.lock(f"{name}/sandbox.json")

    def _raw(self, name: str) -> dict[str, Any] | None:
        try:
            value = json.loads((self.directory(name) / "sandbox.json").read_bytes())
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def _write(self, name: str, value: dict[str, Any], *, durable: bool) -> None:
        path = self.directory(name) / "sandbox.json"
        temporary = path.with_suffix(".tmp")
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(json.dumps(value))
            if durable:
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


def _why_late(record: Record, there: dict[str, Any]) -> str:
    """Why a record must not be written over the one that is there; empty: it may."""
    if there.get("generation", "") != record.generation:
        return "another sandbox of this name has taken its place"
    if there.get("ended") and not record.ended:
        return "it is being removed"
    if there.get("epoch", 0) > record.epoch:
        return f"it is at epoch {there['epoch']}, the writer at {record.epoch}"
    return ""


def _names(directory: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(entry.name for entry in os.scandir(directory) if not entry.name.startswith("."))
    return []


@cache
def boot_id() -> str:
    """Return what tells this boot of the machine from others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
