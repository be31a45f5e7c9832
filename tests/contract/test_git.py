"""Checking out repositories by real git: from a path, from a server inside, from a mount of the host."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sandboxes import (
    BranchNotFound,
    FileAlreadyExists,
    FileNotDirectory,
    GitDenied,
    InvalidSpec,
    Mount,
    RepositoryNotFound,
    RepositoryUnreachable,
    Sandbox,
    SandboxError,
    SandboxTimeoutError,
)

MAKE = """
set -e
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q -b main origin && cd origin
for n in 1 2 3; do echo $n > file; git add file; git commit -q -m $n; done
git tag v1
git checkout -q -b side && echo side > file && git commit -qam side && git checkout -q main
git rev-parse HEAD
"""
DENIES = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(401 if self.path.startswith('/private') else 404)
        self.send_header('WWW-Authenticate', 'Basic realm="x"')
        self.end_headers()
http.server.HTTPServer(('127.0.0.1', %d), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def head(sandbox: Sandbox) -> str:
    """The commit that the repository at /workspace/origin has at its head."""
    made = asyncio.run(sandbox.exec(MAKE))
    assert made.exit_code == 0, made.stderr_text
    return made.text.strip()


async def origin(sandbox: Sandbox) -> str:
    """Return where the repository really is (the tier unsafe has no /workspace)."""
    return (await sandbox.exec(["pwd"], cwd="/workspace/origin")).text.strip()


async def log(sandbox: Sandbox, path: str) -> list[str]:
    return (await sandbox.exec(["git", "log", "--format=%s"], cwd=path)).text.split()


async def test_a_repository_is_cloned_to_a_directory_of_its_name(sandbox: Sandbox, head: str) -> None:
    checkout = await sandbox.git_checkout(await origin(sandbox), target="plain")
    assert (checkout.path, checkout.commit, checkout.branch) == ("/workspace/plain", head, "main")
    assert await sandbox.read_file("plain/file") == b"3\n"
    with pytest.raises(FileAlreadyExists):
        await sandbox.git_checkout(await origin(sandbox), target="plain")
    with pytest.raises(FileAlreadyExists):
        await sandbox.git_checkout(await origin(sandbox))  # its own name is taken by itself
    with pytest.raises(FileNotDirectory):
        await sandbox.git_checkout(await origin(sandbox), target="plain/file")
    await sandbox.delete("plain", recursive=True)


async def test_branch_tag_and_depth(sandbox: Sandbox, head: str) -> None:
    await sandbox.mkdir("empty/deep")
    side = await sandbox.git_checkout(await origin(sandbox), branch="side", target="empty/deep")
    assert side.branch == "side"
    assert await sandbox.read_file("/workspace/empty/deep/file") == b"side\n"
    assert await log(sandbox, "empty/deep") == ["side", "3", "2", "1"]
    tag = await sandbox.git_checkout(await origin(sandbox), branch="v1", target="tagged")
    assert (tag.branch, tag.commit) == (None, head)
    await sandbox.git_checkout(await origin(sandbox), depth=2, target="/workspace/shallow")
    assert await log(sandbox, "shallow") == ["3", "2"]
    assert (await sandbox.exec(["git", "status", "--short"], cwd="shallow")).text == ""


async def test_over_a_network(sandbox: Sandbox, head: str, unused_port: int) -> None:
    base = (await origin(sandbox)).removesuffix("/origin")
    line = ["git", "daemon", "--export-all", f"--base-path={base}", "--listen=127.0.0.1"]
    server = await sandbox.start_process([*line, f"--port={unused_port}", base])
    await server.wait_for_port(unused_port, timeout=20)
    url = f"git://127.0.0.1:{unused_port}"
    assert (await sandbox.git_checkout(f"{url}/origin", target="served", depth=1)).commit == head
    with pytest.raises(RepositoryNotFound):
        await sandbox.git_checkout(f"{url}/nothing")
    await server.kill()


async def test_named_errors_and_nothing_left_behind(sandbox: Sandbox, head: str, unused_port: int) -> None:
    server = await sandbox.start_process(["python3", "-c", DENIES % unused_port])
    await server.wait_for_port(unused_port, timeout=20)
    url = f"http://user:s3cret@127.0.0.1:{unused_port}"
    before = [entry.path for entry in await sandbox.list_files()]
    cases: list[tuple[type[SandboxError], str, str | None]] = [
        (RepositoryNotFound, "/workspace/nowhere/at/all", None),
        (BranchNotFound, await origin(sandbox), "no-such-branch"),
        (GitDenied, f"{url}/private", None),
        (RepositoryNotFound, f"{url}/public", None),
        (RepositoryUnreachable, "git://127.0.0.1:1/x", None),
    ]
    for kind, repository, branch in cases:
        with pytest.raises(kind) as caught:
            await sandbox.git_checkout(repository, branch=branch, target="wanted")
        assert "s3cret" not in str(caught.value)
        assert "\n" not in str(caught.value)
    assert [entry.path for entry in await sandbox.list_files()] == before
    await server.kill()


@pytest.mark.parametrize(
    ("repository", "more"),
    [
        ("--upload-pack=touch /tmp/x", {}),
        ("ext::sh -c touch% x", {}),
        ("relative/path", {}),
        ("ftp://host/x", {}),
        ("https:///x", {}),
        ("/x", {"branch": "--force"}),
        ("/x", {"branch": "a b"}),
        ("/x", {"branch": "a..b"}),
        ("/x", {"depth": 0}),
        ("/x", {"timeout": -1.0}),
        ("/..", {}),
    ],
)
async def test_arguments_that_cannot_be(sandbox: Sandbox, repository: str, more: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec):
        await sandbox.git_checkout(repository, **more)


async def test_a_clone_that_takes_too_long_leaves_nothing(sandbox: Sandbox, unused_port: int) -> None:
    silent = (
        f"import socket\ns = socket.create_server(('127.0.0.1', {unused_port}))\nwhile True: c = s.accept()"
    )
    server = await sandbox.start_process(["python3", "-c", silent])
    await server.wait_for_port(unused_port, timeout=20)
    before = [entry.path for entry in await sandbox.list_files()]
    with pytest.raises(SandboxTimeoutError):
        await sandbox.git_checkout(f"git://127.0.0.1:{unused_port}/x", timeout=0.5)
    assert [entry.path for entry in await sandbox.list_files()] == before
    assert not [entry.path for entry in await sandbox.list_files("/tmp") if "skylease-git" in entry.path]
    await server.kill()


async def test_credentials_are_not_kept(sandbox: Sandbox, head: str) -> None:
    path = await origin(sandbox)
    await sandbox.git_checkout(f"file://user:s3cret@localhost{path}", target="clean")
    assert b"s3cret" not in await sandbox.read_file("clean/.git/config")


async def test_from_a_mount_of_the_host(bench: Any) -> None:
    bench.need("mounts")
    repository: Path = bench.shown / "repository"
    done = subprocess.run(  # noqa: ASYNC221 - it takes milliseconds
        ["sh", "-c", f"mkdir -p {repository} && cd {repository} && {MAKE.lstrip()}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    mounts = (Mount(source=repository, target="/repositories"),)
    sandbox = await bench.tier.create(bench.spec("cloner", mounts=mounts))
    try:
        checkout = await sandbox.git_checkout("/repositories/origin")
        assert (checkout.path, checkout.commit) == ("/workspace/origin", done.stdout.strip())
        assert (await sandbox.git_checkout("/repositories/origin", depth=1, target="one")).branch == "main"
    finally:
        await bench.tier.destroy("cloner")
