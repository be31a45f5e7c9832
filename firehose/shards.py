"""Several processes that verify one stream: each account always in the same one, and the order kept.

What crosses a pipe is batches of raw frames one way and three words a frame the other way; whoever wants more
of a frame than its verdict gets it from the frame itself (`Judged.judgement`), which was verified by then.
The verdicts are those of one process, to the letter: what depends on the whole stream (its seq, and frames
that belong to no account) is judged here.
"""

import marshal
import multiprocessing
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Final, Self
from zlib import crc32

from firehose.car import split_car
from firehose.cid import Cid
from firehose.errors import FrameInvalid, ShardDied
from firehose.frames import CommitEvent, parse_frame, route
from firehose.syntax import Did, Tid
from firehose.trace import HEADER
from firehose.verify import Judgement, Policy, Verdict, Verifier
from firehose.verify.proof import VerifiedRecord, check_ops, read_records

BATCH_FRAMES: Final = 64  # one message each way for so many
MAX_BATCHES: Final = 4  # of one process that are not answered yet
STOP_TIMEOUT_S: Final = 5.0
RESULT_TIMEOUT_S: Final = 120.0  # a batch takes 20 ms; a directory may be away for half a minute

# The first byte of what goes to a process: marshal would copy a batch of frames several times.
_BATCH: Final = b"b"
_MESSAGE: Final = b"m"

Resolve = Callable[[str, bool], Mapping[str, Any] | None]  # DID, whether it is a refresh → document


def shard_of(did: str, count: int) -> int:
    """Which of `count` processes an account belongs to."""
    return crc32(did.encode("utf-8", "surrogatepass")) % count


@dataclass(slots=True)
class Judged:
    """A frame and its verdict."""

    received_ms: int
    frame: bytes
    verdict: Verdict | None = None  # None only until its process has answered
    reason: str = ""
    detail: str = ""

    def judgement(self) -> Judgement:
        """The same as a `Verifier` would have said."""
        try:
            event = parse_frame(self.frame)
        except FrameInvalid:
            event = None
        records: tuple[VerifiedRecord, ...] = ()
        if self.verdict is Verdict.ACCEPT and isinstance(event, CommitEvent):
            records = read_records(event, check_ops(event), split_car(event.blocks)[1])
        return Judgement(
            verdict=self.verdict, reason=self.reason, event=event, records=records, detail=self.detail
        )


