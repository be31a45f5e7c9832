"""Smaller parts: specs, errors, captures, the archive, interpreters, tags."""

import io
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import sandboxes
from sandboxes import ExecResult, ImageSpec, InvalidSpec, Limits, SandboxError, SandboxSpec
from sandboxes.runner.task import Capture
from sandboxes.runner.tree import descendants, read_stat, signal_everyone, stopped
from sandboxes.tiers.archive import runner_archive
from sandboxes.tiers.image import readable_image
from sandboxes.tiers.interpreter import Interpreter, candidates, is_narrow
from sandboxes.tiers.tagged import find_tagged

IMAGE = ImageSpec(name="x", root=Path("/x"))


def test_all_is_what_is_there() -> None:
    assert sorted(sandboxes.__all__) == sandboxes.__all__
    assert all(hasattr(sandboxes, name) for name in sandboxes.__all__)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Limits(memory_bytes=1),
        lambda: Limits(pids=1),
        lambda: Limits(cpu=0),
        lambda: Limits(idle_deadline_s=-1),
        lambda: Limits(wall_deadline_s=float("nan")),
        lambda: ImageSpec(name="x", root=Path("/x"), turn_script="../../etc/passwd"),
        lambda: ImageSpec(name="x", root=Path("/x"), turn_script="/etc/passwd"),
        lambda: ImageSpec(name="x", root=Path("/x"), preload=("os; import sys",)),
        lambda: SandboxSpec(name="../x", epoch=1, image=IMAGE),
        lambda: SandboxSpec(name="x", epoch=-1, image=IMAGE),
        lambda: SandboxSpec(name="x", epoch=1, image=IMAGE, env={"A=B": "c"}),
        lambda: SandboxSpec(name="x", epoch=1, image=IMAGE, env={"A": "b\0"}),
    ],
)
def test_impossible_specs_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(InvalidSpec):
        make()


RESULT = ExecResult(exit_code=1, stdout=b"ab", stderr=b"", duration_seconds=0.1)
ARGUMENTS = {
    "SandboxTimeoutError": ("s", 1.5, RESULT),
    "StaleEpoch": ("s", 1, 2),
    "TierUnavailable": ("process", "no bwrap", "install it"),
    "FurnishingFailed": ("s", "entry", "why"),
    "PoolFull": (5, 5, 1.5),
    "IllegalTransition": ("s", "running", "evicted", ("warm used running",)),
    "RefusedByRunner": ("s", "not_found", "no session"),
}


def errors() -> list[type[SandboxError]]:
    named = [getattr(sandboxes, name) for name in sandboxes.__all__]
    return [
        kind
        for kind in named
        if isinstance(kind, type) and issubclass(kind, SandboxError) and kind is not SandboxError
    ]


@pytest.mark.parametrize("kind", errors(), ids=lambda kind: kind.__name__)
def test_errors_cross_processes_and_are_one_line(kind: type[SandboxError]) -> None:
    arguments: tuple[object, ...] = ARGUMENTS.get(kind.__name__, ("what", "why"))
    if kind.__name__.startswith("Process"):
        arguments = ("process-1", "its end", "it runs on")
    error = kind(*arguments)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.args, str(copy), vars(copy)) == (error.args, str(error), vars(error))
    assert "\n" not in str(error)
    assert str(arguments[0]) in str(error)


def test_a_capture_keeps_the_first_or_the_last_bytes() -> None:
    first, last = Capture(5), Capture(5, ring=True)
    for chunk in (b"abc", b"defg", b"h"):
        first.add(chunk)
        last.add(chunk)
    assert (bytes(first.kept), first.dropped) == (b"abcde", 3)
    assert (bytes(last.kept), last.dropped) == (b"defgh", 3)


def test_the_archive_is_one_file_of_the_standard_library_alone() -> None:
    raw = runner_archive()
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        assert "__main__.py" in archive.namelist()
        assert {name.split("/")[0] for name in archive.namelist()} == {"__main__.py", "skylease_runner"}
        imports = {
            line.split()[1].split(".")[0]
            for name in archive.namelist()
            if name.endswith(".py")
            for line in archive.read(name).decode().splitlines()
            if line.startswith(("import ", "from ")) and not line.startswith("from .")
        }
    assert imports - {"skylease_runner"} <= sys.stdlib_module_names
    runner_archive.cache_clear()
    assert runner_archive() == raw


def test_interpreters_are_tried_in_a_fixed_order() -> None:
    found = candidates()
    assert found == candidates()
    assert found
    assert os.path.realpath(sys.base_prefix) in (
        *found[0].binds,
        str(Path(found[0].executable).parent.parent),
    )


@pytest.mark.parametrize(
    ("bind", "narrow"), [("/opt/python", True), ("/home", False), ("/", False), ("/root", False)]
)
def test_homes_are_never_bound_whole(bind: str, narrow: bool) -> None:
    assert is_narrow(Interpreter(executable=f"{bind}/bin/python3", binds=(bind,))) is narrow


def test_a_readable_image_is_used_and_another_is_copied(tmp_path: Path) -> None:
    image = tmp_path / "image"
    (image / "skills").mkdir(parents=True)
    (image / "run.sh").write_text("x")
    for path, mode in ((image / "run.sh", 0o755), (image / "skills", 0o755), (image, 0o755)):
        path.chmod(mode)
    assert readable_image(image, tmp_path / "copy") == image
    (image / "run.sh").chmod(0o700)
    (image / "link").symlink_to("run.sh")
    copy = readable_image(image, tmp_path / "copy")
    assert copy == tmp_path / "copy"
    assert (copy / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (copy / "link").is_symlink()
    assert copy.stat().st_mode & 0o777 == 0o755


def test_descendants_are_found_and_others_left_out() -> None:
    script = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '30']); print(p.pid, flush=True); p.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert set(descendants(os.getpid())) >= {parent.pid, child}
        assert child not in descendants(os.getpid(), but=[parent.pid])
        assert descendants(parent.pid) == [child]
        os.kill(child, 9)
        parent.wait()
    assert child not in descendants(os.getpid())


def test_only_the_first_process_of_a_sandbox_may_stop_everybody() -> None:
    with stopped(True):  # does nothing here, or this test would stop the machine
        assert read_stat(os.getpid()) is not None
    with pytest.raises(RuntimeError):
        signal_everyone(0)


def test_tagged_processes_are_found_by_the_whole_word() -> None:
    tag = f"skylease:0:test-{os.getpid()}"  # of this run: another may go on beside it
    argv = [sys.executable, "-c", "print(flush=True)\ninput()", tag]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # its command line is not there yet at the moment that exec succeeds
        assert find_tagged(tag) == [process.pid]
        assert find_tagged("skylease:0:test") == []
        assert find_tagged("skylease:0:test", tag) == [process.pid]
        process.kill()
