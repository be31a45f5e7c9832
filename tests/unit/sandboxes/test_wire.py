"""The framed protocol: what is packed is decoded, however it is cut; what is no frame is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.runner.wire import MAX_BODY_BYTES, MAX_HEAD_BYTES, SIZES, Decoder, WireError, pack

heads = st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=20) | st.none(), max_size=5)


@given(frames=st.lists(st.tuples(heads, st.binary(max_size=300)), max_size=5), cut=st.integers(1, 50))
def test_frames_survive_any_cutting(frames: list[tuple[dict[str, object], bytes]], cut: int) -> None:
    stream = b"".join(pack(head, body) for head, body in frames)
    decoder = Decoder()
    found = []
    for start in range(0, len(stream), cut):
        found += decoder.feed(stream[start : start + cut])
    assert found == frames


@given(raw=st.binary(min_size=8, max_size=200))
def test_any_bytes_are_frames_or_refused(raw: bytes) -> None:
    try:
        frames = Decoder().feed(raw)
    except WireError:
        return
    assert all(isinstance(head, dict) for head, _ in frames)


@pytest.mark.parametrize(
    "raw",
    [
        SIZES.pack(MAX_HEAD_BYTES + 1, 0),
        SIZES.pack(0, MAX_BODY_BYTES + 1),
        SIZES.pack(2, 0) + b"[]",
        SIZES.pack(0, 0),
        SIZES.pack(100_000, 0) + b"[" * 100_000,
        SIZES.pack(1, 0) + b"\xff",
    ],
    ids=["long-head", "long-body", "list", "empty", "deep", "not-utf-8"],
)
def test_what_is_no_frame_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        Decoder().feed(raw)


def test_too_large_a_frame_is_not_sent() -> None:
    with pytest.raises(WireError):
        pack({"x": "y" * MAX_HEAD_BYTES})
    with pytest.raises(WireError):
        pack({}, bytes(MAX_BODY_BYTES + 1))
