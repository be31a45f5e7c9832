"""Building images with a Docker Engine's classic builder, and finding what has been built.

The engine is the only record: what an image was built from is in its labels, so nothing can disagree with it,
whoever built it and wherever the state directory is.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandboxes.errors import ImageBuildFailed, UnknownImage
from sandboxes.images.folder import DOCKERFILE, ImageFolder, folder, folders, reference_of
from sandboxes.tiers.docker_engine import Engine, EngineDown, EngineError

BASE: Final = "base"  # the image that the others build on
DEFAULT_BASE: Final = "python:3.12-slim-bookworm"  # as in the Dockerfiles
OFFLINE_BASE: Final = "skylease/debian-python:bookworm"  # what images/base/offline.sh makes
LABEL_IMAGE: Final = "skylease.image"
LABEL_SOURCES: Final = "skylease.sources"  # ImageFolder.digest() of what it was built from
LABEL_BASE: Final = "skylease.base"  # what the base was built on, by name
BUILD_SILENCE_S: Final = 900.0  # a step tells nothing while it downloads
LAST_LINES: Final = 20
PROXIES: Final = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
# where a host keeps the certificate authorities that it trusts: Debian and Ubuntu, Fedora, Alpine
CA_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
_STEP: Final = re.compile(r"Step (\d+)/(\d+) : (.*)")
_NO_REGISTRY: Final = re.compile(
    r"no such host|lookup |i/o timeout|connection refused|registry|pull access denied|manifest", re.I
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image as the engine has it."""

    reference: str
    digest: str  # the engine's id of it, sha256:…
    created: str  # RFC 3339
    size_bytes: int
    sources: str | None  # None: not built by us
    base: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How far a build is; `line` is what the builder told last."""

    image: str
    number: int
    of: int
    line: str


def find_built(engine: Engine, reference: str) -> Built | None:
    """Return what the engine has under this name, None if nothing.

    Raises:
        EngineDown: no engine answers.
    """
    found = engine.image(reference)
    if found is None:
        return None
    labels = (found.get("Config") or {}).get("Labels") or {}
    return Built(
        reference=reference,
        digest=str(found["Id"]),
        created=str(found["Created"]),
        size_bytes=int(found["Size"]),
        sources=labels.get(LABEL_SOURCES),
        base=labels.get(LABEL_BASE),
    )


class Builder:
    """Builds the images of one folder, the base before what stands on it.

    Args:
        engine: where they are built.
        images: the folder of the image folders.
        base: what the base image is built on; None: what it was built on last time, else `DEFAULT_BASE`.
        build_ca: file with the certificate authorities for downloads; None: the host's own.
    """

    def __init__(
        self, engine: Engine, images: Path, *, base: str | None = None, build_ca: Path | None = None
    ) -> None:
        self._engine, self._images = engine, images
        before = find_built(engine, reference_of(BASE))
        self.base = base or (before and before.base) or DEFAULT_BASE
        self._build_ca = _certificates(build_ca)

    def order(self, names: list[str]) -> list[ImageFolder]:
        """Return the images to build, in order: those named (default: all), after the base.

        Raises:
            UnknownImage: one of them has no folder, or no Dockerfile.
        """
        can = [found for found in folders(self._images) if found.can_be_built]
        wanted = {BASE, *(names or [found.name for found in can])}
        for name in sorted(wanted):
            if not folder(self._images, name).can_be_built:
                raise UnknownImage(name, ", ".join(found.name for found in can))
        chosen = [found for found in can if found.name in wanted]
        return sorted(chosen, key=lambda found: (found.name != BASE, found.name))

    def build(self, image: ImageFolder, told: Callable[[Step], None]) -> Built:
        """Build one image and return what came of it.

        Raises:
            ImageBuildFailed: the builder gave up; says why.
            EngineDown: no engine answers.
        """
        on = self.base if image.name == BASE else reference_of(BASE)
        messages = self._engine.build(
            image.context(self._build_ca),
            tag=image.reference,
            arguments={"BASE_IMAGE": on, **_proxies(os.environ)},
            labels={
                LABEL_IMAGE: image.name,
                LABEL_SOURCES: image.digest(),
                LABEL_BASE: on,
            },
        )
        try:
            self._follow(image.name, messages, told)
        except EngineDown:
            raise
        except EngineError as error:
            raise ImageBuildFailed(image.name, str(error), (), _remedy(str(error))) from None
        built = find_built(self._engine, image.reference)
        if built is None:
            raise ImageBuildFailed(image.name, f"the engine has no {image.reference} after all")
        return built

    def _follow(self, name: str, messages: Iterator[Mapping[str, Any]], told: Callable[[Step], None]) -> None:
        lines: deque[str] = deque(maxlen=LAST_LINES)
        number = of = 0
        for message in messages:
            if "error" in message:
                reason = " ".join(str(message["error"]).split())[:300]
                raise ImageBuildFailed(name, reason, tuple(lines), _remedy(reason))
            for line in filter(None, map(str.strip, str(message.get("stream", "")).splitlines())):
                step = _STEP.match(line)
                if step:
                    number, of = int(step[1]), int(step[2])
                lines.append(line)
                told(Step(image=name, number=number, of=of, line=line))


def _remedy(reason: str) -> str:
    """What to do about a base image that cannot be had."""
    if _NO_REGISTRY.search(reason):
        return f"where no registry answers, run images/{BASE}/offline.sh as root, then --base {OFFLINE_BASE}"
    return f"see its {DOCKERFILE}"


def _certificates(chosen: Path | None) -> bytes | None:
    """The certificate authorities for a build; behind a proxy of its own a host trusts more than an image."""
    if chosen is not None:
        return chosen.read_bytes()
    named = [os.environ[name] for name in ("PIP_CERT", "SSL_CERT_FILE") if os.environ.get(name)]
    for path in (*named, *CA_BUNDLES):
        if os.path.isfile(path):
            return Path(path).read_bytes()
    return None


def _proxies(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in PROXIES if environment.get(name)}
