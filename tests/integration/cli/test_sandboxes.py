"""`skylease sandboxes` and `skylease images`, typed as a user types them, on every tier that is here."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors.host import load_image, make_tier
from actors.resources import shipped
from sandboxes import SandboxSpec, SlotSpec
from sandboxes.tiers.registry import NEVER_CHOSEN, TIERS

COMMAND = [sys.executable, "-c", "from actors.cli import main; main()"]


def require(name: str, root: Path) -> None:
    """Skip if this machine does not offer the tier."""
    tier = make_tier(name, root / "probe")
    probe = asyncio.run(tier.probe())
    if not probe.ok:
        pytest.skip(f"{name}: {probe.lacks[0].why}")
    if not asyncio.run(tier.has_image(load_image(shipped("images"), "catan"))):
        pytest.skip(f"{name}: the image catan is not built (make images)")


def left(root: Path) -> list[Path]:
    return [path for path in (root / "throw-away").glob("*") if not path.name.startswith(".")]


@pytest.mark.parametrize("tier", [name for name in TIERS if name not in NEVER_CHOSEN])
def test_a_command_in_a_throw_away_sandbox(skylease: Any, tmp_path: Path, tier: str) -> None:
    require(tier, tmp_path)
    stdin = tmp_path / "in"
    stdin.write_bytes(b"hello")
    words = ("sandboxes", "run", "--tier", tier, "--stdin", str(stdin), "--json", "--")
    ran = skylease.run(*words, "sh", "-c", "cat; echo no >&2; exit 7")
    assert ran.code == 7, ran.err
    (result,) = ran.objects
    assert (result["stdout"], result["stderr"], result["tier"]) == ("hello", "no\n", tier)
    assert left(skylease.root) == []


def test_auto_takes_the_strongest_and_the_report_says_which(skylease: Any, tmp_path: Path) -> None:
    strongest = None
    for name in (name for name in TIERS if name not in NEVER_CHOSEN):
        tier = make_tier(name, tmp_path / "probe")
        if asyncio.run(tier.probe()).ok and asyncio.run(
            tier.has_image(load_image(shipped("images"), "catan"))
        ):
            strongest = strongest or name
    ran = skylease.run("sandboxes", "run", "--tier", "auto", "--json", "--", "true")
    assert ran.objects[0]["tier"] == strongest


def one_line(ran: Any, code: int, *says: str) -> None:
    assert ran.code == code, (ran.code, ran.err)
    last = ran.err.strip().splitlines()[-1]
    assert last.startswith("skylease: ")
    assert "Traceback" not in ran.err
    for word in says:
        assert word in last, last


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["sandboxes", "run", "--tier", "docker", "--", "true"], id="run"),
        pytest.param(["images", "build"], id="build"),
    ],
)
def test_no_daemon(skylease: Any, words: list[str]) -> None:
    ran = skylease.run(*words, DOCKER_HOST=f"unix://{skylease.root}/none.sock")
    one_line(ran, ran.code, "no Docker Engine answers", "DOCKER_HOST")
    assert ran.code in (1, 3)
    assert left(skylease.root) == []


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to make a socket that is somebody else's")
def test_a_socket_that_is_not_ours_to_use(skylease: Any, tmp_path: Path) -> None:
    file = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(file))
        server.listen()
        file.chmod(0o600)
        os.chown(file, 65534, 65534)
        done = subprocess.run(
            ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *COMMAND, "images", "build"],
            env={**skylease.env, "DOCKER_HOST": f"unix://{file}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 3, done.stderr
    assert "permission denied on the Docker socket" in done.stderr
    assert "group docker" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        pytest.param(
            ["sandboxes", "run", "--mount", "/etc:/mnt/etc", "--", "true"], 2, ["/etc", "allowed"], id="mount"
        ),
        pytest.param(["sandboxes", "cleanup"], 2, ["--dead", "--all"], id="no-selector"),
        pytest.param(["sandboxes", "cleanup", "nobody"], 3, ["nobody", "sandboxes list"], id="unknown"),
        pytest.param(["images", "build", "nope"], 3, ["nope", "catan"], id="unknown-image"),
    ],
)
def test_wrong_words(skylease: Any, words: list[str], code: int, says: list[str]) -> None:
    if words[:3] == ["images", "build", "nope"]:
        require("docker", skylease.root)
    one_line(skylease.run(*words), code, *says)
    assert left(skylease.root) == []


def test_a_mount_that_is_allowed(skylease: Any, tmp_path: Path) -> None:
    require("process", tmp_path)
    shown = Path(f"/tmp/skylease-shown-{os.getpid()}")
    shown.mkdir(mode=0o755)
    try:
        (shown / "told").write_text("yes")
        words = ("sandboxes", "run", "--mount", f"{shown}:/mnt/shown", "--")
        command = ("sh", "-c", "cat /mnt/shown/told; touch /mnt/shown/x || true")
        ran = skylease.run(*words, *command, SKYLEASE_SANDBOX__ALLOW_MOUNTS="/srv:/tmp")
        assert (ran.code, ran.out) == (0, "yes\n"), ran.err
        assert [file.name for file in shown.iterdir()] == ["told"]
    finally:
        (shown / "told").unlink()
        shown.rmdir()


def test_the_operators_view(skylease: Any, tmp_path: Path) -> None:
    """A living sandbox is listed, told of, entered, refused, cleaned up by force; then nothing is left."""
    require("process", tmp_path)
    tier = make_tier("process", skylease.root / "throw-away")
    spec = SandboxSpec(name="seen", epoch=1, image=load_image(shipped("images"), "catan"))
    slot = SlotSpec(name=f"slot-{'5' * 16}", image=spec.image, limits=spec.limits)

    async def prepare() -> str:
        if await tier.can_warm() is None:
            await tier.warm(slot)  # as a host leaves them that was killed
        async with await tier.create(spec) as sandbox:
            return (await sandbox.start_process("echo hello; sleep 60")).id

    process = asyncio.run(prepare())
    try:
        assert [row["name"] for row in skylease.run("sandboxes", "list", "--json").objects] == ["seen"]
        told = skylease.run("sandboxes", "logs", "seen", "--json").objects[0]
        assert [row["id"] for row in told["processes"]] == [process]
        assert skylease.run("sandboxes", "logs", "seen", "--process", process).out == "hello\n\n"
        lines = 'mkdir -p "it\'s"; cd it*\nexport X="a \'b\'"\necho $X in $(basename $PWD)\nexit 3\n'
        shell = subprocess.run(
            [*COMMAND, "sandboxes", "shell", "seen"],
            input=lines,
            env=skylease.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (shell.stdout, shell.returncode) == ("a 'b' in it's\n", 3), shell.stderr
        one_line(skylease.run("sandboxes", "cleanup", "--all"), 4, "seen", "--force")
        assert skylease.run("sandboxes", "janitor").out == "nothing to clean up\n"
        assert skylease.run("sandboxes", "cleanup", "--all", "--force").code == 0
        assert skylease.run("sandboxes", "list", "--json").out == ""
        assert list(asyncio.run(tier.slots())) == []
    finally:
        for name in (slot.name, "seen"):
            asyncio.run(tier.destroy(name))
    assert left(skylease.root) == []


def test_a_sandbox_by_scope_is_found_again(skylease: Any, tmp_path: Path) -> None:
    start = tmp_path / "start.toml"
    entry = 'type = "file"\ncontent = ""\n'
    start.write_text(f"[once]\n{entry}[always]\n{entry}ephemeral = true\n")
    words = ("sandboxes", "run", "--scope", "user", "--agent", "ann", "--user", "bob", "--json")
    line = "for file in once always; do echo x >> $file; wc -l < $file; done"
    ask = (*words, "--workspace", str(start), "--", "sh", "-c", line)
    seen = [skylease.run(*ask).objects[0] for _ in range(2)]
    told = [(one["source"], one["stdout"].split()) for one in seen]
    assert told == [("created", ["1", "1"]), ("stored state", ["2", "1"])]
    one_line(skylease.run("sandboxes", "run", "--scope", "team", "--", "true"), 2, "team", "session, user")


def test_a_workspace_to_start_with(skylease: Any, tmp_path: Path) -> None:
    file = tmp_path / "workspace.toml"
    file.write_text('["notes/a"]\ntype = "file"\ncontent = "given"\n')
    words = ("sandboxes", "run", "--image", "coding", "--workspace", str(file), "--json", "--")
    ran = skylease.run(*words, "sh", "-c", "cat notes/a; ls AGENTS.md skills")
    assert ran.objects[0]["stdout"] == "givenAGENTS.md\n\nskills:\nverify.md\n", ran.err
    assert left(skylease.root) == []
    file.write_text('["../a"]\ntype = "file"\ncontent = ""\n')
    refused = skylease.run("sandboxes", "run", "--workspace", str(file), "--", "true")
    one_line(refused, 2, "workspace.toml.../a", "plain relative path")
