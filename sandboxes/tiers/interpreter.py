"""Which Python runs inside a sandbox.

First choice: the very installation that runs skylease (without its venv), bound read-only at its own path, so
that the version inside is the version outside, with a whole standard library. Where that does not start
inside, the system's. The probe tries them in this order, so the same host always gets the same answer.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SYSTEM: Final = ("/usr/bin/python3", "/usr/local/bin/python3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python to try."""

    executable: str  # the path inside, the same as outside
    binds: tuple[str, ...] = ()  # directories outside /usr that it needs


def candidates(chosen: Path | None = None) -> list[Interpreter]:
    """Return the interpreters to try, best first; only `chosen` if there is one."""
    if chosen is not None:
        return [_describe(Path(os.path.realpath(chosen)))]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(os.path.realpath(sys.base_prefix)) / "bin" / version
    paths = [base, *(Path(path) for path in SYSTEM)]
    found: list[Interpreter] = []
    for path in paths:
        real = Path(os.path.realpath(path))
        if real.is_file() and os.access(real, os.X_OK):
            entry = _describe(real)
            if entry not in found:
                found.append(entry)
    return found


def _describe(executable: Path) -> Interpreter:
    if executable.is_relative_to("/usr"):
        return Interpreter(executable=str(executable))
    prefix = executable.parent.parent
    if executable.is_relative_to("/nix/store"):
        prefix = Path("/nix/store")
    return Interpreter(executable=str(executable), binds=(str(prefix),))


def is_narrow(interpreter: Interpreter) -> bool:
    """Whether what would be bound is an installation, and not somebody's home or half of the system."""
    homes = {Path.home(), Path("/home"), Path("/root"), Path("/")}
    return not any(
        Path(bind) in homes or any(home.is_relative_to(bind) for home in homes if home != Path("/"))
        for bind in interpreter.binds
    )
