"""`skylease sandboxes`: one command in a throw-away sandbox, and the operator's view of all. Without Ray."""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from actors.cli import context
from actors.cli.console import Answer, progress, run
from actors.cli.shell import Shell
from actors.errors import NotThere, WrongUse
from actors.host import load_image, make_tier, settle_tier
from actors.inventory import THROW_AWAY, Inventory, Item
from actors.resources import shipped
from actors.settings import Settings
from actors.sharing import SHARED, lend, put_away_idle
from sandboxes import InvalidSpec, Limits, Mount, Sandbox, SandboxSpec, SandboxTimeoutError, Tier
from sandboxes.furnishing import NOTHING, WorkspaceSpec, furnish_once, read_workspace
from sandboxes.images.folder import folder
from sandboxes.sharing import AfterUse, Caller, Scope, Wanted, parse_scope

app = typer.Typer(help="Sandboxes on this machine.", no_args_is_help=True)
TIMED_OUT: Final = 124  # as coreutils' timeout
COLUMNS: Final = {
    "name": "NAME",
    "kind": "KIND",
    "tier": "TIER",
    "state": "STATE",
    "epoch": "EPOCH",
    "pid": "PID",
    "lease": "LEASE",
}
CLEANED: Final = {"name": "NAME", "tier": "TIER", "destroyed": "DESTROYED"}
MIB: Final = 2**20
SHELL_DEADLINE_S: Final = 3600.0  # of one line
RUNNER_LOG: Final = "logs/runner.log"

TierOption = Annotated[str | None, typer.Option(help="How it is isolated; auto: the strongest that works.")]
ImageOption = Annotated[str, typer.Option(help="Image that it is made from.")]
MountOption = Annotated[
    list[str] | None,
    typer.Option("--mount", metavar="SOURCE:TARGET[:rw]", help="Host path to show inside; may be repeated."),
]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be destroyed, and do nothing.")]


@app.command("run", context_settings={"ignore_unknown_options": True})
def run_command(
    argv: Annotated[list[str], typer.Argument(metavar="-- ARGV…", help="The command and its arguments.")],
    tier: TierOption = None,
    image: ImageOption = "catan",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until its whole tree is killed.")] = 60.0,
    stdin: Annotated[Path | None, typer.Option(help="File that becomes its standard input.")] = None,
    mount: MountOption = None,
    workspace: Annotated[
        Path | None, typer.Option(help="TOML or JSON file of what its workspace starts with.")
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(help="Whose sandbox, found again by the next: session, user, agent or global."),
    ] = None,
    session_id: Annotated[
        str | None, typer.Option("--session", help="Id of the session, for its scope.")
    ] = None,
    user_id: Annotated[str | None, typer.Option("--user", help="Id of the user, for its scope.")] = None,
    agent_id: Annotated[str | None, typer.Option("--agent", help="Id of the agent, for its scope.")] = None,
    stay: Annotated[bool, typer.Option("--stay", help="With --scope: leave it frozen, not asleep.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print its ExecResult as one JSON object.")] = False,
) -> None:
    """Run one command in a throw-away sandbox, or with --scope in one that keeps its files for the next.

    Exits with its exit code, or 124 when it ran out of time.
    """
    settings = context.current().settings(sandbox__tier=tier)
    fed = b"" if stdin is None else stdin.read_bytes()
    answer = Answer(as_json=as_json)
    caller = Caller(session_id=session_id, user_id=user_id, agent_id=agent_id)
    starts_with = _workspace(settings, image, workspace)
    if scope is None:
        if stay or caller != Caller():
            raise WrongUse("--session, --user, --agent and --stay say whose sandbox it is: give --scope, too")
        place = _throw_away(settings, image, timeout + 60, _mounts(mount or []), starts_with)
    else:
        after_use = AfterUse.STAY if stay else AfterUse.SLEEP
        whose = parse_scope(scope), caller, after_use
        place = _shared(settings, image, whose, timeout + 60, _mounts(mount or []), starts_with)
    result = run(_run(place, argv, fed, timeout))
    if as_json:
        answer.object(result)
    else:
        answer.object(result, result["stdout"].rstrip("\n") if result["stdout"] else "")
        sys.stderr.write(result["stderr"])
    if result["timed_out"]:
        progress.print(f"skylease: the command did not end within {timeout:g} s and was killed", markup=False)
    raise typer.Exit(TIMED_OUT if result["timed_out"] else result["exit_code"])


