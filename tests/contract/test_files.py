"""File operations: every verb, its named errors, and no way out."""

import hashlib
import os
from collections.abc import AsyncIterator

import pytest

from sandboxes import (
    FileAlreadyExists,
    FileError,
    FileIsDirectory,
    FileMissing,
    FileNotDirectory,
    PathRefused,
    RefusedByRunner,
    Sandbox,
)

CONTENTS = [b"", b"text", bytes(range(256)) * 10, b"\0" * 5_000_000]


@pytest.mark.parametrize("content", CONTENTS, ids=["empty", "text", "binary", "several-pieces"])
async def test_what_is_written_is_read(sandbox: Sandbox, content: bytes) -> None:
    await sandbox.write_file("round", content)
    assert await sandbox.read_file("round") == content
    assert await sandbox.read_file("/workspace/./round") == content


async def test_forty_megabytes(sandbox: Sandbox) -> None:
    content = os.urandom(1 << 20) * 40
    await sandbox.write_file("large", content)
    assert await sandbox.read_file("large") == content
    await sandbox.delete("large")


async def test_a_stream_is_written_and_read_in_pieces(sandbox: Sandbox) -> None:
    piece = os.urandom(1 << 20)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield piece
        yield b"end"

    await sandbox.write_file("streamed", pieces(), mode=0o750)
    digest, largest = hashlib.sha256(), 0
    async for part in sandbox.stream_file("streamed"):
        digest.update(part)
        largest = max(largest, len(part))
    assert digest.digest() == hashlib.sha256(piece * 40 + b"end").digest()
    assert largest <= 4 << 20
    assert (await sandbox.exec("test -x streamed")).exit_code == 0
    await sandbox.delete("streamed")


async def test_a_stream_that_breaks_leaves_what_was_there(sandbox: Sandbox) -> None:
    await sandbox.mkdir("broken")
    await sandbox.write_file("broken/file", b"before")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * (9 << 20)
        raise ConnectionError("the source ended")

    with pytest.raises(ConnectionError):
        await sandbox.write_file("broken/file", pieces())
    assert await sandbox.read_file("broken/file") == b"before"
    assert [entry.path for entry in await sandbox.list_files("broken")] == ["file"]


async def test_names_that_are_no_text_can_be_listed_and_used(sandbox: Sandbox) -> None:
    await sandbox.exec(
        ["python3", "-c", "import os; os.mkdir('raw'); open(b'raw/\\xff\\xfe', 'w').write('x')"]
    )
    (entry,) = await sandbox.list_files("raw")
    assert os.fsencode(entry.path) == b"\xff\xfe"
    assert await sandbox.read_file(f"raw/{entry.path}") == b"x"
    await sandbox.rename(f"raw/{entry.path}", "raw/text")
    await sandbox.delete("raw", recursive=True)


async def test_a_name_that_is_too_long_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises((RefusedByRunner, FileError)):
        await sandbox.write_file("a" * 256, b"")
    with pytest.raises((RefusedByRunner, FileError)):
        await sandbox.mkdir("/".join(["d" * 250] * 20))


@pytest.mark.parametrize("name", ["ünï cödé 🎲", "with'quote\"", "-rf", "new\nline", "a" * 255])
async def test_any_name(sandbox: Sandbox, name: str) -> None:
    await sandbox.mkdir("names")
    await sandbox.write_file(f"names/{name}", b"x")
    assert [entry.path for entry in await sandbox.list_files("names")] == [name]
    assert await sandbox.exists(f"names/{name}")
    await sandbox.delete("names", recursive=True)
    assert not await sandbox.exists("names")


