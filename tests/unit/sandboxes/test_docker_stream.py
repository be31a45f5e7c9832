"""The engine's frames, however they are cut."""

import socket
import threading

import pytest

from sandboxes.tiers.docker_stream import HEADER, STDOUT, Stream

STDERR = 2
FRAMES = [(STDOUT, b"one"), (STDERR, b""), (STDOUT, b"\x01\0\0\0\0\0\0\x02"), (STDERR, b"x" * 300_000)]


@pytest.mark.parametrize("piece", [1, 7, 1 << 20], ids=["byte-by-byte", "sevens", "at-once"])
def test_frames_come_out_whole(piece: int) -> None:
    frames = FRAMES if piece > 1 else FRAMES[:3]
    raw = b"".join(HEADER.pack(which, len(body)) + body for which, body in frames)
    near, far = socket.socketpair()

    def send() -> None:
        with far:
            for start in range(0, len(raw), piece):
                far.sendall(raw[start : start + piece])

    sender = threading.Thread(target=send)
    sender.start()
    stream = Stream(near)
    assert [stream.receive(timeout_s=10) for _ in frames] == frames
    assert stream.receive(timeout_s=10) is None
    sender.join()
    stream.close()


def test_silence_is_a_timeout_and_what_comes_later_is_whole() -> None:
    near, far = socket.socketpair()
    stream = Stream(near)
    far.sendall(HEADER.pack(STDOUT, 4) + b"ha")
    with pytest.raises(TimeoutError):
        stream.receive(timeout_s=0.05)
    far.sendall(b"lf")
    assert stream.receive(timeout_s=10) == (STDOUT, b"half")
    far.close()
    stream.close()
