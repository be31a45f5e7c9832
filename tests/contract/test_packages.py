"""A package installed in one turn is used in the next, its output read in the third, with sleep between."""

import asyncio
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sandboxes import Sandbox, TurnResult
from sandboxes.sleep import resume, suspend
from sandboxes.snapshots import LocalStore, Snapshots

INSTALL = """
import subprocess
words = ["-m", "pip", "install", "--user", "--no-index", "--no-deps", "--quiet", "--break-system-packages"]
words += ["--disable-pip-version-check", state["wheel"]]
done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
print(json.dumps({"exit": done.returncode, "said": done.stderr[-300:]}))
"""
USE = """
import tiny_oracle
open("answer", "w").write(tiny_oracle.answer())
print(json.dumps({"from": tiny_oracle.__file__}))
"""
READ = """
import subprocess
told = subprocess.run(["tiny-oracle"], capture_output=True, text=True).stdout
print(json.dumps({"answer": open("answer").read(), "tool": told}))
"""


def wheel(directory: Path) -> Path:
    """Build a wheel of one module and one command."""
    file = directory / "tiny_oracle-1.0-py3-none-any.whl"
    info = "tiny_oracle-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(
            "tiny_oracle.py", "def answer():\n    return '42'\n\ndef main():\n    print(answer())\n"
        )
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-oracle\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\ntiny-oracle = tiny_oracle:main\n")
        archive.writestr(f"{info}/RECORD", "")
    return file


async def test_installed_used_and_read_with_sleep_between(bench: Any, tmp_path: Path) -> None:
    if bench.tier.name == "unsafe":
        pytest.skip("unsafe would install into this machine's home")
    snapshots = Snapshots(LocalStore(tmp_path / "store"), tmp_path / "scratch")

    async def turn(number: int, code: str, prepare: bytes = b"") -> TurnResult:
        sandbox, restored = await resume(bench.tier, bench.spec("packages", epoch=number), snapshots)
        assert (restored is None) == (number == 1)
        async with sandbox:
            if prepare:
                await sandbox.write_file(f"/tmp/{file.name}", prepare)
                if not await has_pip(sandbox):
                    await bench.tier.destroy("packages")
                    pytest.skip(f"{bench.tier.name}: the Python inside has no pip")
            state = {"code": code, "wheel": f"/tmp/{file.name}"}
            result = await sandbox.turn(state, turn=number, timeout=100)
        assert result.skip is None, result
        await suspend(bench.tier, "packages", snapshots)
        assert (await bench.tier.inspect("packages")).leftovers == ()
        return result

    file = await asyncio.to_thread(wheel, tmp_path)
    installed = await turn(1, INSTALL, file.read_bytes())
    assert installed.action == {"exit": 0, "said": ""}
    used = await turn(2, USE)
    assert used.action is not None
    assert str(used.action["from"]).startswith("/workspace/.local/lib/python3")
    read = await turn(3, READ)
    assert read.action == {"answer": "42", "tool": "42\n"}


async def has_pip(sandbox: Sandbox) -> bool:
    return (await sandbox.exec(["python3", "-m", "pip", "--version"])).exit_code == 0
