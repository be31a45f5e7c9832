"""What a workspace starts with is inside, on every tier; what the agent changed stays its own."""

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxes import FurnishingFailed, InvalidSpec, Sandbox, SandboxBusy, SandboxGone, SandboxSpec, activity
from sandboxes.furnishing import Furnished, Furnisher, Start, WorkspaceSpec, parse_workspace
from sandboxes.furnishing.marker import MARKER
from sandboxes.sleep import resume, suspend
from sandboxes.snapshots import LocalStore, Snapshots

TABLE: dict[str, Any] = {
    "notes": {
        "type": "dir",
        "children": {
            "todo.md": {"type": "file", "content": "1. live"},
            "clock": {"type": "file", "content": "12:00", "ephemeral": True},
            "tool": {"type": "file", "content": "#!/bin/sh\necho works", "executable": True},
        },
    },
    "picture": {"type": "file", "content": "AP8=", "encoding": "base64"},
    "copied": {"type": "local_dir", "source": "tree"},
    "one/deep": {"type": "local_file", "source": "tree/a", "ephemeral": True},
    ".": {"type": "projection", "source": "agent"},
}
LIST = "find . -type f -not -path './.skylease/*' | sort"


class Node:
    """A node's side: its host files, snapshots and furnisher, over one tier."""

    def __init__(self, bench: Any, root: Path) -> None:
        self.bench, self.root = bench, root
        self.furnisher = Furnisher(root)
        self.snapshots = Snapshots(LocalStore(root / "store"), root / "scratch")
        self.host = root / "host"
        (self.host / "agent" / "skills" / "deep").mkdir(parents=True)
        (self.host / "tree" / "empty").mkdir(parents=True)
        (self.host / "tree" / "a").write_text("a")
        (self.host / "agent" / "AGENTS.md").write_text("be kind")
        (self.host / "agent" / "skills" / "deep" / "play.md").write_text("play")
        (self.host / "agent" / "skills" / "link").symlink_to("/etc/passwd")
        self.last: Furnished | None = None

    def spec(self, table: dict[str, Any] = TABLE) -> WorkspaceSpec:
        return parse_workspace(table, where="test", base=self.host)

    async def make(self, name: str, table: dict[str, Any] = TABLE, epoch: int = 1) -> Sandbox:
        async def furnish(_: SandboxSpec, sandbox: Sandbox, is_restored: bool) -> None:
            self.last = await self.furnisher.start(sandbox, self.spec(table), is_restored=is_restored)

        spec = self.bench.spec(name, epoch=epoch)
        sandbox, _ = await resume(self.bench.tier, spec, self.snapshots, furnish=furnish)
        return sandbox

    def started(self) -> Furnished:
        """Return what the last start of a new sandbox did."""
        assert self.last is not None
        return self.last

    async def renew(self, sandbox: Sandbox, table: dict[str, Any] = TABLE) -> Furnished:
        return await self.furnisher.renew(sandbox, self.spec(table))


@pytest.fixture
def node(bench: Any, tmp_path: Path) -> Node:
    return Node(bench, tmp_path)


async def lines(sandbox: Sandbox, command: str) -> list[str]:
    done = await sandbox.exec(command)
    assert done.exit_code == 0, done.stderr_text
    return done.stdout_text.split()


def host_files(root: Path) -> list[str]:
    return sorted(str(path) for path in root.rglob("*"))


async def test_entries_are_inside_and_nothing_new_on_the_host(node: Node, name: str) -> None:
    before = host_files(node.host)
    sandbox = await node.make(name)
    assert (node.started().start, node.started().written) == (Start.FRESH, 8)
    assert node.started().skipped == (str(node.host / "agent/skills/link"),)
    assert await lines(sandbox, LIST) == [
        "./AGENTS.md",
        "./copied/a",
        "./notes/clock",
        "./notes/todo.md",
        "./notes/tool",
        "./one/deep",
        "./picture",
        "./skills/deep/play.md",
    ]
    assert await lines(sandbox, "notes/tool; test -d copied/empty && echo made; od -An -tx1 picture") == [
        "works",
        "made",
        "00",
        "ff",
    ]
    assert host_files(node.host) == before


