"""An agent's /data goes from node to node through the store, whoever is killed at whichever step."""

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest

from sandboxes.durable import DurableData
from sandboxes.snapshots import LocalStore, Snapshots
from sandboxes.snapshots.scan import CLOCK_TICK_NS
from sandboxes.snapshots.snapshots import owner_of_data
from tests.killing import killed_at

AGENT = "did:plc:alice"
STEPS = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "link")


async def nobody_lives(_: str) -> bool:
    return False


def node(root: Path, name: str, seed: int = 1) -> DurableData:
    snapshots = Snapshots(LocalStore(root / "store"), root / f"scratch-{name}")
    return DurableData(root / name, snapshots, is_alive=nobody_lives, draw=random.Random(seed))


def lease(data: DurableData, content: str | None) -> str:
    """Hold, read, write, let go; return what was there."""

    async def run() -> str:
        directory = await data.hold(AGENT, "sandbox")
        sheet = directory / "character.json"
        before = sheet.read_text() if sheet.exists() else ""
        if content is not None:
            sheet.write_text(content)
            while time.time_ns() - sheet.stat().st_ctime_ns < 2 * CLOCK_TICK_NS:
                await asyncio.sleep(
                    0.005
                )  # as a sandbox takes to end: what is younger may have changed again
        await data.let_go("sandbox")
        return before

    return asyncio.run(run())


def test_it_goes_from_node_to_node_and_back(tmp_path: Path) -> None:
    names = ["here", "there", "there", "here", "here", "there"]
    last = ""
    for number, name in enumerate(names):
        assert lease(node(tmp_path, name, seed=number), str(number)) == last
        last = str(number)
    assert list(tmp_path.glob("*/data-held/*.superseded")) == []


def test_what_has_not_changed_is_not_kept_again(tmp_path: Path) -> None:
    lease(node(tmp_path, "here"), "x")
    snapshots = Snapshots(LocalStore(tmp_path / "store"), tmp_path / "scratch")
    head = snapshots.store.head(owner_of_data(AGENT))
    lease(node(tmp_path, "here"), None)
    assert snapshots.store.head(owner_of_data(AGENT)) == head
    assert snapshots.owners() == []  # it is no sandbox's, and no repair takes it for one


def test_a_kill_at_any_step_loses_nothing(tmp_path: Path) -> None:
    """On the node that is killed what was written counts; elsewhere the old or the new, never half of it."""
    step, codes = 1, []
    while 0 not in codes:
        root = tmp_path / str(step)
        lease(node(root, "there"), "old")
        codes.append(killed_at(step, [(os, STEPS)], lambda root=root: lease(node(root, "here", 2), "new")))  # type: ignore[misc]
        folder = node(root, "here").directory(AGENT)
        was_written = folder.is_dir() and (folder / "character.json").read_text() == "new"
        assert lease(node(root, "here", 3), None) == ("new" if was_written else "old")
        assert lease(node(root, "there", 4), None) == ("new" if was_written else "old")
        assert list(root.glob("*/data-held/*.superseded")) == []  # nobody was taken for another
        step += 2
        assert step < 100
    assert len(codes) > 5
    assert set(codes) == {0, -signal.SIGKILL}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"agent": 1, "more": 2}'])
def test_what_a_node_knew_is_unreadable(tmp_path: Path, content: bytes) -> None:
    lease(node(tmp_path, "here"), "kept")
    (file,) = (path for path in (tmp_path / "here" / "data-held").glob("*.json") if "index" not in path.name)
    file.write_bytes(content)
    assert lease(node(tmp_path, "here"), None) == "kept"
