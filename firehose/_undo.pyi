"""The compiled twin of firehose.verify.splice; absent where nothing could be compiled."""

from collections.abc import Callable
from typing import Any

def undo(
    root: bytes,
    blocks: dict[bytes, bytes],
    key: bytes,
    value: bytes,
    prev: bytes | None,
    sha256: Callable[[bytes], Any],
    /,
) -> bytes | None: ...
