"""Builds the image in which SWE-ReX is measured: the base image with its server.

python -m benchmarks.peers.image
"""

import sys
from pathlib import Path
from typing import Final

from sandboxes.images.build import BUILD_SILENCE_S, Builder, Step
from sandboxes.images.folder import ImageFolder
from sandboxes.tiers.docker_engine import Engine

NAME: Final = "bench-swerex"


def main() -> None:
    """Build it, on the base image of the engine at hand."""
    here = Path(__file__).resolve().parent
    folder = ImageFolder(name=NAME, root=here, turn_script=None, preload=())
    builder = Builder(Engine(deadline_s=BUILD_SILENCE_S), here.parents[1] / "images")

    def told(step: Step) -> None:
        if step.line.startswith("Step "):
            sys.stderr.write(f"{NAME}: {step.line[:100]}\n")

    built = builder.build(folder, told)
    sys.stderr.write(f"{built.reference} {built.digest}\n")


if __name__ == "__main__":
    main()
