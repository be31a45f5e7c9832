"""The same frame under another seq: what whoever merges several streams into one gives it.

A seq is the server's own and not signed, so a relay may set it anew; every other byte stays as it came.
"""

from typing import Final

from firehose.drisl import head
from firehose.errors import FrameInvalid

_SEQ: Final = b"seq"
_MAP: Final = 5
_MAX_ITEMS: Final = 1 << 20  # ours: in front of a seq; a frame of 5 MB could make us count to five million


def renumber(frame: bytes, seq: int) -> bytes:
    """`frame` with `seq` in place of its own.

    Raises: FrameInvalid: it has none, or it is no frame.
    """
    start, end = _place_of_seq(frame)
    return frame[:start] + head(0, seq) + frame[end:]


def without_seq(frame: bytes) -> bytes:
    """All that `frame` says but its seq: two servers that pass on the same event agree in it.

    Raises: FrameInvalid: it has none, or it is no frame.
    """
    start, end = _place_of_seq(frame)
    return frame[:start] + frame[end:]


def _place_of_seq(frame: bytes) -> tuple[int, int]:
    """Where the number under `seq` in the body of a frame begins and ends."""
    try:
        at = _skip(frame, 0)  # the header
        major, length, at = _head(frame, at)
        if major != _MAP:
            raise FrameInvalid("frame-shape", "not a header map and a body map")
        for _ in range(length):
            key_major, key_length, start = _head(frame, at)
            if key_major != 3:
                raise FrameInvalid("frame-shape", "a key that is no text")
            at = start + key_length
            if frame[start:at] == _SEQ:
                number_major, _, end = _head(frame, at)
                if number_major != 0:
                    break
                return at, end
            at = _skip(frame, at)
    except IndexError:
        raise FrameInvalid("frame-cbor", "it ends within a value") from None
    raise FrameInvalid("field-seq", "none")


def _head(data: bytes, at: int) -> tuple[int, int, int]:
    """Major type and argument of the item at byte `at`, and the byte after them."""
    major, info = data[at] >> 5, data[at] & 31
    at += 1
    if info < 24:
        return major, info, at
    if info > 27:
        raise FrameInvalid("frame-cbor", "an indefinite or reserved length")
    width = 1 << (info - 24)
    if at + width > len(data):
        raise IndexError
    return major, int.from_bytes(data[at : at + width]), at + width


def _skip(data: bytes, at: int) -> int:
    """The byte after the value that begins at byte `at`."""
    left, seen = 1, 0
    while left:
        left -= 1
        seen += 1
        if seen > _MAX_ITEMS:
            raise FrameInvalid("frame-values", "more values than a frame has use for")
        major, number, at = _head(data, at)
        if major in (2, 3):
            at += number
        elif major == 4:
            left += number
        elif major == _MAP:
            left += 2 * number
        elif major == 6:
            left += 1
    if at > len(data):
        raise IndexError
    return at
