"""`skylease bench`: the numbers in the README, measured again here."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from actors.cli.console import Answer, progress
from actors.errors import NotThere, WrongUse

# name → (file under benchmarks/, function in it, samples by default)
BENCHES: Final = {
    "turn": ("turn", "bench_turn", 200),
    "acquire": ("acquire", "bench_acquire", 30),
    "wake": ("wake", "bench_wake", 30),
    "density": ("density", "bench_density", 200),
    "snapshot": ("snapshot", "bench_snapshot", 10),
    "ledger": ("ledger", "bench_ledger", 500),
    "firehose": ("firehose", "bench_firehose", 21),
    "fanout": ("fanout", "bench_fanout", 15),
}


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(BENCHES)}.")],
    samples: Annotated[int | None, typer.Option("-n", min=10, help="Samples of each case.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")] = False,
) -> None:
    """Medians and p99 of ours and of its peers, measured in one run; compare the ratios, not the times."""
    if name not in BENCHES:
        raise WrongUse(f"there is no benchmark {name!r}: there is {', '.join(BENCHES)}")
    answer = Answer(as_json=as_json)
    module, function, usual = BENCHES[name]
    progress.print(f"measuring {name} …", markup=False)
    result = _load(module, function)(samples or usual)
    answer.object(result, _table(result))


def _load(module: str, function: str) -> Callable[[int], dict[str, Any]]:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / f"{module}.py"
    if not path.is_file():
        raise NotThere(f"{path} is missing: the benchmarks are in the checkout, not in an installed wheel")
    root = str(path.parents[1])
    if root not in sys.path:  # an installed command finds the rooms, but not what lies beside them
        sys.path.insert(0, root)
    loaded = importlib.import_module(f"benchmarks.{module}")
    found: Callable[[int], dict[str, Any]] = getattr(loaded, function)
    return found


def _table(result: dict[str, Any]) -> Table:
    table = Table(
        title=f"{result['bench']}, {result['unit']}; {result['machine']}", box=None, title_justify="left"
    )
    for head in ("who", "case", "p50", "p99", "n", "times slower than ours"):
        table.add_column(head, justify="left" if head in ("who", "case") else "right")
    for case, row in result["ours"].items():
        table.add_row("skylease", case, f"{row['p50']:.2f}", f"{row['p99']:.2f}", str(row["n"]), "")
    for peer, cases in result["peers"].items():
        for case, row in cases.items():
            ratio = result["ratios"].get(peer, {}).get(case)
            shown = "" if ratio is None else f"{ratio:.1f}"
            table.add_row(peer, case, f"{row['p50']:.2f}", f"{row['p99']:.2f}", str(row["n"]), shown)
    for who, mib in result.get("memory_mib", {}).items():
        table.add_row(who, "MiB of a sandbox (idle, if it says nothing else)", f"{mib:.2f}", "", "", "")
    for who, why in result.get("absent", {}).items():
        table.add_row(who, f"absent: {why}", "", "", "", "")
    return table
