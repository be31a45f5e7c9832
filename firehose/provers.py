"""Processes that prove commits ahead of the verifier, which then only has to put them in their order.

Nearly all of the work on a frame is what it proves by itself: hashes, signature, tree. That depends on no
other frame, so any process may do it, in any order, and whoever has nothing to do takes the next batch. The
process that judges is one of them, and takes back what the others have not begun before it waits for them.
What depends on the order of the stream, and on the state of an account, stays with the one `Verifier`: so
the verdicts are those of one process, by construction.
"""

import marshal
import mmap
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Final, Self, TypeVar

from firehose import compiled
from firehose.errors import ProverDied
from firehose.frames import route
from firehose.keys import VerifyingKey
from firehose.prover_worker import (
    BATCH,
    BEGUN,
    FRAMES_AT,
    HEADER,
    LENGTH,
    NO_KEY,
    SLOT_BYTES,
    SLOTS,
    WANTED,
    prove_signed,
)
from firehose.syntax import Did
from firehose.verify.proven import Proof

BATCH_FRAMES: Final = 32  # handed over at once: 2 ms of work; a byte counts them
HELP_FRAMES: Final = 8  # proved here between two looks at what the others have: half a millisecond
HANDED_BYTES: Final = SLOT_BYTES // 2  # the longest frame that leaves this process; real ones have 5 kB
BATCH_BYTES: Final = HANDED_BYTES - 4096  # with one such frame more, and what is before each, it fits
ROOM_BATCHES: Final = 8  # for this process to go on with while it waits for the others
ROOM_BYTES: Final = 64 * 1024 * 1024  # of frames ahead of their turn
STOP_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 120.0  # a batch takes milliseconds, on a machine that does nothing else
_PROGRAM: Final = "from firehose.prover_worker import main; main()"

T = TypeVar("T")


class Proving:
    """A frame, and what it proves once that is known. As light as can be: each frame needs one."""

    __slots__ = ("frame", "is_done", "key", "proof")

    def __init__(self, frame: bytes, key: VerifyingKey | None, is_done: bool) -> None:
        self.frame = frame
        self.key = key  # that the signature was held against
        self.is_done = is_done
        self.proof: Proof | None = None  # none, or none yet


class _Batch:
    """Frames that a process has in hand."""

    __slots__ = ("at", "frames", "wanted")

    def __init__(self, at: int, frames: list[Proving]) -> None:
        self.at = at  # in the memory
        self.frames = frames
        self.wanted = len(frames)  # of them, from the first; this process has taken back the others


class _Process:
    """One process, seen from here."""

    def __init__(self, number: int) -> None:
        self.number = number
        ours, theirs = socket.socketpair()
        memory_fd = _shared_memory()
        try:
            os.ftruncate(memory_fd, SLOTS * SLOT_BYTES)
            self._memory = mmap.mmap(memory_fd, SLOTS * SLOT_BYTES)
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), str(memory_fd)],
                pass_fds=(theirs.fileno(), memory_fd),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(memory_fd)
        self.socket = ours
        self.sent: deque[_Batch] = deque()
        self._slot = 0

    def send(self, frames: list[Proving]) -> None:
        """Hand over a batch. Raises: ProverDied: nobody is there."""
        memory, start = self._memory, self._slot * SLOT_BYTES
        at = start + FRAMES_AT
        for proving in frames:
            frame, key = proving.frame, proving.key
            HEADER.pack_into(memory, at, len(frame), NO_KEY if key is None else key.packed)
            at += HEADER.size
            memory[at : at + len(frame)] = frame
            at += len(frame)
        memory[start + WANTED], memory[start + BEGUN] = len(frames), 0
        self.sent.append(_Batch(start, frames))
        try:
            self.socket.sendall(BATCH.pack(self._slot, len(frames)))
        except OSError as error:
            raise ProverDied(self.number, str(error)) from error
        self._slot = (self._slot + 1) % SLOTS

    def take_back(self) -> Proving | None:
        """The last frame that it has not begun, which it will leave out; None: it has begun them all."""
        for batch in reversed(self.sent):
            if batch.wanted > self._memory[batch.at + BEGUN]:
                batch.wanted -= 1
                self._memory[batch.at + WANTED] = batch.wanted
                return batch.frames[batch.wanted]
        return None

    def collect(self) -> None:
        """Take its next answer; it blocks while there is none. Raises: ProverDied: there will be none."""
        try:
            head = self.socket.recv(LENGTH.size, socket.MSG_WAITALL)
            wanted = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else -1
            body = self.socket.recv(wanted, socket.MSG_WAITALL) if wanted > 0 else b""
        except OSError as error:
            raise ProverDied(self.number, str(error)) from error
        if len(body) != wanted:
            raise ProverDied(self.number, "its socket is closed")
        batch, proofs = self.sent.popleft(), marshal.loads(body)
        if len(proofs) < batch.wanted:
            raise ProverDied(self.number, f"it answered {len(proofs)} of {batch.wanted} frames")
        for proving, proof in zip(batch.frames, proofs, strict=False):  # what was taken back was proved here
            proving.proof = proof
            proving.is_done = True

    def stop(self) -> None:
        """End the process."""
        self.socket.close()  # that is how it knows
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._memory.close()


