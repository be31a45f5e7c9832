"""Packs the runner into the one file that is put into every sandbox."""

import importlib.util
import io
import marshal
import zipfile
from functools import cache
from pathlib import Path
from typing import Final

import sandboxes.runner

PACKAGE: Final = "skylease_runner"
_START: Final = f"from {PACKAGE}.serve import main\n\nmain()\n"
_DATE: Final = (1980, 1, 1, 0, 0, 0)  # the same sources give the same bytes


def _compiled(source: bytes, name: str) -> bytes:
    """Return a module's bytecode file, used inside when that Python is ours and passed over when it is not.

    Compiling all of them is otherwise half of the time that a runner needs to start.
    """
    code = compile(source, f"{PACKAGE}/{name}", "exec", dont_inherit=True)
    flags = (1).to_bytes(4, "little")  # PEP 552: tied to its source by a hash that is not checked
    head = importlib.util.MAGIC_NUMBER + flags + importlib.util.source_hash(source)
    return head + marshal.dumps(code)


@cache
def runner_archive() -> bytes:
    """Return the runner as a zip file that `python FILE` executes, on any Python from 3.9."""
    directory = Path(sandboxes.runner.__file__).parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", _DATE), _START)
        for source in sorted(directory.glob("*.py")):
            raw = source.read_bytes()
            archive.writestr(zipfile.ZipInfo(f"{PACKAGE}/{source.name}", _DATE), raw)
            archive.writestr(zipfile.ZipInfo(f"{PACKAGE}/{source.name}c", _DATE), _compiled(raw, source.name))
    return buffer.getvalue()