async def test_the_branches_of_a_start(node: Node, name: str) -> None:
    """Live, restored, restored before it was ready, lost: each writes what it should and nothing else."""
    sandbox = await node.make(name)
    await sandbox.exec("echo mine > notes/todo.md; echo late > notes/clock; rm picture; rm -r copied")
    live = await node.renew(sandbox)
    assert (live.start, live.written) == (Start.LIVE, 1)
    assert await lines(sandbox, "cat notes/todo.md notes/clock; ls") == [
        "mine",
        "12:00AGENTS.md",
        "notes",
        "one",
        "skills",
    ]

    await suspend(node.bench.tier, name, node.snapshots)
    manifest = node.snapshots.newest(name)
    assert manifest is not None
    assert manifest.excludes == ("notes/clock", "one/deep")
    sandbox = await node.make(name, epoch=2)
    assert (node.started().start, node.started().written) == (Start.RESTORED, 2)  # the ephemeral ones
    assert await lines(sandbox, "cat notes/todo.md notes/clock; ls") == [
        "mine",
        "12:00AGENTS.md",
        "notes",
        "one",
        "skills",
    ]

    await sandbox.delete(MARKER)  # a snapshot that knows nothing of its start
    await suspend(node.bench.tier, name, node.snapshots)
    sandbox = await node.make(name, epoch=3)
    assert node.started().start is Start.RESTORED_UNREADY
    assert await lines(sandbox, "cat notes/todo.md; ls") == [
        "mine",
        "AGENTS.md",
        "copied",
        "notes",
        "one",
        "picture",
        "skills",
    ]

    await node.bench.tier.destroy(name)
    node.snapshots.forget(name)
    sandbox = await node.make(name, epoch=4)
    assert node.started().start is Start.LOST
    assert await sandbox.read_file("notes/todo.md") == b"1. live"
    node.furnisher.forget(name)
    await node.bench.tier.destroy(name)
    await node.make(name, epoch=5)
    assert node.started().start is Start.FRESH


async def test_a_projection_follows_the_host_and_only_changes_travel(node: Node, name: str) -> None:
    table = {".": TABLE["."]}
    skills = node.host / "agent" / "skills"
    (skills / "b.md").write_text("b")
    sandbox = await node.make(name, table)
    again = await node.renew(sandbox, table)
    assert (again.written, again.removed) == (0, 0)
    (skills / "deep" / "play.md").write_text("plaY")  # of the same size
    (skills / "b.md").unlink()
    await sandbox.write_file("skills/own.md", b"the agent's own")
    changed = await node.renew(sandbox, table)
    assert (changed.written, changed.written_bytes, changed.removed) == (1, 4, 1)
    assert await lines(sandbox, LIST) == ["./AGENTS.md", "./skills/deep/play.md", "./skills/own.md"]
    assert changed.hash == json.loads(await sandbox.read_file(MARKER))["hash"] != again.hash
    (node.host / "agent" / "AGENTS.md").unlink()
    (skills / "deep" / "play.md").unlink()
    (skills / "deep").rmdir()
    await node.renew(sandbox, table)
    assert await lines(sandbox, "find . -not -path './.skylease*' | sort") == [
        ".",
        "./skills",
        "./skills/own.md",
    ]


@pytest.mark.parametrize(
    "tampering",
    [
        pytest.param("echo evil > skills/deep/play.md", id="another-content"),
        pytest.param(
            "printf PLAY > skills/deep/play.md; touch -d @0 skills/deep/play.md", id="of-the-same-size"
        ),
        pytest.param("rm skills/deep/play.md; mkdir -p skills/deep/play.md/x", id="a-directory"),
        pytest.param("rm -r skills; ln -s /tmp skills", id="a-link-out"),
        pytest.param("rm -r skills; mkdir z; ln -s z skills", id="a-link-within"),
        pytest.param("rm -r skills; mkfifo skills", id="a-pipe"),
        pytest.param("mv skills/deep x; ln -s ../x skills/deep", id="the-same-behind-a-link"),
        pytest.param("rm -r .skylease; ln -s skills .skylease", id="the-marker-behind-a-link"),
        pytest.param(
            'echo \'{"version": 1, "laid": 7}\' > .skylease/workspace.json', id="a-marker-of-nonsense"
        ),
    ],
)
async def test_tampering_inside_is_overwritten_and_never_reaches_the_host(
    node: Node, furnished: Sandbox, tampering: str
) -> None:
    before = {path: path.read_bytes() for path in node.host.rglob("*") if path.is_file()}
    done = await furnished.exec(tampering)
    assert done.exit_code == 0, done.stderr_text
    await node.renew(furnished, {".": TABLE["."]})
    assert await furnished.read_file("skills/deep/play.md") == b"play"
    assert await lines(furnished, "test ! -L skills && test ! -L skills/deep && cat AGENTS.md") == [
        "be",
        "kind",
    ]
    assert (await node.renew(furnished, {".": TABLE["."]})).written == 0
    assert {path: path.read_bytes() for path in node.host.rglob("*") if path.is_file()} == before


