"""`skylease sandboxes prewarm`, `pause`, `sleep`, `wake`, `fork` and `share`: by hand, on a running system.

They ask the supervisor, so that the ledger knows what was done.
"""

from typing import Annotated, Any, Final, cast

import typer

from actors.cli import context
from actors.cli.books import did_of
from actors.cli.console import Answer, progress, run
from actors.errors import Refused, WrongUse

READY: Final = {"node": "NODE", "type": "TYPE", "ready": "READY", "wanted": "WANTED"}
SLEEPING: Final = {"sandbox": "SANDBOX", "lease": "LEASE", "status": "STATUS", "why": "WHY NOT"}
MARGIN_S: Final = 60.0  # beyond what the supervisor gives its host: it may wait for the lease's lock

Name = Annotated[str, typer.Argument(help="The sandbox, as `sandboxes list` has it.")]
Agent = Annotated[str, typer.Argument(help="DID or handle of the agent whose lease it will be.")]
Environment = Annotated[
    str | None, typer.Option(help="Id of the environment it is for; default: the other's.")
]
Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("prewarm")(prewarm)
    app.command("pause")(pause)
    app.command("sleep")(sleep)
    app.command("wake")(wake)
    app.command("fork")(fork)
    app.command("share")(share)


def prewarm(
    environment_type: Annotated[str, typer.Argument(metavar="TYPE", help="catan, rpg, …")],
    count: Annotated[int, typer.Option(min=1, max=64, help="How many, on every node.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Have warm slots of a type ready before anybody asks, as far as there is free room.

    So many are kept until nobody has asked for the type for half an hour.
    """
    answer = Answer(as_json=as_json)
    rows = cast(list[dict[str, Any]], _ask("prewarm", environment_type, count))
    answer.rows(rows, READY, "no nodes")
    if any(row["ready"] < count for row in rows):
        progress.print("skylease: a node has no free room for more, and nobody gives way", markup=False)


def pause(name: Name, as_json: Json = False) -> None:
    """Freeze a sandbox until its next request. It keeps its memory, so its lease costs on."""
    _do(as_json, "pause", name)


def sleep(
    name: Annotated[str | None, typer.Argument(help="The sandbox, as `sandboxes list` has it.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every sandbox that has a lease.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Put a sandbox to sleep now: its files are kept, it costs nothing, its next turn wakes it."""
    if everything == (name is not None):
        raise WrongUse("name one sandbox, or say --all")
    if name is not None:
        _do(as_json, "put_to_sleep", name)
        return
    rows = cast(list[dict[str, Any]], _ask("put_all_to_sleep"))
    Answer(as_json=as_json).rows(rows, SLEEPING, "nobody is awake")
    if awake := sum("why" in row for row in rows):
        raise Refused(f"{awake} of {len(rows)} sandboxes did not go to sleep: the rows say why")


def wake(name: Name, as_json: Json = False) -> None:
    """Have a sandbox awake before its next turn asks for it; its lease costs again."""
    _do(as_json, "wake", name)


def fork(
    name: Name,
    agent: Agent,
    environment: Environment = None,
    as_json: Json = False,
) -> None:
    """Give an agent a lease whose sandbox begins with the files that another has now.

    It goes its own way, with its agent's /data, and ends with its environment or by `leases end`.
    """
    _do(as_json, "fork", name, did_of(agent), environment)


def share(name: Name, agent: Agent, environment: Environment = None, as_json: Json = False) -> None:
    """Give an agent a lease in a sandbox that is another's, as sub-agents have it in their parent's.

    The lease has an end of its own; the sandbox is billed once, and goes with the last lease on it.
    """
    _do(as_json, "share", name, did_of(agent), environment)


def _do(as_json: bool, method: str, *arguments: object) -> None:
    Answer(as_json=as_json).object(_ask(method, *arguments))


def _ask(method: str, *arguments: object) -> object:
    from actors import longlived  # everything that the system is made of
    from actors.remote import SUSPEND_TIMEOUT_S

    settings = context.current().settings()
    timeout_s = SUSPEND_TIMEOUT_S + MARGIN_S
    return run(longlived.ask_supervisor(settings, method, *arguments, timeout_s=timeout_s))