@app.command("list")
def list_sandboxes(as_json: JsonLines = False) -> None:
    """Every sandbox of this machine: live, dead or asleep, and the warm slots."""
    rows = run(Inventory(context.current().settings()).rows())
    Answer(as_json=as_json).rows(rows, COLUMNS, "no sandboxes")


@app.command("cleanup")
def cleanup(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME…]", help="Those of these names.")
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Those that have ended.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also those that live.")] = False,
    dry_run: DryRun = False,
    as_json: JsonLines = False,
) -> None:
    """Destroy sandboxes: those named, the dead ones, or all. What lives is destroyed only with --force.

    --all --force ends the warm slots, too; a host that runs makes new ones.
    """
    if not (names or dead or everything):
        raise WrongUse("which sandboxes? give their names, --dead or --all")
    inventory = Inventory(context.current().settings())

    async def clean() -> list[dict[str, Any]]:
        if names:
            chosen = [await inventory.find(name) for name in names]
        else:
            chosen = [item for item in await inventory.items() if everything or not item.is_alive]
        rows = await inventory.clean(chosen, force=force, dry_run=dry_run)
        return rows + (await inventory.end_slots(dry_run=dry_run) if everything and force else [])

    Answer(as_json=as_json).rows(run(clean()), CLEANED, "nothing to clean up")


@app.command("janitor")
def janitor(
    every: Annotated[
        float, typer.Option(min=0.0, help="Seconds between rounds; 0: one round and done.")
    ] = 0.0,
    dry_run: DryRun = False,
    as_json: JsonLines = False,
) -> None:
    """Clear away what dead sandboxes left: processes, mounts, cgroups, containers, directories."""
    settings = context.current().settings()
    inventory, answer = Inventory(settings), Answer(as_json=as_json)

    async def rounds() -> None:
        while True:
            rows = await inventory.sweep(dry_run=dry_run)
            rows += [] if dry_run else await put_away_idle(settings)
            if rows or not every:
                answer.rows(rows, CLEANED, "nothing to clean up")
            if not every:
                return
            await asyncio.sleep(every)

    run(rounds())


@app.command("logs")
def logs(
    name: Annotated[str, typer.Argument(help="The sandbox.")],
    process: Annotated[str | None, typer.Option(help="Id of a background process in it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")] = False,
) -> None:
    """What a sandbox's runner wrote, and what its background processes are; with --process, what it wrote."""
    answer = Answer(as_json=as_json)
    told = run(_logs(context.current().settings(), name, process))
    if process is not None:
        answer.object(told, told["stdout"] + told["stderr"])
        return
    lines = [told["runner"].rstrip("\n") or "(its runner has written nothing)"]
    for row in told["processes"]:
        state = "runs" if row["running"] else f"ended with {row['exit_code']}"
        lines.append(f"process {row['id']}: {' '.join(row['argv'])}: {state}")
    answer.object(told, "\n".join(lines))


@app.command("shell")
def shell(
    name: Annotated[str | None, typer.Argument(help="The sandbox; none: a throw-away one.")] = None,
    tier: TierOption = None,
    image: ImageOption = "catan",
) -> None:
    """Run line after line in a sandbox, as an agent could: same user, same limits, same files.

    Directory and exported variables last from line to line; there is no terminal inside, so no editors.
    """
    settings = context.current().settings(sandbox__tier=tier)

    async def talk() -> int:
        if name is not None:
            item = await Inventory(settings).find(name)
            async with await item.tier.connect(name) as sandbox:
                return await Shell(sandbox).talk(SHELL_DEADLINE_S)
        async with _throw_away(settings, image, SHELL_DEADLINE_S) as (sandbox, _):
            return await Shell(sandbox).talk(SHELL_DEADLINE_S)

    raise typer.Exit(run(talk()))


@asynccontextmanager
async def _throw_away(
    settings: Settings,
    image: str,
    idle_s: float,
    mounts: tuple[Mount, ...] = (),
    workspace: WorkspaceSpec = NOTHING,
) -> AsyncIterator[tuple[Sandbox, dict[str, Any]]]:
    """A sandbox that lives as long as the block, and its tier."""
    root = settings.data_path / THROW_AWAY
    tier = await _tier(settings, root)
    spec = await _spec(settings, tier, image, idle_s, (*mounts, *workspace.mounts))
    try:
        async with await tier.create(spec) as sandbox:
            if workspace.entries:
                await furnish_once(sandbox, workspace)
            yield sandbox, {"tier": tier.name}
    finally:
        await tier.destroy(spec.name)


