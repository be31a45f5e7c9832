"""What a person sees of a node's pool: in `status` and in `sandboxes list`."""

from pathlib import Path

from actors.cli.system import _pool
from actors.inventory import Inventory
from actors.settings import Settings
from sandboxes.pool.book import BOOK_NAME, Book
from sandboxes.pool.ground import Ground
from sandboxes.pool.policy import PoolPolicy
from sandboxes.pool.pool import Pool
from sandboxes.pool.states import Cause, Kind
from sandboxes.pool.tally import Tally
from sandboxes.snapshots import LocalStore, Snapshots
from sandboxes.tiers.registry import open_tier


def filled(node: Path) -> Pool:
    """A pool whose book knows one that sleeps and one slot, and which has had to refuse somebody."""
    book = Book(node / BOOK_NAME, clock=lambda: 5)
    ground = Ground(
        tier=open_tier("unsafe", node / "sandboxes"),
        snapshots=Snapshots(LocalStore(node / "store"), node / "scratch"),
        book=book,
        policy=PoolPolicy(capacity=4, warm_slots=2),
        tally=Tally(),
    )
    pool = Pool(ground)
    for cause in (Cause.ORDERED, Cause.READY, Cause.EVICTED, Cause.KEPT):
        book.move("sleeper", cause, epoch=3)
    book.move("slot-0123456789abcdef", Cause.ORDERED, kind=Kind.SLOT)
    book.move("slot-0123456789abcdef", Cause.READY, kind=Kind.SLOT)
    ground.tally.evictions["warm"] += 1
    ground.tally.cold_hits["local"] += 2
    ground.tally.slot_hits = ground.tally.refused = 1
    return pool


def test_status_tells_of_room_slots_and_who_gave_way(tmp_path: Path) -> None:
    stats = filled(tmp_path).stats()
    assert _pool(stats) == [
        "pool 1 of 4 in use: 1 cold",
        "pool slots: 1 warm, 0 warming; 1 used, 0 missed",
        "pool came from: 2 local",
        "pool gave way: 1 warm; 1 refused",
    ]
    assert {"total", "cold", "warming", "warm", "waiting", "running", "capacity"} <= stats.keys()
    assert (stats["resume_warm_hits"], stats["resume_cold_hits"], stats["prewarm_hits"]) == (0, 2, 0)
    assert stats["transitions"]["suspending > cold"]["n"] == 1


async def test_the_list_has_sleeping_ones_and_slots(tmp_path: Path) -> None:
    filled(tmp_path / "nodes" / "127.0.0.1")
    (tmp_path / "nodes" / "127.0.0.1" / "sandboxes").mkdir(exist_ok=True)
    rows = await Inventory(Settings(data_dir=str(tmp_path))).rows()
    assert [(row["name"], row["kind"], row["state"], row["epoch"]) for row in rows] == [
        ("sleeper", "sandbox", "cold", 3),
        ("slot-0123456789abcdef", "slot", "warm", 0),
    ]
    assert {tuple(row) for row in rows} == {tuple(rows[0])}  # every row has the same fields
