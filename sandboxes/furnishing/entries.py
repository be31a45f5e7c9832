"""The entries of a workspace: frozen, typed, and checked when they are made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from sandboxes.errors import InvalidSpec
from sandboxes.spec import Mount

OWN_DIRECTORY: Final = ".skylease"  # in /workspace: our marker; no entry may touch it
PROJECTED: Final = ("AGENTS.md", "skills", "subagents", "knowledge")
MAX_ENTRIES: Final = 1_000  # of one workspace, the children of directories included
MAX_CONTENT_BYTES: Final = 1 << 20  # of a file whose content stands in the settings
MAX_PATH_BYTES: Final = 1_024
MAX_NAME_BYTES: Final = 255  # of one component, as in Linux
MAX_DEPTH: Final = 32  # directories within each other
MAX_INCLUDED: Final = 64  # names that a projection shows
MAX_CLONE_DEPTH: Final = 1_000_000
WHOLE: Final = "."  # the path of /workspace itself, for a projection


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file or directory of the host: `path` within `base`, a directory that the operator has named.

    No link in `path` is followed, so nothing outside of `base` is ever read.
    """

    base: Path
    path: str  # "." is base itself

    def __post_init__(self) -> None:
        if not self.base.is_absolute():
            raise InvalidSpec("source", f"{self.base} is not an absolute directory")
        if self.path != WHOLE:
            check_path("source", self.path)

    def __str__(self) -> str:
        return str(self.base if self.path == WHOLE else self.base / self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file whose content is given."""

    path: str  # in /workspace
    content: bytes = field(repr=False)
    executable: bool = False
    ephemeral: bool = (
        False  # written at every start, and in no snapshot; else once, and the agent's from then on
    )

    def __post_init__(self) -> None:
        check_target(self.path)
        if len(self.content) > MAX_CONTENT_BYTES:
            raise InvalidSpec(self.path, f"{len(self.content)} bytes are more than {MAX_CONTENT_BYTES}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A directory; what is to be in it are entries of their own."""

    path: str
    ephemeral: bool = False

    def __post_init__(self) -> None:
        check_target(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile:
    """A copy of a file of the host."""

    path: str
    source: Source
    ephemeral: bool = False

    def __post_init__(self) -> None:
        check_target(self.path)
        if self.source.path == WHOLE:
            raise InvalidSpec(self.path, f"{self.source} is a directory: local_dir copies those")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDir:
    """A copy of a directory of the host and all in it; links are left out."""

    path: str
    source: Source
    ephemeral: bool = False

    def __post_init__(self) -> None:
        check_target(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class GitRepo:
    """A clone, made by the git that is inside, over the network that the sandbox has."""

    path: str
    url: str
    ref: str | None = None  # branch or tag; None: what HEAD says
    depth: int | None = None  # commits; None: all
    ephemeral: bool = False  # cloned anew at every start

    def __post_init__(self) -> None:
        check_target(self.path)
        if not self.url or len(self.url) > MAX_PATH_BYTES:
            raise InvalidSpec(self.path, "it needs the URL of a repository")
        if self.depth is not None and not 1 <= self.depth <= MAX_CLONE_DEPTH:
            raise InvalidSpec(self.path, f"depth {self.depth} is not a number of commits")


@dataclass(frozen=True, slots=True, kw_only=True)
class BindMount:
    """A directory or file of the host itself; the tier's allow-list decides. It is in no snapshot."""

    path: str  # absolute, outside /workspace
    source: Path
    read_only: bool = True
    ephemeral: bool = False  # makes no difference: it is there as long as the sandbox is

    def __post_init__(self) -> None:
        self.as_mount()

    def as_mount(self) -> Mount:
        """Return it as what a tier is given.

        Raises:
            InvalidSpec: it cannot be one.
        """
        return Mount(source=self.source, target=self.path, read_only=self.read_only)


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """What a directory of the host has under some names, kept the same inside at every start, one way."""

    path: str  # the directory in /workspace that they appear in; "." is /workspace
    source: Source
    include: tuple[str, ...] = PROJECTED
    ephemeral: bool = False  # in no snapshot: it is brought again at every start anyway

    def __post_init__(self) -> None:
        if self.path != WHOLE:
            check_target(self.path)
        if not 0 < len(self.include) <= MAX_INCLUDED:
            raise InvalidSpec(self.path, f"include names {len(self.include)}, not 1 to {MAX_INCLUDED}")
        for name in self.roots:
            check_target(name)
        for name in self.include:
            check_path("include", name)
        if len(set(self.include)) != len(self.include):
            raise InvalidSpec(self.path, "include names one twice")

    @property
    def roots(self) -> tuple[str, ...]:
        """Where in /workspace its names appear."""
        return tuple(name if self.path == WHOLE else f"{self.path}/{name}" for name in self.include)


Entry = File | Directory | LocalFile | LocalDir | GitRepo | BindMount | Projection
KINDS: Final[Mapping[str, type[Entry]]] = {
    "file": File,
    "dir": Directory,
    "local_file": LocalFile,
    "local_dir": LocalDir,
    "git_repo": GitRepo,
    "bind_mount": BindMount,
    "projection": Projection,
}
_WORDS: Final = {kind: word for word, kind in KINDS.items()}


def key_of(entry: Entry) -> str:
    """Return what tells an entry from the others of its workspace, and is shown."""
    return f"{_WORDS[type(entry)]} {entry.path}"


def roots_of(entry: Entry) -> tuple[str, ...]:
    """Return what an entry occupies."""
    return entry.roots if isinstance(entry, Projection) else (entry.path,)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceSpec:
    """All that a workspace starts with. Entries may lie within directories, not within other entries."""

    entries: tuple[Entry, ...] = ()

    def __post_init__(self) -> None:
        if len(self.entries) > MAX_ENTRIES:
            raise InvalidSpec("workspace", f"{len(self.entries)} entries are more than {MAX_ENTRIES}")
        owner: dict[str, Entry] = {}
        for entry in self.entries:
            for root in roots_of(entry):
                if root in owner:
                    raise InvalidSpec(root, f"it is both {key_of(owner[root])} and {key_of(entry)}")
                owner[root] = entry
        for root, entry in owner.items():
            for parent in PurePosixPath(root).parents:
                above = owner.get(str(parent))
                if above is None or above is entry:
                    continue
                if not isinstance(above, Directory):
                    raise InvalidSpec(root, f"it would lie within {key_of(above)}")
                if above.ephemeral and not entry.ephemeral:
                    raise InvalidSpec(root, f"{above.path} is ephemeral, so what is in it must be")

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """What the tier has to mount."""
        return tuple(entry.as_mount() for entry in self.entries if isinstance(entry, BindMount))

    @property
    def ephemeral(self) -> tuple[str, ...]:
        """Paths in /workspace that no snapshot holds, each with all below it; sorted."""
        named = {
            root
            for entry in self.entries
            if entry.ephemeral and not isinstance(entry, BindMount)
            for root in roots_of(entry)
        }
        return tuple(
            sorted(path for path in named if not any(str(up) in named for up in PurePosixPath(path).parents))
        )

    def beneath(self, over: "WorkspaceSpec") -> "WorkspaceSpec":
        """Return both, with the entries of `over` in place of ours at the same paths.

        Raises:
            InvalidSpec: the two do not go together.
        """
        taken = {root for entry in over.entries for root in roots_of(entry)}
        kept = tuple(entry for entry in self.entries if not taken & set(roots_of(entry)))
        return WorkspaceSpec(entries=kept + over.entries)


NOTHING: Final = WorkspaceSpec()


def check_path(field_name: str, path: str) -> str:
    """Return a relative path if it is plain: no `..`, no empty component, nothing that is no name.

    Raises:
        InvalidSpec: it is not.
    """
    parts = path.split("/") if isinstance(path, str) else []
    if not parts or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise InvalidSpec(field_name, f"{path!r} is not a plain relative path")
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        raise InvalidSpec(field_name, f"{path!r} is not Unicode text") from None
    if len(raw) > MAX_PATH_BYTES or len(parts) > MAX_DEPTH:
        raise InvalidSpec(field_name, f"{path[:80]!r} is longer or deeper than any path that is written")
    if any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise InvalidSpec(field_name, f"{path[:80]!r} has a name of more than {MAX_NAME_BYTES} bytes")
    return path


def check_target(path: str) -> str:
    """Return a path in /workspace if an entry may be there.

    Raises:
        InvalidSpec: it may not.
    """
    check_path("path", path)
    if path.split("/", 1)[0] == OWN_DIRECTORY:
        raise InvalidSpec("path", f"{OWN_DIRECTORY} is skylease's own")
    return path