@asynccontextmanager
async def _shared(
    settings: Settings,
    image: str,
    whose: tuple[Scope, Caller, AfterUse],
    idle_s: float,
    mounts: tuple[Mount, ...],
    workspace: WorkspaceSpec,
) -> AsyncIterator[tuple[Sandbox, dict[str, Any]]]:
    """The sandbox of a scope, given back at the end of the block, and where it came from."""
    tier = await _tier(settings, settings.data_path / SHARED / "sandboxes")
    idle_s = max(idle_s, settings.sandbox.idle_deadline_s)
    spec = await _spec(settings, tier, image, idle_s, (*mounts, *workspace.mounts))
    scope, caller, after_use = whose
    wanted = Wanted(spec=spec, tier=tier.name, scope=scope, caller=caller, after_use=after_use)
    async with lend(settings, wanted, workspace) as lent:
        told = {"tier": lent.tier.name, "source": lent.source, "name": lent.name, "epoch": lent.token}
        yield lent.sandbox, told


async def _tier(settings: Settings, root: Path) -> Tier:
    chosen, _ = await settle_tier(settings.sandbox.tier, root, shipped("images"))
    return make_tier(chosen, root, settings.sandbox.allowed_mounts)


async def _spec(
    settings: Settings, tier: Tier, image: str, idle_s: float, mounts: tuple[Mount, ...]
) -> SandboxSpec:
    limits = Limits(
        memory_bytes=settings.sandbox.memory_mib * MIB,
        pids=settings.sandbox.pids,
        cpu=settings.sandbox.cpu,
        disk_bytes=settings.sandbox.disk_mib * MIB,
        idle_deadline_s=idle_s,
    )
    return SandboxSpec(
        name=f"run-{secrets.token_hex(8)}",
        epoch=1,
        image=await tier.locate(load_image(shipped("images"), image, for_turns=False)),
        limits=limits,
        mounts=mounts,
    )


async def _run(
    place: AbstractAsyncContextManager[tuple[Sandbox, dict[str, Any]]],
    argv: list[str],
    stdin: bytes,
    timeout: float,
) -> dict[str, Any]:
    async with place as (sandbox, told):
        timed_out = False
        try:
            result = await sandbox.exec(argv, stdin=stdin, timeout=timeout)
        except SandboxTimeoutError as error:
            result, timed_out = error.result, True
    return {
        "exit_code": result.exit_code,
        "stdout": result.stdout_text,
        "stderr": result.stderr_text,
        "duration_seconds": round(result.duration_seconds, 4),
        "truncated": result.truncated,
        "timed_out": timed_out,
        **told,
    }


async def _logs(settings: Settings, name: str, process: str | None) -> dict[str, Any]:
    item = await Inventory(settings).find(name)
    if process is None:
        return {
            "sandbox": name,
            "runner": await asyncio.to_thread(_runner_log, item),
            "processes": await _processes(item),
        }
    if not item.is_alive:
        raise NotThere(f"the sandbox {name} has ended, and its processes with it")
    async with await item.tier.connect(name) as sandbox:
        written = await sandbox.process(process).logs()
    return {
        "process": process,
        "stdout": written.stdout.decode("utf-8", "replace"),
        "stderr": written.stderr.decode("utf-8", "replace"),
    }


async def _processes(item: Item) -> list[dict[str, Any]]:
    if not item.is_alive:
        return []
    async with await item.tier.connect(item.info.name) as sandbox:
        return await sandbox.list_processes()


def _runner_log(item: Item) -> str:
    file = item.info.socket.parents[1] / RUNNER_LOG
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _workspace(settings: Settings, image: str, file: Path | None) -> WorkspaceSpec:
    """What a new sandbox starts with: what its image says, and over that a file."""
    try:
        given = NOTHING if file is None else read_workspace(file, settings.sandbox.allowed_mounts)
        return folder(shipped("images"), image).workspace.beneath(given)
    except InvalidSpec as invalid:
        raise WrongUse(str(invalid)) from None


def _mounts(wanted: list[str]) -> tuple[Mount, ...]:
    """SOURCE:TARGET or SOURCE:TARGET:rw, as mounts."""
    found = []
    for text in wanted:
        parts = text.split(":")
        if len(parts) not in (2, 3) or parts[2:] not in ([], ["ro"], ["rw"]):
            raise WrongUse(f"--mount {text!r} is not SOURCE:TARGET or SOURCE:TARGET:rw")
        source = Path(parts[0]).expanduser().absolute()
        try:
            found.append(Mount(source=source, target=parts[1], read_only=parts[2:] != ["rw"]))
        except InvalidSpec as invalid:
            raise WrongUse(f"--mount {text!r}: {invalid.reason}") from None
    return tuple(found)
