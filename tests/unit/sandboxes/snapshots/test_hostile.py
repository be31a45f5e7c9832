"""Archives that no sandbox of ours makes are refused whole; damage is noticed and the older snapshot is
used.
"""

import contextlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxes.snapshots import Layer, Manifest
from sandboxes.snapshots.errors import (
    SnapshotCorrupt,
    SnapshotError,
    SnapshotMissing,
    SnapshotRefused,
    SnapshotVersion,
)
from sandboxes.snapshots.extract import apply_layer as apply_open_layer
from sandboxes.snapshots.manifest import parse_manifest

Member = tuple[str, dict[str, Any], bytes]


def member(name: str, content: bytes = b"", **fields: Any) -> Member:
    return name, fields, content


FIRST = member("removed.json", b"[]")


def archive(members: Sequence[Member]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, fields, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(content) if content else None)
    return out.getvalue()


def as_layer(tmp_path: Path, raw: bytes, *, entries: int, raw_bytes: int) -> tuple[Path, Layer]:
    compressed = zstandard.ZstdCompressor().compress(raw)
    file = tmp_path / "layer"
    file.write_bytes(compressed)
    digest = sha256(compressed).hexdigest()
    return file, Layer(digest=digest, stored_bytes=len(compressed), raw_bytes=raw_bytes, entries=entries)


def apply_layer(file: Path, layer: Layer, target: Path) -> None:
    with open(file, "rb") as opened:
        apply_open_layer(opened, layer, target)


