"""`skylease snapshots`: backups of any directory, in the store that the settings name."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

from actors.cli import context
from actors.cli.console import Answer, progress
from actors.errors import NotThere
from sandboxes.snapshots import Backup, Backups, open_snapshots
from sandboxes.snapshots.backups import DEFAULT_TTL_S

app = typer.Typer(help="Backups of directories, kept where sleeping sandboxes are.", no_args_is_help=True)
FOLDER: Final = "backups"
COLUMNS: Final = {
    "id": "ID",
    "name": "NAME",
    "directory": "DIRECTORY",
    "expires": "EXPIRES",
    "mib": "MIB",
}

Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the backup.")]


@app.command("backup")
def backup(
    directory: Annotated[Path, typer.Argument(help="What to back up; nothing should write there meanwhile.")],
    name: Annotated[str, typer.Option(help="A name for people, up to 256 characters.")] = "",
    ttl: Annotated[int, typer.Option(help="Seconds until it expires.")] = DEFAULT_TTL_S,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Path within it to leave out; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Back up a directory; prints the id that restores it. Links are kept, and not followed."""
    answer = Answer(as_json=as_json)
    if not directory.exists():
        raise NotThere(f"{directory} is not there")
    with _bar() as bar:
        backups = _backups(bar)
        backups.sweep()
        made = backups.create(directory.absolute(), name=name, ttl_s=ttl, excludes=exclude or ())
    for path in made.absent:
        progress.print(f"skylease: {path} is not there, so nothing was left out", markup=False)
    for path in made.skipped:
        progress.print(f"skylease: {path} cannot be archived and is not in it", markup=False)
    answer.object(_row(made), made.backup_id)


@app.command("restore")
def restore(
    backup_id: Id,
    directory: Annotated[Path | None, typer.Argument(help="Where to; default: where it was taken.")] = None,
    as_json: Json = False,
) -> None:
    """Restore a backup to a directory that does not exist, or is empty; on failure nothing is left there."""
    answer = Answer(as_json=as_json)
    with _bar() as bar:
        backups = _backups(bar)
        target = directory or Path(backups.find(backup_id).directory)
        found = backups.restore(backup_id, target.absolute())
    answer.object({"success": True, "dir": str(target.absolute()), "id": found.backup_id}, str(target))


@app.command("list")
def list_backups(as_json: JsonLines = False) -> None:
    """Every backup, the oldest first."""
    Answer(as_json=as_json).rows([_row(found) for found in _backups().list()], COLUMNS, "no backups")


@app.command("forget")
def forget(backup_id: Id, as_json: Json = False) -> None:
    """Let a backup go; its space is given back by a forget an hour after it was taken, or later."""
    answer, (snapshots, backups) = Answer(as_json=as_json), _open()
    gone = backups.forget(backup_id)
    snapshots.collect()
    answer.object(_row(gone), f"forgot {gone.backup_id}")


@app.command("verify")
def verify(backup_id: Id, as_json: Json = False) -> None:
    """Read all of a backup and compare it with what was written."""
    answer = Answer(as_json=as_json)
    whole = _backups().verify(backup_id)
    answer.object(
        {**_row(whole), "whole": True}, f"{whole.backup_id} is whole: {whole.stored_bytes} bytes read"
    )


def _open(bar: Progress | None = None) -> tuple[Any, Backups]:
    settings = context.current().settings()
    root = settings.data_path / FOLDER
    task = bar.add_task("", total=None) if bar is not None else None

    def watch(size: int) -> None:
        if bar is not None and task is not None:
            bar.advance(task, size)

    snapshots = open_snapshots(settings.snapshots.policy, root, watch=watch)
    return snapshots, Backups(snapshots, root, clock=_now_ms)


def _backups(bar: Progress | None = None) -> Backups:
    return _open(bar)[1]


def _bar() -> Progress:
    """How much was read or written, on stderr, where that is a terminal."""
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn()
    return Progress(*columns, console=progress, transient=True, disable=not progress.is_terminal)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _row(found: Backup) -> dict[str, Any]:
    return {
        "id": found.backup_id,
        "name": found.name,
        "directory": found.directory,
        "created": _moment(found.created_ms),
        "expires": _moment(found.expires_ms),
        "mib": round(found.raw_bytes / 2**20, 1),
        "stored_mib": round(found.stored_bytes / 2**20, 1),
        "files": found.files,
        "excludes": found.excludes,
        "skipped": found.skipped,
    }


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
