"""Reading a workspace from tables, as image.toml, the settings and files of `--workspace` have them.

    ["notes/README.md"]
    type = "file"
    content = "…"
    ephemeral = true

The key is the path in /workspace, for a bind_mount the absolute path inside, for a projection the directory
that it appears in. A `source` is relative to where the table stands, or absolute beneath an allowed
directory.
"""

import base64
import binascii
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from sandboxes.errors import InvalidSpec
from sandboxes.furnishing.entries import (
    KINDS,
    MAX_DEPTH,
    MAX_ENTRIES,
    PROJECTED,
    BindMount,
    Directory,
    Entry,
    File,
    GitRepo,
    LocalDir,
    LocalFile,
    Projection,
    Source,
    WorkspaceSpec,
)

MAX_TABLE_BYTES: Final = 8 << 20  # of a file of `--workspace`
_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "file": frozenset({"content", "encoding", "executable"}),
    "dir": frozenset({"children"}),
    "local_file": frozenset({"source"}),
    "local_dir": frozenset({"source"}),
    "git_repo": frozenset({"url", "ref", "depth"}),
    "bind_mount": frozenset({"source", "read_only"}),
    "projection": frozenset({"source", "include"}),
}


def parse_workspace(
    table: object, *, where: str, base: Path | None, allowed: Sequence[Path] = ()
) -> WorkspaceSpec:
    """Return the workspace that a table describes.

    Args:
        table: entries by path.
        where: what errors call the table.
        base: the directory that relative sources are in; None: there is none, they must be absolute.
        allowed: directories that absolute sources may be in.

    Raises:
        InvalidSpec: it is none; says which entry.
    """
    reader = _Reader(where=where, base=base, allowed=tuple(allowed), found=[])
    reader.read(table, "", ephemeral=False, depth=0)
    try:
        return WorkspaceSpec(entries=tuple(reader.found))
    except InvalidSpec as invalid:
        raise InvalidSpec(f"{where}.{invalid.field}", invalid.reason) from None