async def test_commands_see_the_same_files(sandbox: Sandbox) -> None:
    await sandbox.write_file("tool.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert (await sandbox.exec(["./tool.sh"])).text == "ran\n"
    await sandbox.write_file("tool.sh", b"#!/bin/sh\necho again\n")  # the mode stays
    assert (await sandbox.exec(["./tool.sh"])).text == "again\n"
    await sandbox.exec("echo made > made.txt")
    assert await sandbox.read_file("made.txt") == b"made\n"


async def test_listing(sandbox: Sandbox) -> None:
    await sandbox.mkdir("list/inner")
    await sandbox.write_file("list/b", b"12345")
    await sandbox.write_file("list/inner/c", b"")
    await sandbox.exec("ln -s b list/link")
    flat = await sandbox.list_files("list")
    assert [(e.path, e.kind) for e in flat] == [("b", "file"), ("inner", "directory"), ("link", "link")]
    assert flat[0].size == 5
    assert flat[0].modified_ms > 1_600_000_000_000
    assert [e.path for e in await sandbox.list_files("list", recursive=True)] == [
        "b",
        "inner",
        "inner/c",
        "link",
    ]
    with pytest.raises(FileNotDirectory):
        await sandbox.list_files("list/b")
    with pytest.raises(FileMissing):
        await sandbox.list_files("nowhere")


async def test_delete_refuses_directories_unless_told(sandbox: Sandbox) -> None:
    await sandbox.mkdir("tree/a/b")
    await sandbox.write_file("tree/a/b/c", b"")
    await sandbox.exec("chmod 0 tree/a/b")
    with pytest.raises(FileIsDirectory):
        await sandbox.delete("tree")
    await sandbox.delete("tree", recursive=True)
    with pytest.raises(FileMissing):
        await sandbox.delete("tree")


async def test_deep_trees_can_be_deleted(sandbox: Sandbox) -> None:
    script = (
        "import os\nos.makedirs('deep'); os.chdir('deep')\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
    )
    assert (await sandbox.exec(["python3", "-c", script])).exit_code == 0
    await sandbox.delete("deep", recursive=True)
    assert not await sandbox.exists("deep")


async def test_rename(sandbox: Sandbox) -> None:
    await sandbox.write_file("old", b"1")
    await sandbox.rename("old", "/workspace/new")
    assert await sandbox.read_file("new") == b"1"
    await sandbox.mkdir("full/of")
    await sandbox.mkdir("other")
    with pytest.raises(FileAlreadyExists):
        await sandbox.rename("other", "full")
    with pytest.raises(FileMissing):
        await sandbox.rename("old", "x")


async def test_named_errors(sandbox: Sandbox) -> None:
    await sandbox.mkdir("directory")
    with pytest.raises(FileMissing):
        await sandbox.read_file("absent")
    with pytest.raises(FileIsDirectory):
        await sandbox.read_file("directory")
    with pytest.raises(FileMissing):
        await sandbox.write_file("absent/file", b"")
    with pytest.raises(PathRefused):
        await sandbox.write_file("directory", b"")
    with pytest.raises(FileNotDirectory):
        await sandbox.mkdir("tool.sh/x") if await sandbox.exists("tool.sh") else await _file_as_directory(
            sandbox
        )
    assert [e.path for e in await sandbox.list_files("directory")] == []  # no half-written file is left


async def _file_as_directory(sandbox: Sandbox) -> None:
    await sandbox.write_file("plain", b"")
    await sandbox.mkdir("plain/x")


OUTSIDE = [
    "/etc/passwd",
    "../../etc/passwd",
    "/workspace/../etc/passwd",
    "/proc/self/environ",
    "a/../../b",
    "/",
    "x\0y",
]


@pytest.mark.parametrize("path", OUTSIDE)
async def test_paths_that_lead_out_are_refused(sandbox: Sandbox, path: str) -> None:
    for operation in (
        sandbox.read_file(path),
        sandbox.write_file(path, b"x"),
        sandbox.delete(path),
        sandbox.rename(path, "here"),
        sandbox.mkdir(path),
    ):
        with pytest.raises((PathRefused, FileIsDirectory)):
            await operation


@pytest.mark.parametrize("path", ["", ".", "/workspace", "/tmp"])
async def test_the_roots_themselves_stay(sandbox: Sandbox, path: str) -> None:
    for operation in (
        sandbox.write_file(path, b"x"),
        sandbox.delete(path, recursive=True),
        sandbox.rename(path, "x"),
    ):
        with pytest.raises(PathRefused):
            await operation
    assert await sandbox.exists(path)


@pytest.mark.parametrize("target", ["/etc", "../../..", "/proc/self/root", "/proc/self/cwd/.."])
async def test_links_that_lead_out_are_refused(sandbox: Sandbox, target: str) -> None:
    await sandbox.exec(["ln", "-sfn", target, "escape"])
    with pytest.raises(PathRefused):
        await sandbox.read_file("escape/passwd")
    with pytest.raises(PathRefused):
        await sandbox.write_file("escape/passwd", b"x")
    with pytest.raises(PathRefused):
        await sandbox.list_files("escape")
    with pytest.raises(PathRefused):
        await sandbox.delete("escape/passwd")
    with pytest.raises(PathRefused):
        await sandbox.mkdir("escape/deeper")
    assert await sandbox.exists("escape")
    await sandbox.delete("escape")  # the link itself


async def test_a_link_to_a_file_outside_is_neither_read_nor_written_through(sandbox: Sandbox) -> None:
    await sandbox.exec("ln -sfn /etc/hosts hosts; echo inside > target; ln -sfn target inner")
    with pytest.raises(PathRefused):
        await sandbox.read_file("hosts")
    await sandbox.write_file("hosts", b"mine")  # replaces the link
    assert await sandbox.read_file("hosts") == b"mine"
    assert await sandbox.read_file("inner") == b"inside\n"


async def test_special_files_are_not_read(sandbox: Sandbox) -> None:
    await sandbox.exec("mkfifo fifo")
    with pytest.raises(PathRefused, match="not a regular file"):
        await sandbox.read_file("fifo")
