"""Packs the runner into the one file that is put into every sandbox."""

import io
import zipfile
from functools import cache
from pathlib import Path
from typing import Final

import sandboxes.runner

PACKAGE: Final = "skylease_runner"
_START: Final = f"from {PACKAGE}.serve import main\n\nmain()\n"
_DATE: Final = (1980, 1, 1, 0, 0, 0)  # the same sources give the same bytes


@cache
def runner_archive() -> bytes:
    """Return the runner as a zip file that `python FILE` executes, on any Python from 3.9."""
    directory = Path(sandboxes.runner.__file__).parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", _DATE), _START)
        for source in sorted(directory.glob("*.py")):
            archive.writestr(zipfile.ZipInfo(f"{PACKAGE}/{source.name}", _DATE), source.read_bytes())
    return buffer.getvalue()