def read_workspace(file: Path, allowed: Sequence[Path] = ()) -> WorkspaceSpec:
    """Return the workspace that a TOML or JSON file describes; relative sources are beside it.

    Raises:
        InvalidSpec: it cannot be read, or is none.
    """
    try:
        with open(file, "rb") as opened:
            raw = opened.read(MAX_TABLE_BYTES + 1)
        if len(raw) > MAX_TABLE_BYTES:
            raise InvalidSpec(str(file), f"it has more than {MAX_TABLE_BYTES} bytes")
        text = raw.decode()
        table = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InvalidSpec(str(file), f"it cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InvalidSpec(str(file), f"it is neither TOML nor JSON ({error})") from None
    return parse_workspace(table, where=file.name, base=file.absolute().parent, allowed=allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    where: str
    base: Path | None
    allowed: tuple[Path, ...]
    found: list[Entry]

    def read(self, table: object, prefix: str, *, ephemeral: bool, depth: int) -> None:
        if not isinstance(table, Mapping) or not all(isinstance(key, str) for key in table):
            raise InvalidSpec(f"{self.where}.{prefix}".rstrip("./"), "it is not a table of entries by path")
        if depth > MAX_DEPTH:
            raise InvalidSpec(self.where, f"directories are more than {MAX_DEPTH} deep")
        for key, value in table.items():
            path = f"{prefix}{key}"
            if len(self.found) >= MAX_ENTRIES:
                raise InvalidSpec(self.where, f"it has more than {MAX_ENTRIES} entries")
            try:
                entry, children = self._entry(path, value, ephemeral)
            except InvalidSpec as invalid:
                raise InvalidSpec(f"{self.where}.{path}", _told(invalid, path)) from None
            self.found.append(entry)
            if children is not None:
                self.read(children, f"{path}/", ephemeral=entry.ephemeral, depth=depth + 1)

    def _entry(self, path: str, value: object, inherited: bool) -> tuple[Entry, object]:
        if not isinstance(value, Mapping):
            raise InvalidSpec("", "it is not a table with a type")
        kind = value.get("type")
        if not isinstance(kind, str) or kind not in KINDS:
            raise InvalidSpec("type", f"{kind!r} is none of {', '.join(KINDS)}")
        unknown = set(value) - _KEYS[kind] - {"type", "ephemeral"}
        if unknown:
            raise InvalidSpec("", f"{kind} has no {', '.join(sorted(map(str, unknown)))}")
        ephemeral = _flag(value, "ephemeral", False) or inherited
        match kind:
            case "file":
                executable = _flag(value, "executable", False)
                content = _content(value)
                return File(path=path, content=content, executable=executable, ephemeral=ephemeral), None
            case "dir":
                return Directory(path=path, ephemeral=ephemeral), value.get("children")
            case "local_file":
                return LocalFile(path=path, source=self._source(value), ephemeral=ephemeral), None
            case "local_dir":
                return LocalDir(path=path, source=self._source(value), ephemeral=ephemeral), None
            case "git_repo":
                return _git_repo(path, value, ephemeral), None
            case "bind_mount":
                return self._bind_mount(path, value, ephemeral), None
            case _:
                include = _words(value, "include", PROJECTED)
                source = self._source(value)
                return Projection(path=path, source=source, include=include, ephemeral=ephemeral), None

    def _source(self, value: Mapping[str, Any]) -> Source:
        told = _text(value, "source")
        if not told.startswith("/"):
            if self.base is None:
                raise InvalidSpec("source", f"{told!r} must be absolute here")
            return Source(base=self.base, path=told)
        path = PurePosixPath(told)
        if ".." in path.parts:
            raise InvalidSpec("source", f"{told!r} climbs with '..'")
        for allowed in self.allowed:
            if path.is_relative_to(allowed):
                return Source(base=allowed, path=str(path.relative_to(allowed)))
        raise InvalidSpec("source", f"{told} is under none of the directories that are allowed")

    def _bind_mount(self, path: str, value: Mapping[str, Any], ephemeral: bool) -> BindMount:
        told = _text(value, "source")
        source = Path(told)
        if ".." in source.parts:
            raise InvalidSpec("source", f"{told!r} climbs with '..'")
        if not source.is_absolute():
            if self.base is None:
                raise InvalidSpec("source", f"{told!r} must be absolute here")
            source = self.base / source
        read_only = _flag(value, "read_only", True)
        return BindMount(path=path, source=source, read_only=read_only, ephemeral=ephemeral)


def _git_repo(path: str, value: Mapping[str, Any], ephemeral: bool) -> GitRepo:
    depth = value.get("depth")
    if depth is not None and (not isinstance(depth, int) or isinstance(depth, bool)):
        raise InvalidSpec("depth", f"{depth!r} is not a number of commits")
    ref = None if value.get("ref") in (None, "HEAD") else _text(value, "ref")
    return GitRepo(path=path, url=_text(value, "url"), ref=ref, depth=depth, ephemeral=ephemeral)


def _content(value: Mapping[str, Any]) -> bytes:
    content, encoding = value.get("content"), value.get("encoding", "utf-8")
    if not isinstance(content, str):
        raise InvalidSpec("content", "it is missing" if content is None else "it is not text")
    try:
        if encoding == "utf-8":
            return content.encode()
        if encoding == "base64":
            return base64.b64decode(content, validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError) as error:
        raise InvalidSpec("content", f"it is not {encoding} ({error})") from None
    raise InvalidSpec("encoding", f"{encoding!r} is neither utf-8 nor base64")


def _text(value: Mapping[str, Any], key: str) -> str:
    if key not in value:
        raise InvalidSpec(key, "it is missing")
    if not isinstance(value[key], str) or "\0" in value[key]:
        raise InvalidSpec(key, f"{str(value[key])[:80]!r} is not text without NUL")
    return str(value[key])


def _words(value: Mapping[str, Any], key: str, default: tuple[str, ...]) -> tuple[str, ...]:
    words = value.get(key, default)
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise InvalidSpec(key, "it is not a list of names")
    return tuple(words)


def _flag(value: Mapping[str, Any], key: str, default: bool) -> bool:
    flag = value.get(key, default)
    if not isinstance(flag, bool):
        raise InvalidSpec(key, f"{str(flag)[:80]!r} is neither true nor false")
    return flag


def _told(invalid: InvalidSpec, path: str) -> str:
    return invalid.reason if invalid.field in ("", path) else f"{invalid.field}: {invalid.reason}"