LINK = {"type": tarfile.SYMTYPE}
HARD = {"type": tarfile.LNKTYPE}
HOSTILE: dict[str, list[Member]] = {
    "a path upwards": [FIRST, member("files/../../outside", b"x")],
    "an absolute path": [FIRST, member("/outside", b"x")],
    "an absolute path below": [FIRST, member("files//outside", b"x")],
    "a dot": [FIRST, member("files/./x", b"x")],
    "not below files": [FIRST, member("outside", b"x")],
    "nothing but files": [FIRST, member("files/", b"x")],
    "a name too long": [FIRST, member("files/" + "n" * 256, b"x")],
    "a path too deep": [FIRST, member("files/" + "d/" * 300 + "x", b"x")],
    "a character device": [FIRST, member("files/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "a block device": [FIRST, member("files/disk", type=tarfile.BLKTYPE, devmajor=8)],
    "a hard link out": [FIRST, member("files/x", linkname="/etc/passwd", **HARD)],
    "a hard link upwards": [FIRST, member("files/x", linkname="files/../../outside", **HARD)],
    "a hard link to nothing": [FIRST, member("files/x", linkname="files/absent", **HARD)],
    "a hard link to a link": [
        FIRST, member("files/a", linkname="/etc/passwd", **LINK), member("files/b", linkname="files/a",
        **HARD),
    ],
    "through a link": [FIRST, member("files/a", linkname="..", **LINK), member("files/a/outside", b"x")],
    "through a file": [FIRST, member("files/a", b"x"), member("files/a/b", b"x")],
    "without its directory": [FIRST, member("files/a/b", b"x")],
    "twice": [FIRST, member("files/a", b"x"), member("files/a", b"y")],
    "out of order": [FIRST, member("files/b", b"x"), member("files/a", b"y")],
    "an empty link": [FIRST, member("files/a", linkname="", **LINK)],
    "removal upwards": [member("removed.json", b'["../outside"]')],
    "absolute removal": [member("removed.json", b'["/etc"]')],
    "removal of everything": [member("removed.json", b'[""]')],
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_is_refused(tmp_path: Path, case: str) -> None:
    members = HOSTILE[case]
    (tmp_path / "outside").write_text("untouched")
    target = tmp_path / "target"
    target.mkdir()
    size = sum(len(content) for _, _, content in members[1:])
    file, layer = as_layer(tmp_path, archive(members), entries=len(members) - 1, raw_bytes=size)
    with pytest.raises(SnapshotRefused):
        apply_layer(file, layer, target)
    assert (tmp_path / "outside").read_text() == "untouched"
    assert Path("/etc/passwd").stat().st_nlink == 1


@pytest.mark.parametrize(
    ("entries", "raw_bytes", "error"),
    [(1, 9, SnapshotRefused), (0, 10, SnapshotRefused), (2, 10, SnapshotCorrupt), (1, 11, SnapshotCorrupt)],
)
def test_more_or_less_than_the_manifest_says(
    tmp_path: Path, entries: int, raw_bytes: int, error: type[Exception]
) -> None:
    raw = archive([FIRST, member("files/x", b"0123456789")])
    file, layer = as_layer(tmp_path, raw, entries=entries, raw_bytes=raw_bytes)
    (tmp_path / "target").mkdir()
    with pytest.raises(error):
        apply_layer(file, layer, tmp_path / "target")


def test_a_bomb_is_refused_in_little_memory_and_time(tmp_path: Path) -> None:
    header = tarfile.TarInfo("files/zeros")
    header.size = 1 << 40
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    parts = [compressor.compress(archive([FIRST])[:1024] + header.tobuf())]
    parts += [compressor.compress(bytes(1 << 20)) for _ in range(256)]
    parts.append(compressor.flush())
    file = tmp_path / "layer"
    file.write_bytes(b"".join(parts))
    (tmp_path / "target").mkdir()
    layer = Layer(digest="0" * 64, stored_bytes=file.stat().st_size, raw_bytes=100, entries=1)
    with pytest.raises(SnapshotRefused, match="more than its manifest says"):
        apply_layer(file, layer, tmp_path / "target")
    pax = tarfile.TarInfo("files/x")
    pax.type, pax.size = tarfile.XHDTYPE, 1 << 32
    file, layer = as_layer(tmp_path, archive([FIRST])[:1024] + pax.tobuf(), entries=1, raw_bytes=0)
    with pytest.raises(SnapshotRefused, match="a header of"):
        apply_layer(file, layer, tmp_path / "target")


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(position=st.integers(0), byte=st.integers(1, 255), cut=st.booleans())
def test_any_damage_inside_an_archive_is_a_verdict(
    tmp_path_factory: pytest.TempPathFactory, position: int, byte: int, cut: bool
) -> None:
    members = [FIRST, member("files/a", type=tarfile.DIRTYPE), member("files/a/x", b"0" * 700)]
    raw = bytearray(archive(members))
    position %= 5 * 512 + 1024
    if cut:
        del raw[position:]
    else:
        raw[position] ^= byte
    root = tmp_path_factory.mktemp("damage")
    (root / "target").mkdir()
    file, layer = as_layer(root, bytes(raw), entries=2, raw_bytes=700)
    with contextlib.suppress(SnapshotCorrupt, SnapshotRefused):
        apply_layer(file, layer, root / "target")
    assert sorted(os.listdir(root)) == ["layer", "target"]


def damage(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("what", ["manifest", "layer"])
@pytest.mark.parametrize("how", [damage, Path.unlink, lambda path: os.truncate(path, 10)])
def test_the_snapshot_before_a_damaged_one_is_used_and_that_is_said(
    shelf: Any, what: str, how: Callable[[Path], None]
) -> None:
    (shelf.tree / "file").write_text("old")
    shelf.take()
    (shelf.tree / "file").write_text("new")
    manifest = shelf.take().manifest
    digest = manifest.digest if what == "manifest" else manifest.layers[-1].digest
    how(shelf.blob(digest))
    with pytest.raises((SnapshotCorrupt, SnapshotMissing)):
        shelf.back(strict=True)
    assert (shelf.back() / "file").read_text() == "old"
    assert [refused for refused, _ in shelf.last.refused] == [manifest.digest]
    # The next one does not build on what is damaged, and is whole.
    (shelf.tree / "file").write_text("newer")
    shelf.index = shelf.root / "index-2.json"
    assert shelf.take().is_full
    assert (shelf.back() / "file").read_text() == "newer"
    assert shelf.last.refused == ()


def test_when_none_is_whole_the_newest_ones_reason_is_raised_and_nothing_is_left(shelf: Any) -> None:
    (shelf.tree / "file").write_text("only")
    digest = shelf.take().manifest.layers[0].digest
    damage(shelf.blob(digest))
    before = sorted(os.listdir(shelf.root))
    with pytest.raises(SnapshotCorrupt, match="not those that were written"):
        shelf.back()
    assert sorted(os.listdir(shelf.root)) == before


def test_garbage_is_not_collected_while_a_manifest_cannot_be_read(shelf: Any) -> None:
    (shelf.tree / "file").write_text("x")
    manifest = shelf.take().manifest
    damage(shelf.blob(manifest.digest))
    shelf.now_ms = 10**15
    with pytest.raises(SnapshotCorrupt):
        shelf.snapshots.collect()
    assert shelf.blob(manifest.layers[0].digest).exists()


def test_a_manifest_of_somebody_else_is_refused(shelf: Any) -> None:
    (shelf.tree / "file").write_text("x")
    manifest = shelf.take().manifest
    shelf.store.advance("thief", 1, manifest.digest)
    with pytest.raises(SnapshotCorrupt, match="belongs to owner"):
        shelf.snapshots.restore("thief", shelf.root / "stolen", index=shelf.root / "i")


GOOD = json.loads(
    Manifest(
        owner="o",
        epoch=1,
        created_ms=2,
        layers=(Layer(digest="a" * 64, stored_bytes=1, raw_bytes=2, entries=3),),
    ).to_bytes()
)


@pytest.mark.parametrize(
    "change",
    [
        {"layers": []}, {"layers": [{}]}, {"layers": GOOD["layers"] * 65}, {"epoch": -1}, {"epoch": True},
        {"owner": 5}, {"parent": "../x"}, {"skipped": 4}, {"excludes": [1]}, {"created_ms": 1.5},
        {"layers": [{**GOOD["layers"][0], "digest": "../../etc/passwd"}]},
        {"layers": [{**GOOD["layers"][0], "raw_bytes": "many"}]},
    ],
)  # fmt: skip
def test_a_manifest_that_is_none(change: dict[str, Any]) -> None:
    raw = json.dumps({**GOOD, **change}).encode()
    with pytest.raises(SnapshotCorrupt):
        parse_manifest(raw, sha256(raw).hexdigest())


def test_a_manifest_of_another_version_is_told_apart() -> None:
    raw = json.dumps({**GOOD, "version": 2}).encode()
    with pytest.raises(SnapshotVersion, match="version 2, this is 1"):
        parse_manifest(raw, sha256(raw).hexdigest())


NESTED = st.recursive(st.none() | st.integers(), st.lists).map(lambda value: json.dumps(value).encode())


@settings(max_examples=50, deadline=None)
@given(raw=st.binary(max_size=200) | NESTED)
def test_any_bytes_are_a_manifest_or_refused(raw: bytes) -> None:
    with pytest.raises(SnapshotError):
        parse_manifest(raw, sha256(raw).hexdigest())