class VerifyShards:
    """Verifying processes for one stream; a context manager."""

    def __init__(self, count: int, resolve: Resolve, *, policy: Policy = Policy.STRICT) -> None:
        """Prepare `count` processes; `resolve` is called here, by whoever iterates over `judge`."""
        if count < 1:
            raise ValueError(f"{count} processes cannot verify anything")
        self.count = count
        self._resolve = resolve
        self._policy = policy
        self._front = Verifier(policy=policy)
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        self._sent: list[deque[list[Judged]]] = [deque() for _ in range(count)]
        self._filling: list[list[Judged]] = [[] for _ in range(count)]
        self._order: deque[Judged] = deque()
        self.counters: Counter[tuple[Verdict, str]] = Counter()

    def __enter__(self) -> Self:
        """Start the processes; that takes about half a second."""
        context = multiprocessing.get_context("spawn")
        for number in range(self.count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(theirs, str(self._policy)), name=f"verify-{number}", daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()  # that is how they know
        for process in self._processes:
            process.join(STOP_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()

    def judge(self, frames: Iterable[tuple[int, bytes]]) -> Iterator[Judged]:
        """Every frame with its verdict, in their order; each comes with its time of receipt, in epoch ms.

        Raises: ShardDied: a process is gone, and with it what it knew.
        """
        for received_ms, frame in frames:
            self._take(received_ms, frame)
            if len(self._order) % BATCH_FRAMES == 0:
                self._collect(0)
                yield from self._finished()
        for shard in range(self.count):
            self._send(shard)
        while self._order:
            self._collect(RESULT_TIMEOUT_S)
            yield from self._finished()

    def restore(
        self, did: Did, *, rev: Tid | None = None, data: Cid | None = None, active: bool = True
    ) -> None:
        """Take up what an earlier run knew of an account, as `Verifier.restore`."""
        known = (did, rev, None if data is None else data.bytes, active)
        self._write(shard_of(did, self.count), {"restore": known})

    def rewind(self) -> None:
        """Begin the stream again, knowing only keys; what was given to `judge` before keeps its verdicts."""
        self._front.rewind()
        for shard in range(self.count):
            self._send(shard)
            self._write(shard, "rewind")

    def _take(self, received_ms: int, frame: bytes) -> None:
        judged = Judged(received_ms, frame)
        self._order.append(judged)
        shard = self._shard_for(frame)
        if shard is None:
            judgement = self._front.receive(frame, received_ms)
            assert judgement.verdict is not None, "nobody's frame needs no document"
            self._settle(judged, judgement.verdict, judgement.reason, judgement.detail)
            return
        self._filling[shard].append(judged)
        if len(self._filling[shard]) >= BATCH_FRAMES:
            self._send(shard)

    def _shard_for(self, frame: bytes) -> int | None:
        """The process that judges this frame; None: it is judged here. The stream has come to its seq."""
        found = route(frame)
        if found is None:
            return None
        seq, did = found
        last_seq = self._front.last_seq
        if last_seq is not None and seq <= last_seq:
            return None
        self._front.last_seq = seq
        return shard_of(did, self.count)

    def _send(self, shard: int) -> None:
        batch = self._filling[shard]
        if not batch:
            return
        while len(self._sent[shard]) >= MAX_BATCHES:
            self._collect(RESULT_TIMEOUT_S)
        self._filling[shard] = []
        self._sent[shard].append(batch)
        parts = [_BATCH]
        for judged in batch:
            parts += (HEADER.pack(judged.received_ms, len(judged.frame)), judged.frame)
        self._write_raw(shard, b"".join(parts))

    def _collect(self, timeout_s: float) -> None:
        """Take what the processes have said; with a timeout, wait until one says something."""
        waiting = [pipe for pipe, sent in zip(self._pipes, self._sent, strict=True) if sent]
        if not waiting:
            return
        ready = wait(waiting, timeout_s)
        if not ready and timeout_s:
            raise ShardDied(-1, f"no verdict in {timeout_s:g} s")
        for pipe in ready:
            shard = self._pipes.index(pipe)  # type: ignore[arg-type]
            self._hear(shard, self._read(shard))

    def _hear(self, shard: int, message: Any) -> None:
        if isinstance(message, tuple):  # a need: the process waits for the document
            did, is_refresh = message
            document = self._resolve(did, is_refresh)
            self._write(shard, {"document": None if document is None else dict(document)})
            return
        batch = self._sent[shard].popleft()
        for judged, (verdict, reason, detail) in zip(batch, message, strict=True):
            self._settle(judged, Verdict(verdict), reason, detail)

    def _settle(self, judged: Judged, verdict: Verdict, reason: str, detail: str) -> None:
        judged.verdict, judged.reason, judged.detail = verdict, reason, detail
        self.counters[verdict, reason] += 1

    def _finished(self) -> Iterator[Judged]:
        while self._order and self._order[0].verdict is not None:
            yield self._order.popleft()

    def _write(self, shard: int, message: Any) -> None:
        self._write_raw(shard, _MESSAGE + marshal.dumps(message))

    def _write_raw(self, shard: int, message: bytes) -> None:
        try:
            self._pipes[shard].send_bytes(message)
        except OSError as error:
            raise ShardDied(shard, str(error)) from error

    def _read(self, shard: int) -> Any:
        try:
            return marshal.loads(self._pipes[shard].recv_bytes())
        except (EOFError, OSError) as error:
            raise ShardDied(shard, str(error) or "its pipe is closed") from error


def _work(pipe: Connection, policy: str) -> None:
    """One process: batches in, verdicts out, until the pipe closes."""
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # A thread reads, so that neither side ever waits to write while the other one does.
    threading.Thread(target=_receive, args=(pipe, inbox), daemon=True).start()
    verifier = Verifier(policy=Policy(policy))
    waiting: deque[Any] = deque()  # batches that came before the document that is asked for

    def document_of(did: Did, is_refresh: bool) -> Mapping[str, Any] | None:
        pipe.send_bytes(marshal.dumps((did, is_refresh)))
        while True:
            message = inbox.get()
            if message is None:
                raise EOFError
            if isinstance(message, dict) and "document" in message:
                return message["document"]  # type: ignore[no-any-return]
            waiting.append(message)

    try:
        while (message := waiting.popleft() if waiting else inbox.get()) is not None:
            if message == "rewind":
                verifier.rewind()
                continue
            if isinstance(message, dict):
                did, rev, data, active = message["restore"]
                verifier.restore(did, rev=rev, data=None if data is None else Cid(data), active=active)
                continue
            verdicts = []
            for received_ms, frame in message:
                judgement = verifier.receive(frame, received_ms)
                while judgement.needs:
                    for need in judgement.needs:
                        verifier.learn(need.did, document_of(need.did, need.refresh))
                    judgement = verifier.receive(frame, received_ms)
                verdicts.append((str(judgement.verdict), judgement.reason, judgement.detail))
            pipe.send_bytes(marshal.dumps(verdicts))
    except (EOFError, OSError, KeyboardInterrupt):
        return  # the other side is gone


def _frames_in(message: bytes) -> list[tuple[int, bytes]]:
    frames, at = [], len(_BATCH)
    while at < len(message):
        received_ms, length = HEADER.unpack_from(message, at)
        at += HEADER.size + length
        frames.append((received_ms, message[at - length : at]))
    return frames


def _receive(pipe: Connection, inbox: "queue.SimpleQueue[Any]") -> None:
    try:
        while True:
            message = pipe.recv_bytes()
            inbox.put(_frames_in(message) if message[:1] == _BATCH else marshal.loads(message[1:]))
    except (EOFError, OSError):
        inbox.put(None)
