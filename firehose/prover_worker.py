"""One process of `firehose.provers`: batches of frames in, what they prove out, until its socket closes.

Frames lie in memory that both sides see; what crosses the socket is where they are, and the answers, so
neither side ever waits for the other to read. A batch begins with two bytes that change while it is worked
on: how many of its frames are still asked for (with nothing else to do, the parent takes frames back from the
end), and how many were begun here. Nothing hangs on who sees what when: a frame that both prove proves the
same. Started by itself and not by multiprocessing: that would run its parent's main module again, which in a
Ray actor is Ray's own.
"""

import marshal
import mmap
import os
import signal
import socket
import struct
import sys
from functools import lru_cache
from typing import BinaryIO, Final

from firehose import compiled
from firehose.keys import PACKED_BYTES, VerifyingKey
from firehose.verify.proven import Proof, prove, prove_slowly

SLOT_BYTES: Final = 1024 * 1024  # of shared memory; only what is written to is ever real
SLOTS: Final = 8  # batches in hand: 15 ms of work, for when the scheduler lets the parent wait that long
WANTED: Final = 0  # where a slot says how many frames of its batch, from the first, are asked for
BEGUN: Final = 1  # … and how many were begun
FRAMES_AT: Final = 2  # … and its frames begin
BATCH: Final = struct.Struct(">BI")  # the slot, and how many frames are in it
HEADER: Final = struct.Struct(f">I{PACKED_BYTES}s")  # before each: its length, and its account's key
LENGTH: Final = struct.Struct(">I")  # of an answer
NO_KEY: Final = bytes(PACKED_BYTES)
MAX_KEYS: Final = 65_536  # parsed, 300 bytes each; the least recently used go first


def prove_signed(frame: bytes, key: VerifyingKey | None) -> Proof | None:
    """What a frame proves, if it is signed by `key`; without one, its signature is left to be checked."""
    proof = prove_slowly(frame) if compiled.fast is None else prove(frame)
    if proof is None or key is None:
        return proof
    return (*proof[:7], b"", b"") if key.verify_digest(proof[7], proof[8]) else None


_key = lru_cache(MAX_KEYS)(VerifyingKey.from_packed)


class Worker:
    """What the process does."""

    def __init__(self, connection: socket.socket, memory: mmap.mmap) -> None:
        """Take the parent's end of things."""
        self._connection = connection
        self._inbox: BinaryIO = connection.makefile("rb")
        self._memory = memory

    def run(self) -> None:
        """Work until the parent has gone."""
        while len(batch := self._inbox.read(BATCH.size)) == BATCH.size:
            packed = marshal.dumps(self._prove(*BATCH.unpack(batch)))
            self._connection.sendall(LENGTH.pack(len(packed)) + packed)

    def _prove(self, slot: int, count: int) -> list[Proof | None]:
        memory, proofs = self._memory, []
        wanted, begun = slot * SLOT_BYTES + WANTED, slot * SLOT_BYTES + BEGUN
        at = slot * SLOT_BYTES + FRAMES_AT
        for number in range(count):
            if number >= memory[wanted]:
                break
            memory[begun] = number + 1
            length, packed = HEADER.unpack_from(memory, at)
            at += HEADER.size + length
            key = None if packed == NO_KEY else _key(packed)
            proofs.append(prove_signed(memory[at - length : at], key))
        return proofs


def main() -> None:
    """Run with the numbers of the inherited socket and memory."""
    connection_fd, memory_fd = (int(number) for number in sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent; its end is ours
    memory = mmap.mmap(memory_fd, SLOTS * SLOT_BYTES)
    os.close(memory_fd)
    with socket.socket(fileno=connection_fd) as connection:
        try:
            Worker(connection, memory).run()
        except OSError:
            return  # the parent has gone
