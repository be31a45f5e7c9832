"""The folder of an image: what it says of itself, what its content comes to, and how it is sent to a builder.

An image is one folder: image.toml (the turn script, what its fork server imports once, what a workspace
starts with), the scripts, the skills, and a Dockerfile for the tiers that start from built images. Without a
turn script it is no environment's image: others build on it, or it only runs commands.
"""

import hashlib
import io
import re
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandboxes.errors import InvalidSpec, UnknownImage
from sandboxes.furnishing import NOTHING, WorkspaceSpec, parse_workspace
from sandboxes.spec import ImageSpec

DOCKERFILE: Final = "Dockerfile"
DESCRIPTION: Final = "image.toml"
BUILD_CA: Final = "build-ca.crt"  # certificates of the build's host; the Dockerfiles keep it out of the image
LEFT_OUT: Final = frozenset({"__pycache__", BUILD_CA, "offline.sh"})  # what no image is made of
MAX_FOLDER_BYTES: Final = 64 << 20  # scripts and skills; what is larger belongs into a package or into /data
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFolder:
    """One image's folder. `turn_script` None: nobody can take a turn in it."""

    name: str
    root: Path
    turn_script: str | None
    preload: tuple[str, ...]
    workspace: WorkspaceSpec = NOTHING  # what a sandbox of it starts with

    @property
    def can_be_built(self) -> bool:
        """Whether it has a Dockerfile."""
        return (self.root / DOCKERFILE).is_file()

    @property
    def reference(self) -> str:
        """What the built image is called."""
        return reference_of(self.name)

    def spec(self, *, for_turns: bool = True) -> ImageSpec:
        """Return what a sandbox is made from; not `for_turns`: one that only runs commands.

        Raises:
            InvalidSpec: turns are wanted, and it has no turn script.
        """
        if for_turns and self.turn_script is None:
            raise InvalidSpec(
                "image", f"{self.name} has no turn script: {self.root / DESCRIPTION} names none"
            )
        return ImageSpec(
            name=self.name,
            root=self.root,
            turn_script=self.turn_script,
            preload=self.preload,
            reference=self.reference,
        )

    def digest(self) -> str:
        """Return the SHA-256 of all that is in the folder: names, exec bits and contents."""
        return digest_of(self.root)

    def context(self, build_ca: bytes | None) -> bytes:
        """Return the folder as the tar that a build starts from; the same content gives the same bytes."""
        out = io.BytesIO()
        files = [*_files(self.root), *([(BUILD_CA, build_ca, 0o644)] if build_ca else [])]
        with tarfile.open(fileobj=out, mode="w") as tar:
            for path, content, mode in files:
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode = len(content), mode
                tar.addfile(entry, io.BytesIO(content))
        return out.getvalue()


def reference_of(name: str) -> str:
    """Return what the built image of this name is called."""
    return f"skylease/{name}:dev"


def digest_of(root: Path) -> str:
    """Return the SHA-256 of all that is in an image's folder: names, exec bits and contents.

    Raises:
        InvalidSpec: it is too large for an image's folder.
    """
    sha = hashlib.sha256()
    for path, content, mode in _files(root):
        sha.update(f"{path}\0{mode:o}\0{len(content)}\0".encode() + content)
    return f"sha256:{sha.hexdigest()}"


def provenance(image: ImageSpec) -> str:
    """Return what a sandbox of this image runs, as the ledger keeps it: a name and what its content comes to.

    The built image's digest where there is one, the folder's where there is none, both where the folder has
    changed since and is bound over it.
    """
    if image.digest is None:
        return f"{image.name}@{digest_of(image.root)}"
    changed = f"+{digest_of(image.root)}" if image.bind_root else ""
    return f"{reference_of(image.name)}@{image.digest}{changed}"


def folders(images: Path) -> list[ImageFolder]:
    """Return every image under this folder, by name."""
    names = {file.parent.name for what in (DOCKERFILE, DESCRIPTION) for file in images.glob(f"*/{what}")}
    return [folder(images, name) for name in sorted(names) if _NAME.fullmatch(name)]


def folder(images: Path, name: str) -> ImageFolder:
    """Return the image of this name.

    Raises:
        UnknownImage: there is none.
        InvalidSpec: its image.toml is none.
    """
    root = images / name
    if not _NAME.fullmatch(name) or not any((root / what).is_file() for what in (DOCKERFILE, DESCRIPTION)):
        raise UnknownImage(name, ", ".join(file.name for file in _roots(images)) or "none")
    if not (root / DESCRIPTION).is_file():
        return ImageFolder(name=name, root=root, turn_script=None, preload=())
    try:
        told = tomllib.loads((root / DESCRIPTION).read_text(encoding="utf-8"))
        script = told.get("turn_script")
        return ImageFolder(
            name=name,
            root=root,
            turn_script=None if script is None else str(script),
            preload=tuple(map(str, told.get("preload", ()))),
            workspace=parse_workspace(told.get("workspace", {}), where=f"{name}.workspace", base=root),
        )
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSpec("image", f"{root / DESCRIPTION} cannot be used ({error})") from None


def _files(root: Path) -> list[tuple[str, bytes, int]]:
    found, total = [], 0
    for file in sorted(root.rglob("*")):
        path = file.relative_to(root)
        if not file.is_file() or file.is_symlink() or LEFT_OUT & set(path.parts):
            continue
        total += file.stat().st_size
        if total > MAX_FOLDER_BYTES:
            raise InvalidSpec("image", f"{root} holds more than {MAX_FOLDER_BYTES >> 20} MiB")
        mode = 0o755 if file.stat().st_mode & 0o100 else 0o644
        found.append((path.as_posix(), file.read_bytes(), mode))
    return found


def _roots(images: Path) -> list[Path]:
    return sorted({file.parent for what in (DOCKERFILE, DESCRIPTION) for file in images.glob(f"*/{what}")})
