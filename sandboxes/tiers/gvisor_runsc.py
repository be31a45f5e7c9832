"""How runsc is found and called. Every call has a deadline: a platform that does not work here hangs."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PLATFORM: Final = "ptrace"  # works wherever ptrace does; kvm hangs on hosts without a usable /dev/kvm
CALL_DEADLINE_S: Final = 20.0  # a call takes 0.03 to 0.3 s on an idle machine
RUNSC_PATHS: Final = ("/usr/bin/runsc", "/usr/local/bin/runsc")


class RunscFailed(Exception):
    """A call failed or did not end; the text says what runsc said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runsc:
    """A runsc binary with what each call of it needs."""

    executable: Path
    platform: str = PLATFORM

    def version(self) -> str:
        """Return what it calls itself, e.g. `release-20221219.0`."""
        said = self._run([str(self.executable), "--version"]).splitlines()
        return said[0].removeprefix("runsc version ") if said else "unknown"

    @staticmethod
    def mark(state: Path) -> str:
        """Return the word that every process which runsc leaves behind has in its command line."""
        return f"--root={state}"

    def start(self, state: Path, *words: str) -> list[str]:
        """Return the command line that starts a sandbox whose state lies in `state`."""
        return [
            str(self.executable),
            self.mark(state),
            f"--platform={self.platform}",
            "--network=none",
            "--ignore-cgroups",  # they are ours, so that they hold the helpers as well
            # The runner makes its socket where we can reach it, and reaches the proxy's. With "create" alone
            # no socket file could even be listed.
            "--host-uds=all",
            *words,
        ]

    def call(self, state: Path, *words: str) -> str:
        """Run a command on a sandbox and return what it wrote.

        Raises:
            RunscFailed: it failed, or it did not end in time.
        """
        return self._run([str(self.executable), "--root", str(state), *words])

    @staticmethod
    def _run(argv: list[str]) -> str:
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CALL_DEADLINE_S,
                env={},
                cwd="/",
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RunscFailed(str(error)) from None
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).partition("\n")[0][:300]
            raise RunscFailed(said or f"runsc ended with {done.returncode}")
        return done.stdout


def find_runsc() -> Runsc | None:
    """Return the runsc of this host, None if there is none."""
    for path in (shutil.which("runsc"), *RUNSC_PATHS):
        if path is not None and os.access(path, os.X_OK):
            return Runsc(executable=Path(os.path.realpath(path)))
    return None
