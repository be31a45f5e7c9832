"""Where the files beside the code are: images/ and config/, in a checkout or an installed wheel."""

import sys
from pathlib import Path

from actors.errors import NotThere


def shipped(name: str) -> Path:
    """The folder `name` ("images", "config/lexicons") of this project.

    Raises:
        NotThere: neither the checkout nor the installed wheel has it.
    """
    for root in (Path(__file__).resolve().parents[1], Path(sys.prefix) / "share/skylease"):
        if (root / name).is_dir():
            return root / name
    raise NotThere(f"the folder {name} of skylease is missing: install skylease again")
