"""`skylease sandboxes`: one command in a throw-away sandbox, and what sandboxes there are. Without Ray."""

import secrets
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from actors.cli import context
from actors.cli.console import Answer, progress, run
from actors.host import load_image, make_tier
from actors.resources import shipped
from actors.settings import Settings
from sandboxes import ImageSpec, Limits, SandboxError, SandboxSpec, SandboxTimeoutError, Tier

app = typer.Typer(help="Sandboxes on this machine.", no_args_is_help=True)
TIMED_OUT: Final = 124  # as coreutils' timeout
COLUMNS = {"name": "NAME", "tier": "TIER", "state": "STATE", "epoch": "EPOCH", "pid": "PID", "lease": "LEASE"}
MIB: Final = 2**20


@app.command("run", context_settings={"ignore_unknown_options": True})
def run_command(
    argv: Annotated[list[str], typer.Argument(metavar="-- ARGV…", help="The command and its arguments.")],
    tier: Annotated[str | None, typer.Option(help="How it is isolated.")] = None,
    image: Annotated[str, typer.Option(help="Folder under images/ that appears as /image.")] = "catan",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until its whole tree is killed.")] = 60.0,
    stdin: Annotated[Path | None, typer.Option(help="File that becomes its standard input.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print its ExecResult as one JSON object.")] = False,
) -> None:
    """Run one command in a throw-away sandbox. Exits with its exit code, or 124 when it ran out of time."""
    settings = context.current().settings(sandbox__tier=tier)
    fed = b"" if stdin is None else stdin.read_bytes()
    answer = Answer(as_json=as_json)
    result = run(_run(settings, load_image(shipped("images"), image), argv, fed, timeout))
    if as_json:
        answer.object(result)
    else:
        answer.object(result, result["stdout"].rstrip("\n") if result["stdout"] else "")
        sys.stderr.write(result["stderr"])
    if result["timed_out"]:
        progress.print(f"skylease: the command did not end within {timeout:g} s and was killed", markup=False)
    raise typer.Exit(TIMED_OUT if result["timed_out"] else result["exit_code"])


@app.command("list")
def list_sandboxes(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Every sandbox of this machine, live or dead."""
    settings = context.current().settings()
    Answer(as_json=as_json).rows(run(_list(settings)), COLUMNS, "no sandboxes")


async def _run(
    settings: Settings, image: ImageSpec, argv: list[str], stdin: bytes, timeout: float
) -> dict[str, Any]:
    tier = _tier(settings, settings.data_path / "throw-away")
    name = f"run-{secrets.token_hex(8)}"
    limits = Limits(
        memory_bytes=settings.sandbox.memory_mib * MIB,
        pids=settings.sandbox.pids,
        cpu=settings.sandbox.cpu,
        idle_deadline_s=timeout + 60,
    )
    try:
        sandbox = await tier.create(SandboxSpec(name=name, epoch=1, image=image, limits=limits))
        async with sandbox:
            timed_out = False
            try:
                result = await sandbox.exec(argv, stdin=stdin, timeout=timeout)
            except SandboxTimeoutError as error:
                result, timed_out = error.result, True
    finally:
        await tier.destroy(name)
    return {
        "exit_code": result.exit_code,
        "stdout": result.stdout_text,
        "stderr": result.stderr_text,
        "duration_seconds": round(result.duration_seconds, 4),
        "truncated": result.truncated,
        "timed_out": timed_out,
        "tier": settings.sandbox.tier,
    }


async def _list(settings: Settings) -> list[dict[str, Any]]:
    rows = []
    roots = [settings.data_path / "throw-away", *sorted(settings.data_path.glob("nodes/*/sandboxes"))]
    for root in (root for root in roots if root.is_dir()):
        with suppress(SandboxError):  # a tier that this host cannot run has no sandboxes here either
            for info in await _tier(settings, root).list({}):
                rows.append(
                    {
                        "name": info.name,
                        "tier": info.tier,
                        "state": info.state,
                        "epoch": info.epoch,
                        "pid": info.pid,
                        "lease": info.labels.get("skylease.lease"),
                        "directory": str(info.socket.parents[1]),
                    }
                )
    return rows


def _tier(settings: Settings, root: Path) -> Tier:
    return make_tier(settings.sandbox.tier, root)