class Provers:
    """Several processes for one stream, this one included; a context manager.

    Either iterate over `ahead`, or `put` each frame, `help` while the next one is not done, and `listen`
    whenever one of `sockets` can be read.
    """

    def __init__(self, count: int, key_of: Callable[[Did], VerifyingKey | None]) -> None:
        """Prepare `count` processes, this one and those beside it.

        Args:
            count: 1: nothing is proved ahead.
            key_of: the key that an account is known to sign with, if any; `Verifier.key_of`.
        """
        if count < 1:
            raise ValueError(f"{count} processes cannot verify anything")
        self.count = count
        self._key_of = key_of
        self._processes: list[_Process] = []
        self._filling: list[Proving] = []  # the next batch
        self._filling_bytes = 0
        self._queue: deque[list[Proving]] = deque()  # batches that nobody has taken
        self._ours: deque[Proving] = deque()
        self._poll = select.poll()
        self._by_socket: dict[int, _Process] = {}

    def __enter__(self) -> Self:
        """Start the processes; that takes them half a second, which nobody waits for."""
        try:
            for number in range(1, self.count):
                process = _Process(number)
                self._processes.append(process)
                self._poll.register(process.socket, select.POLLIN)
                self._by_socket[process.socket.fileno()] = process
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.stop()

    @property
    def sockets(self) -> list[socket.socket]:
        """What answers come from."""
        return [process.socket for process in self._processes]

    @property
    def pids(self) -> list[int]:
        """Of the processes beside this one."""
        return [process.process.pid for process in self._processes]

    @property
    def is_waiting(self) -> bool:
        """Whether some process has not yet answered all that it was given."""
        return any(process.sent for process in self._processes)

    @property
    def room(self) -> int:
        """How many frames it takes to keep everybody at work; fewer, if they have `ROOM_BYTES`."""
        return BATCH_FRAMES * (SLOTS * len(self._processes) + ROOM_BATCHES)

    def ahead(self, items: Iterable[tuple[T, bytes]]) -> Iterator[tuple[T, Proving | None]]:
        """Each item in its order, when what its frame proves is known; None: it was not proved ahead.

        Raises: ProverDied: a process is gone. What the items raise, after those before it.
        """
        if not self._processes:
            yield from ((item, None) for item, _ in items)
            return
        source, room = iter(items), self.room
        waiting: deque[tuple[T, Proving]] = deque()
        waiting_bytes = 0
        trouble: BaseException | None = None
        while trouble is None or waiting:
            try:
                while trouble is None and len(waiting) < room and waiting_bytes < ROOM_BYTES:
                    item, frame = next(source)
                    waiting.append((item, self.put(frame)))
                    waiting_bytes += len(frame)
            except ProverDied:
                raise
            except BaseException as error:  # noqa: BLE001 - it is raised below, or the end
                trouble = error
            for _ in range(BATCH_FRAMES):  # then there is a batch to fill, so that nobody waits for one
                if not waiting:
                    break
                item, proving = waiting[0]
                is_ours = not proving.is_done and self.take(proving)
                if not proving.is_done and not is_ours:
                    break
                waiting.popleft()
                waiting_bytes -= len(proving.frame)
                yield item, None if is_ours else proving
            else:
                continue
            if waiting and not self.listen() and not self.help():
                self.listen(ANSWER_TIMEOUT_S)
        if not isinstance(trouble, StopIteration):
            raise trouble

    def put(self, frame: bytes) -> Proving:
        """Take the next frame. What is no commit is done at once: there is nothing to prove ahead."""
        did = _author(frame) if compiled.fast is None else compiled.fast.author(frame)
        if did is None:
            return Proving(frame, None, True)
        proving = Proving(frame, self._key_of(did), False)
        if len(frame) > HANDED_BYTES:
            self._ours.append(proving)
            return proving
        filling = self._filling
        filling.append(proving)
        self._filling_bytes += len(frame)
        if len(filling) >= BATCH_FRAMES or self._filling_bytes >= BATCH_BYTES:
            self._queue.append(filling)
            self._filling, self._filling_bytes = [], 0
            self.listen()
            self._hand_out()
        return proving

    def take(self, proving: Proving) -> bool:
        """Take the next frame in order, whose turn has come. Returns: whether nobody had taken it before.

        Then it is to be judged as it is, which is cheaper than to prove it here first.
        """
        if not self._ours:
            first = self._queue[0] if self._queue else self._filling
            if first and first[0] is proving:
                self._take_next()
        if not self._ours or self._ours[0] is not proving:
            return False
        self._ours.popleft()
        return True

    def help(self, frames: int = HELP_FRAMES) -> bool:
        """Prove as many frames here: those that nobody has taken, then those that nobody has begun.

        Returns: whether there were any.
        """
        for number in range(frames):
            proving = self._ours.popleft() if self._ours else self._next()
            if proving is None:
                return number > 0
            proving.proof = prove_signed(proving.frame, proving.key)
            proving.is_done = True
        return True

    def _take_next(self) -> None:
        if self._queue:
            self._ours.extend(self._queue.popleft())
        else:
            self._ours.extend(self._filling)
            self._filling, self._filling_bytes = [], 0

    def _next(self) -> Proving | None:
        self._take_next()
        if self._ours:
            return self._ours.popleft()
        for process in sorted(self._processes, key=lambda process: -len(process.sent)):
            if (proving := process.take_back()) is not None:
                return proving
        return None

    def listen(self, timeout_s: float = 0) -> bool:
        """Take what the processes have said; with a timeout, wait until one says something.

        Returns: whether one did. Raises: ProverDied: a process is gone, or said nothing in that time.
        """
        ready = self._poll.poll(timeout_s * 1000)
        if not ready and timeout_s:
            raise ProverDied(-1, f"no answer in {timeout_s:g} s")
        for fileno, _ in ready:
            self._by_socket[fileno].collect()
        if ready:
            self._hand_out()
        return bool(ready)

    def _hand_out(self) -> None:
        """Give the latest batches to the others while they have less to do than this process.

        The earliest one stays: whose turn comes next is judged here in one go, while the others are ahead.
        """
        while len(self._queue) > 1:
            idlest = min(self._processes, key=lambda process: len(process.sent))
            if len(idlest.sent) >= min(SLOTS, len(self._queue) - 1):
                return
            idlest.send(self._queue.pop())


def _author(frame: bytes) -> Did | None:
    """Whose commit it is, if it is one: the twin of the compiled one."""
    found = route(frame) if b"#commit" in frame[:32] else None
    return None if found is None or not found[1] else Did(found[1])


def _shared_memory() -> int:
    """A file without a name; in memory where the system has such a thing."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("skylease-prover", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # macOS
        return os.dup(file.fileno())
