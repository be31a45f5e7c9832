"""Reading a layer's archive: POSIX tar (ustar and pax, as the standard library writes it), forward only,
every count bounded.

The standard library's tarfile reads it too, at half the speed of the whole restore; what we write needs
little of what it understands, and what we do not write is refused.
"""

import tarfile
from collections.abc import Iterator
from typing import Final, NamedTuple

import zstandard

from sandboxes.snapshots.errors import SnapshotCorrupt, SnapshotRefused
from sandboxes.snapshots.manifest import Layer

PIECE_BYTES: Final = 1 << 20
BLOCK: Final = tarfile.BLOCKSIZE
MAX_HEADER_BYTES: Final = 64 << 10  # of one entry: two paths of 4 KiB and the times, with room
MAX_REMOVED_BYTES: Final = 64 << 20
MAX_EXTENSIONS: Final = 2  # headers before an entry's own
_END: Final = bytes(BLOCK)
_ACCEPTED: Final = frozenset(
    {tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE}
)


class Member(NamedTuple):
    """One entry; `link` is where a link leads. Only regular files have a size."""

    name: str
    type: bytes
    size: int
    mode: int
    mtime_ns: int
    link: str


class Archive:
    """The entries of a layer in order; after each, `content` gives its bytes, or they are passed over."""

    def __init__(self, reader: zstandard.ZstdDecompressionReader, layer: Layer) -> None:
        self._reader, self._digest = reader, layer.digest
        self._piece = memoryview(b"")
        self._left = layer.raw_bytes + (layer.entries + 4) * MAX_HEADER_BYTES + MAX_REMOVED_BYTES
        self._behind = 0  # bytes of the current entry that nobody has asked for, with padding

    def members(self) -> Iterator[Member]:
        """Yield every entry.

        Raises:
            SnapshotRefused: one is of a kind that we do not write.
            SnapshotCorrupt, EOFError, ValueError: this is no archive.
        """
        extended: dict[str, str] = {}
        extensions = 0
        while True:
            for _ in self._bytes(self._behind):
                pass
            header = b"".join(self._bytes(BLOCK))
            if header == _END:
                return
            self._check(header)
            kind, size = header[156:157], _number(header[124:136])
            if kind == tarfile.XHDTYPE:
                extensions += 1
                if size > MAX_HEADER_BYTES or extensions > MAX_EXTENSIONS:
                    raise SnapshotRefused(self._digest, f"a header of {size} bytes")
                extended |= _records(b"".join(self._bytes(size)))
                self._behind = -size % BLOCK
                continue
            member = self._member(header, kind, extended)
            self._behind = member.size + -member.size % BLOCK
            extended, extensions = {}, 0
            yield member

    def content(self, member: Member) -> Iterator[memoryview]:
        """Yield the bytes of the entry that came last."""
        self._behind -= member.size
        return self._bytes(member.size)

    def _member(self, header: bytes, kind: bytes, extended: dict[str, str]) -> Member:
        prefix, name = _text(header[345:500]), _text(header[:100])
        name = extended.get("path", f"{prefix}/{name}" if prefix else name).rstrip("/")
        size = int(extended.get("size", _number(header[124:136])))
        if kind not in _ACCEPTED or "GNU.sparse.major" in extended:
            raise SnapshotRefused(self._digest, f"{name[:80]!r} is of type {kind!r}")
        if size < 0 or (size and kind != tarfile.REGTYPE):
            raise SnapshotRefused(self._digest, f"{name[:80]!r} has {size} bytes")
        return Member(
            name,
            kind,
            size,
            _number(header[100:108]),
            _nanoseconds(extended.get("mtime", str(_number(header[136:148])))),
            extended.get("linkpath", _text(header[157:257])),
        )

    def _check(self, header: bytes) -> None:
        said = _number(header[148:156])
        if header[257:262] != b"ustar" or said != 256 + sum(header[:148]) + sum(header[156:]):
            raise SnapshotCorrupt(self._digest, "it is no archive (a header is none)")

    def _bytes(self, size: int) -> Iterator[memoryview]:
        """Yield the next `size` bytes."""
        while size:
            if not self._piece:
                piece = self._reader.read(PIECE_BYTES)
                if not piece:
                    raise EOFError("it ends in the middle")
                self._left -= len(piece)
                if self._left < 0:
                    raise SnapshotRefused(self._digest, "more bytes than its manifest says")
                self._piece = memoryview(piece)
            part, self._piece = self._piece[:size], self._piece[size:]
            size -= len(part)
            yield part


def _number(field: bytes) -> int:
    return int(field.rstrip(b"\0 ") or b"0", 8)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _records(content: bytes) -> dict[str, str]:
    """Return the records "LENGTH KEY=VALUE\\n" of a pax header."""
    found = {}
    at = 0
    while at < len(content):
        length, _, _ = content[at : at + 20].partition(b" ")
        end = at + int(length)
        key, equals, value = content[at + len(length) + 1 : end - 1].partition(b"=")
        if end <= at or end > len(content) or content[end - 1 : end] != b"\n" or not equals:
            raise ValueError("a pax record is none")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        at = end
    return found


def _nanoseconds(text: str) -> int:
    seconds, _, fraction = text.partition(".")
    try:
        return int(seconds) * 10**9 + int(fraction.ljust(9, "0")[:9])
    except ValueError:
        return 0
