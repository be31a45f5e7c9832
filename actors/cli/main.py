"""The `skylease` command: its options, its commands, and how an error reaches a person."""

import logging
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from actors.cli import context
from actors.cli.commands import Commands
from actors.cli.console import INTERRUPTED, progress

app: Final = typer.Typer(
    name="skylease",
    cls=Commands,
    help="Leased sandboxes for AI agents on the AT Protocol.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    config: Annotated[Path | None, typer.Option(help="Settings file; see config/skylease.toml.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where ledger, network and sandboxes are kept.")
    ] = None,
    debug: Annotated[bool, typer.Option(help="Log everything; a traceback where there is an error.")] = False,
) -> None:
    """Options of every command; they come before the command."""
    context.set_up(config=config, data_dir=data_dir, debug=debug)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO if debug else logging.ERROR,
        format="%(levelname)s %(name)s %(message)s",
    )


def main() -> None:
    """Run one command; the process's exit code is in the package docstring."""
    sys.exit(_run())


def _run() -> int:
    try:
        code = app(standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.Exit as ending:
        return ending.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    except Exception as error:
        if context.current().debug:
            raise
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        return _fail(_one_line(error), getattr(error, "exit_code", None) or _exit_code(error))


def _exit_code(error: BaseException) -> int:
    from leases import BudgetExceeded, UnknownLease
    from sandboxes import (
        ImageNotBuilt,
        InvalidSpec,
        SandboxBusy,
        SandboxExists,
        SandboxNotFound,
        UnknownImage,
        UnknownTier,
    )
    from sandboxes.errors import DataInUse
    from sandboxes.sharing import GuardBusy, NotDistributed, ScopeKeyMissing, UnknownScope
    from sandboxes.snapshots.errors import (
        BackupExpired,
        BackupNotFound,
        BackupRefused,
        SnapshotsOff,
        SnapshotTooLarge,
    )

    is_refused = BudgetExceeded | GuardBusy | BackupExpired | BackupRefused | SnapshotsOff | SnapshotTooLarge
    if isinstance(error, is_refused | SandboxBusy | SandboxExists | DataInUse):
        return 4
    is_absent = UnknownLease | UnknownImage | ImageNotBuilt | BackupNotFound | SandboxNotFound
    if isinstance(error, FileNotFoundError | is_absent):
        return 3
    is_wrong_use = InvalidSpec | UnknownTier | UnknownScope | ScopeKeyMissing | NotDistributed
    return 2 if isinstance(error, is_wrong_use) else 1


def _one_line(error: BaseException) -> str:
    if type(error).__module__ == "builtins" and isinstance(error, OSError) and error.strerror:
        where = f" {error.filename}" if error.filename else ""
        return f"{error.strerror.lower()}:{where or ' (no file named)'}"
    if hasattr(error, "format_message"):  # wrong use, found by the parser; its class is private to typer
        return f"{error.format_message().rstrip('.')}: see `skylease --help`"
    # Ray wraps what an actor raised: the first line of its cause is the sentence.
    cause = getattr(error, "cause", None)
    told = str(cause if isinstance(cause, Exception) else error).strip()
    return told.splitlines()[0] if told else type(error).__name__


def _fail(line: str, code: int) -> int:
    progress.print(f"skylease: {line}", soft_wrap=True, markup=False)
    return code
