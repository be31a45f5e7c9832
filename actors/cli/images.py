"""`skylease images`: builds what the docker and gvisor tiers start sandboxes from. Without Ray."""

import subprocess
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from actors.cli.console import Answer, progress
from actors.errors import NotThere, WrongUse
from actors.resources import shipped
from sandboxes import ImageBuildFailed
from sandboxes.images.build import (
    BASE,
    BUILD_SILENCE_S,
    OFFLINE_BASE,
    Builder,
    Built,
    Step,
    find_built,
)
from sandboxes.images.folder import ImageFolder, folders
from sandboxes.tiers.docker_engine import Engine, EngineDown

app = typer.Typer(help="What sandboxes are made from.", no_args_is_help=True)
COLUMNS: Final = {"image": "IMAGE", "state": "STATE", "reference": "REFERENCE", "turn_script": "TURN SCRIPT"}
BUILT: Final = {"image": "IMAGE", "seconds": "SECONDS", "digest": "DIGEST"}
OFFLINE_DEADLINE_S: Final = 900.0


@app.command("build")
def build(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME…]", help="Default: all.")] = None,
    base: Annotated[
        str | None,
        typer.Option(help="A Debian with Python to build on.", show_default="python:3.12-slim-bookworm"),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="First make the base from the package mirror of apt (as root).")
    ] = False,
    ca: Annotated[
        Path | None, typer.Option(help="Certificate authorities for downloads.", show_default="this host's")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Build images with the Docker Engine at DOCKER_HOST, the base before what stands on it."""
    if offline and base is not None:
        raise WrongUse("--offline makes the base itself: leave one of --offline and --base out")
    if ca is not None and not ca.is_file():
        raise NotThere(f"there is no file {ca}: --ca names one with certificate authorities")
    answer, engine = Answer(as_json=as_json), Engine(deadline_s=BUILD_SILENCE_S)
    images = shipped("images")
    try:
        engine.version()
        order = Builder(engine, images, build_ca=ca).order(names or [])
        if offline:
            base = _make_base(engine, images)
        builder = Builder(engine, images, base=base, build_ca=ca)
        progress.print(f"building on {builder.base}", markup=False)
        rows = [_build_one(builder, folder) for folder in order]
    except ImageBuildFailed as failed:
        for line in failed.lines:
            progress.print(f"  {line}", markup=False)
        raise
    except EngineDown as down:
        raise NotThere(str(down)) from None
    finally:
        engine.close()
    answer.rows(rows, BUILT, "nothing to build")


@app.command("list")
def list_images(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Every image, and what the Docker Engine has of it; the process tier needs no built one."""
    answer, engine = Answer(as_json=as_json), Engine()
    trouble = ""
    rows = []
    for folder in folders(shipped("images")):
        built = None
        if not trouble:
            try:
                built = find_built(engine, folder.reference)
            except EngineDown as down:
                trouble = str(down)
        rows.append(_row(folder, built, trouble))
    if trouble:
        progress.print(f"what is built is not known: {trouble}", markup=False)
    engine.close()
    answer.rows(rows, COLUMNS, "no images")


def _make_base(engine: Engine, images: Path) -> str:
    """The offline base, made now if the engine lacks it."""
    if find_built(engine, OFFLINE_BASE) is None:
        script = images / BASE / "offline.sh"
        done = subprocess.run(
            ["/bin/sh", str(script), OFFLINE_BASE], capture_output=True, text=True, timeout=OFFLINE_DEADLINE_S
        )
        if done.returncode:
            *lines, last = done.stderr.strip().splitlines() or [f"{script} ended with {done.returncode}"]
            raise ImageBuildFailed(OFFLINE_BASE, last.removeprefix("offline.sh: "), tuple(lines))
    return OFFLINE_BASE


def _build_one(builder: Builder, folder: ImageFolder) -> dict[str, Any]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[line]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=progress, transient=True, disable=not progress.is_terminal) as bar:
        task = bar.add_task(folder.name, total=None, line="")
        if not progress.is_terminal:
            progress.print(f"building {folder.name} …", markup=False)

        def told(step: Step) -> None:
            bar.update(task, completed=step.number, total=step.of or None, line=step.line[:60])

        built = builder.build(folder, told)
        seconds = bar.tasks[0].finished_time or bar.tasks[0].elapsed or 0.0
    return {**_row(folder, built, ""), "seconds": round(seconds, 1)}


def _row(folder: ImageFolder, built: Built | None, trouble: str) -> dict[str, Any]:
    state = "not built"
    if trouble:
        state = "unknown"
    elif not folder.can_be_built:
        state = "no Dockerfile"
    elif built is not None:
        state = "built" if built.sources in (None, folder.digest()) else "stale"
    return {
        "image": folder.name,
        "reference": folder.reference,
        "state": state,
        "turn_script": folder.turn_script,
        "digest": built and built.digest,
        "base": built and built.base,
        "built_at": built and built.created,
        "size_bytes": built and built.size_bytes,
        "folder": str(folder.root),
    }
