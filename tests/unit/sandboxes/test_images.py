"""Image folders, and building them: what is sent, in which order, and what is said when it fails."""

import io
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandboxes import ImageBuildFailed, InvalidSpec, UnknownImage
from sandboxes.images.build import DEFAULT_BASE, Builder, Step
from sandboxes.images.folder import BUILD_CA, digest_of, folder, folders, provenance
from sandboxes.tiers.docker_engine import Engine, EngineDown, EngineError

ROOT = Path(__file__).resolve().parents[3]
IMAGES = ROOT / "images"


class FakeEngine(Engine):
    """An engine that remembers what it was asked to build, and answers with these messages."""

    def __init__(self, *messages: Mapping[str, Any] | EngineError) -> None:
        super().__init__()
        self.messages = messages
        self.images: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []

    def image(self, reference: str) -> dict[str, Any] | None:
        return self.images.get(reference)

    def build(
        self, context: bytes, *, tag: str, arguments: Mapping[str, str], labels: Mapping[str, str]
    ) -> Iterator[dict[str, Any]]:
        self.asked.append((tag, dict(arguments)))
        for message in self.messages:
            if isinstance(message, EngineError):
                raise message
            yield dict(message)
        digest = f"sha256:{len(self.asked):064x}"
        self.images[tag] = {"Id": digest, "Created": "now", "Size": 1, "Config": {"Labels": dict(labels)}}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for name in ("base", "catan"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "Dockerfile").write_text("FROM x\n")
    (tmp_path / "catan/image.toml").write_text('turn_script = "take_turn.py"\npreload = ["json"]\n')
    (tmp_path / "catan/take_turn.py").write_text("pass\n")
    return tmp_path


def test_the_digest_is_of_names_bits_and_contents_and_of_nothing_else(images: Path) -> None:
    catan = images / "catan"
    before = digest_of(catan)
    (catan / "__pycache__").mkdir()
    (catan / "__pycache__/take_turn.pyc").write_bytes(b"x")
    os.utime(catan / "take_turn.py", (1, 1))
    assert digest_of(catan) == before
    seen = {before}
    for change in (
        lambda: (catan / "take_turn.py").write_text("exit()\n"),
        lambda: (catan / "take_turn.py").chmod(0o755),
        lambda: (catan / "take_turn.py").rename(catan / "turn.py"),
    ):
        change()
        seen.add(digest_of(catan))
    assert len(seen) == 4


def test_what_a_build_is_sent(images: Path) -> None:
    catan = folder(images, "catan")
    assert catan.context(None) == catan.context(None)
    with tarfile.open(fileobj=io.BytesIO(catan.context(b"trusted"))) as tar:
        assert tar.getnames() == ["Dockerfile", "image.toml", "take_turn.py", BUILD_CA]
        certificates = tar.extractfile(BUILD_CA)
        assert certificates is not None
        assert certificates.read() == b"trusted"


def test_what_is_no_image(images: Path) -> None:
    with pytest.raises(UnknownImage, match=r"there is no image '\.\./catan': there is base, catan"):
        folder(images, "../catan")
    with pytest.raises(InvalidSpec, match="base has no turn script"):
        folder(images, "base").spec()
    (images / "catan/image.toml").write_text("turn_script = 7 =")
    with pytest.raises(InvalidSpec, match=re.escape("catan/image.toml cannot be used")):
        folder(images, "catan")


def test_the_base_is_built_before_what_stands_on_it_and_on_what_it_was_built_on(images: Path) -> None:
    engine = FakeEngine({"stream": "Step 1/2 : FROM x\n"}, {"stream": " ---> 0123\n"}, {"aux": {}})
    builder = Builder(engine, images, base="debian-of-ours")
    steps: list[Step] = []
    built = [builder.build(image, steps.append) for image in builder.order(["catan"])]
    assert [(tag, arguments["BASE_IMAGE"]) for tag, arguments in engine.asked] == [
        ("skylease/base:dev", "debian-of-ours"),
        ("skylease/catan:dev", "skylease/base:dev"),
    ]
    assert [(step.image, step.number, step.of) for step in steps] == [("base", 1, 2)] * 2 + [
        ("catan", 1, 2)
    ] * 2
    assert built[1].sources == digest_of(images / "catan")
    assert Builder(engine, images).base == "debian-of-ours"
    assert Builder(FakeEngine(), images).base == DEFAULT_BASE
    with pytest.raises(UnknownImage, match="there is no image 'rpg'"):
        builder.order(["rpg"])