@pytest.fixture(scope="module")
def shared_node(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    return Node(bench, tmp_path_factory.mktemp("node"))


@pytest.fixture(scope="module")
def shared_furnished(shared_node: Node) -> Sandbox:
    return asyncio.run(shared_node.make("furnished", {".": TABLE["."]}))


@pytest.fixture
async def furnished(shared_furnished: Sandbox, node: Node) -> Sandbox:
    """A sandbox with a projection that the tests share."""
    await node.renew(shared_furnished, {".": TABLE["."]})
    return shared_furnished


async def test_a_renewal_waits_for_the_turn_and_the_next_turn_for_it(
    node: Node, furnished: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {".": TABLE["."]}
    (node.host / "agent" / "AGENTS.md").write_text("new")
    turn = asyncio.ensure_future(furnished.exec("cat AGENTS.md; sleep 0.5; cat AGENTS.md"))
    while not (await furnished.stats())["running"]:
        await asyncio.sleep(0.01)
    renewal = asyncio.ensure_future(node.renew(furnished, table))
    assert (await turn).stdout == b"be kind" * 2
    await renewal
    assert (await furnished.exec("cat AGENTS.md")).stdout == b"new"
    monkeypatch.setattr("sandboxes.furnishing.furnish.TURN_WAIT_S", 0.05)
    turn = asyncio.ensure_future(furnished.exec("until [ -e go ]; do sleep 0.02; done; rm go"))
    while not (await furnished.stats())["running"]:
        await asyncio.sleep(0.01)
    with pytest.raises(SandboxBusy):
        await node.renew(furnished, table)
    await furnished.write_file("go", b"")
    await turn


async def test_who_died_in_a_renewal_leaves_nothing_half_used(node: Node, furnished: Sandbox) -> None:
    activity.note_unready(furnished.directory)  # as a host that is killed in the middle leaves it
    with pytest.raises(SandboxGone, match="half renewed"):
        await furnished.exec("true")
    await node.renew(furnished, {".": TABLE["."]})
    assert (await furnished.exec("cat AGENTS.md")).stdout == b"be kind"


async def test_a_source_that_is_not_there_leaves_no_sandbox(node: Node, name: str) -> None:
    with pytest.raises(FurnishingFailed, match=r"local_file x: .*nowhere cannot be read"):
        await node.make(name, {"x": {"type": "local_file", "source": "nowhere"}})
    await node.bench.check_gone(name)


async def test_a_source_that_fails_later_changes_nothing(node: Node, furnished: Sandbox) -> None:
    (node.host / "agent" / "AGENTS.md").unlink()
    os.truncate(node.host / "agent" / "skills" / "deep" / "play.md", 17 << 20)
    with pytest.raises(FurnishingFailed, match="more than 16777216"):
        await node.renew(furnished, {".": TABLE["."]})
    assert (await furnished.exec("cat AGENTS.md")).stdout == b"be kind"


async def test_a_repository_is_cloned_at_a_ref(
    node: Node, name: str, clone_source: Callable[[], Awaitable[str]]
) -> None:
    url = await clone_source()
    table = {"repo": {"type": "git_repo", "url": url, "ref": "v1"}}
    sandbox = await node.make(name, table)
    assert node.started().cloned == 1
    assert await sandbox.read_file("repo/file") == b"one\n"
    await sandbox.write_file("repo/file", b"mine")
    assert (await node.renew(sandbox, table)).cloned == 0
    assert await sandbox.read_file("repo/file") == b"mine"
    table["repo"]["ephemeral"] = True  # type: ignore[assignment]
    assert (await node.renew(sandbox, table)).cloned == 1
    assert await sandbox.read_file("repo/file") == b"one\n"
    with pytest.raises(FurnishingFailed, match="git_repo other"):
        await node.renew(sandbox, {"other": {"type": "git_repo", "url": f"{url}-not-there"}})


@pytest.fixture
def clone_source(node: Node, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Awaitable[str]]:
    """Make a repository that a sandbox sees through a mount; returns its path inside."""
    made = node.bench.shown / f"origin-{node.root.name}"
    inside = f"/mnt/{made.name}" if node.bench.tier.name != "unsafe" else str(made)

    async def make() -> str:
        script = (
            f"git init -q -b main {made} && cd {made} && echo one > file && git add file && "
            "git -c user.name=a -c user.email=a@b commit -qm 1 && git tag v1 && echo two > file && "
            "git -c user.name=a -c user.email=a@b commit -qam 2"
        )
        await asyncio.to_thread(subprocess.run, ["sh", "-c", script], check=True)
        return inside

    from sandboxes import Mount

    real = node.bench.spec

    def with_mount(wanted: str, **rest: Any) -> SandboxSpec:
        return real(wanted, mounts=(Mount(source=made, target=f"/mnt/{made.name}"),), **rest)  # type: ignore[no-any-return]

    monkeypatch.setattr(node.bench, "spec", with_mount)
    return make


async def test_a_bind_mount_is_what_the_tier_is_given(node: Node) -> None:
    table = {"/mnt/x": {"type": "bind_mount", "source": "tree"}}
    (mount,) = node.spec(table).mounts
    assert (mount.source, mount.target, mount.read_only) == (node.host / "tree", "/mnt/x", True)
    with pytest.raises(InvalidSpec, match="none of the directories that are allowed"):
        await node.bench.tier.create(node.bench.spec("mounted", mounts=(mount,)))
