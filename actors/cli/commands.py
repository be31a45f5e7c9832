"""The commands of `skylease`: each is imported when it is called, so that `--help`, and whatever only reads
a table, pays for no more than that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Where a command is, or a group of them, and its line in `skylease --help`.

    The first of the `modules` has the `app` of a group; each that has an `add_to` adds its commands by it.
    """

    modules: tuple[str, ...]
    help: str
    is_group: bool = False


COMMANDS: Final[Mapping[str, Part]] = {
    "simulate": Part(
        modules=("simulate",),
        help="Play a game with leased sandboxes: starts what is missing, plays, ends every lease, reports.",
    ),
    "up": Part(
        modules=("system",),
        help="Start network, tap, supervisor and hosts on the Ray cluster at hand, or on a local one of its "
        "own.",
    ),
    "down": Part(
        modules=("system",),
        help="End every lease, destroy every sandbox, stop every actor; and the cluster, if `up` started it.",
    ),
    "status": Part(
        modules=("system",),
        help="What runs, what is leased, what was refused and what this host cannot give.",
    ),
    "replay": Part(
        modules=("replay",),
        help="Replay a trace with its own clock: verdicts and ledger are the same each time.",
    ),
    "network": Part(
        modules=("network",), help="Serve the embedded PDS, did:plc directory and relay until Ctrl-C."
    ),
    "bench": Part(
        modules=("bench",),
        help="Medians and p99 of ours and of its peers, measured in one run; compare the ratios, not the "
        "times.",
    ),
    "firehose": Part(
        modules=("firehose",),
        help="The AT Protocol firehose: verify, record, serve and tail.",
        is_group=True,
    ),
    "sandboxes": Part(modules=("sandboxes", "byhand"), help="Sandboxes on this machine.", is_group=True),
    "images": Part(modules=("images",), help="What sandboxes are made from.", is_group=True),
    "snapshots": Part(
        modules=("snapshots",),
        help="Backups of directories, kept where sleeping sandboxes are.",
        is_group=True,
    ),
    "leases": Part(
        modules=("leases", "books"), help="Who holds which sandbox, and until when.", is_group=True
    ),
    "agents": Part(modules=("agents",), help="Who has played here, and what became of them.", is_group=True),
    "config": Part(modules=("config",), help="The settings.", is_group=True),
}


class Commands(TyperGroup):
    """`skylease` itself: it knows the names of its commands and a line about each."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: _Named(name=name, help=part.help) for name, part in COMMANDS.items()}


class _Named(TyperCommand):
    """A command that is not imported yet; the real one takes over with the words that were typed."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return load(str(self.name)).make_context(info_name, args, parent, **extra)


def load(name: str) -> TyperCommand | TyperGroup:
    """Import the command of this name, or the group with its commands."""
    part = COMMANDS[name]
    first, *others = (import_module(f"actors.cli.{module}") for module in part.modules)
    app = first.app if part.is_group else typer.Typer()
    for module in others if part.is_group else [first]:
        module.add_to(app)
    group = get_group(app)
    found = group if part.is_group else group.commands[name]
    assert isinstance(found, TyperCommand | TyperGroup)
    return found