@pytest.mark.parametrize(
    ("message", "says"),
    [
        pytest.param(
            {"error": "The command '/bin/sh -c pip' returned a non-zero code: 1"},
            r"the image base cannot be built \(The command .* code: 1\): see its Dockerfile",
            id="a-step-fails",
        ),
        pytest.param(
            {"error": "lookup the image registry on 1.1.1.1:53: no such host"},
            r"no such host\): where no registry answers, run images/base/offline\.sh as root, then --base",
            id="no-registry",
        ),
        pytest.param(
            EngineError("pull access denied for x"), r"pull access denied.*offline\.sh", id="refused"
        ),
    ],
)
def test_a_build_that_fails_says_why_and_what_to_do(
    images: Path, message: dict[str, str] | EngineError, says: str
) -> None:
    engine = FakeEngine({"stream": "Step 1/1 : RUN pip\n"}, message)
    with pytest.raises(ImageBuildFailed, match=says) as failed:
        Builder(engine, images).build(folder(images, "base"), lambda step: None)
    if isinstance(message, dict):
        assert failed.value.lines == ("Step 1/1 : RUN pip",)


def test_an_engine_that_goes_away_is_not_called_a_failed_build(images: Path) -> None:
    engine = FakeEngine(EngineDown("no Docker Engine answers", "start it"))
    with pytest.raises(EngineDown):
        Builder(engine, images).build(folder(images, "base"), lambda step: None)


def test_what_the_ledger_keeps_of_an_image(images: Path) -> None:
    spec, sources = folder(images, "catan").spec(), digest_of(images / "catan")
    assert provenance(spec) == f"catan@{sources}"
    built = replace(spec, digest="sha256:ab", bind_root=False)
    assert provenance(built) == "skylease/catan:dev@sha256:ab"
    assert provenance(replace(built, bind_root=True)) == f"skylease/catan:dev@sha256:ab+{sources}"


def test_every_dockerfile_of_ours_builds_on_any_python_and_names_no_registry() -> None:
    ours = [found for found in folders(IMAGES) if found.can_be_built]
    assert {found.name for found in ours} >= {"base", "catan", "rpg", "coding"}
    for found in ours:
        text = (found.root / "Dockerfile").read_text()
        assert "ARG BASE_IMAGE=python:3.12-slim-bookworm" in text, found.name
        assert re.findall(r"^FROM (\S+)", text, re.M)[-1] == "${BASE_IMAGE}"
        assert text.rstrip().splitlines()[-3] == "USER agent"
        assert "://" not in text
    assert "://" not in (IMAGES / "base/offline.sh").read_text()


@pytest.mark.parametrize(
    ("there", "says"),
    [
        pytest.param({}, "apt-get is missing", id="not-a-debian"),
        pytest.param(
            {"apt-get": ""}, "debootstrap is missing: apt-get install debootstrap", id="no-debootstrap"
        ),
        pytest.param({"apt-get": "", "debootstrap": ""}, "apt-get install docker.io", id="no-docker"),
        pytest.param(
            {"apt-get": "", "debootstrap": "", "docker": "", "id": "echo 1000"}, "needs root", id="not-root"
        ),
        pytest.param(
            {"apt-get": "", "debootstrap": "", "docker": "exit 1", "id": "echo 0"},
            "no Docker daemon answers at unix:///nowhere",
            id="no-daemon",
        ),
        pytest.param(
            {"apt-get": "", "debootstrap": "", "docker": "", "id": "echo 0"},
            "apt has no source for Debian bookworm",
            id="no-source",
        ),
    ],
)
def test_the_offline_base_says_in_one_line_what_it_lacks(
    tmp_path: Path, there: dict[str, str], says: str
) -> None:
    for tool in ("sed", "sort", "head"):
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    for name, body in there.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(IMAGES / "base/offline.sh")],
        env={"PATH": str(tmp_path), "DOCKER_HOST": "unix:///nowhere"},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert says in line


def test_an_image_without_a_turn_script_runs_commands_only(images: Path) -> None:
    spec = folder(images, "base").spec(for_turns=False)
    assert spec.turn_script is None
    assert spec.script == "this-image-has-no-turn-script"
