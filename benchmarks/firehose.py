"""What it costs to verify a frame, against the SDK's parse and signature check, and against decoding.

All run on one core, in turns, so that whatever else the machine does weighs on all of them. "warm" means that
keys are known, as they are for a consumer that has run for a while; "chained" that the state of each
repository is known as well; "read" that the event and each record are wanted as Python values on top of that
(who only routes frames asks for neither). What each side does:
- ours: frame, archive, each block's hash, commit, signature, MST inversion, chain, records: Sync 1.1 in full.
- atproto_sdk: frame into its models, archive, records, its own signature check; no hash, no tree, no chain.
- decode_only: frame and archive into Python values with libipld; nothing is checked.
"one_process" and "two_processes" are the whole pipeline over a longer stream, on whatever cores there are:
one judges by itself; of two, both prove, and one judges. "two_apart" are two processes that know nothing of
each other, with half of that stream each: what this machine gives to two processes at most, at that time. So
"two_to_one" is to be read beside "machine_two_to_one", in the same run.

By itself: `python -m benchmarks.firehose`, in the checkout (as a script it would stand in its room's way).
"""

import json
import os
import platform
import select
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final

import libipld

from firehose import compiled
from firehose.document import signing_key
from firehose.frames import CommitEvent, parse_frame
from firehose.provers import Provers
from firehose.syntax import Did
from firehose.trace import read_trace
from firehose.verify import Verdict, Verifier

ROOT: Final = Path(__file__).parents[1]
# Posts of strangers are not copied into the project; where they lie beside the checkout they say more.
TRACES: Final = (ROOT.parent / "shared/data/relay-real-100.fht", ROOT / "tests/data/pds-trace.fht")
ROUNDS: Final = 21
DEADLINE_S: Final = 120.0
_OTHER: Final = "--other"
STREAM_PASSES: Final = 20  # over the frames, for several processes: a short stream is all beginning and end

Frames = list[tuple[int, bytes]]  # time of receipt in epoch milliseconds, and the frame
Documents = dict[str, list[dict[str, Any]]]
Stream = list[tuple[tuple[int, int, bytes], bytes]]  # (pass over the frames, time, frame), frame
Pass = Callable[[], int]  # one pass over all frames; returns how many it took as true


def bench_firehose(n: int = ROUNDS, trace: Path | None = None) -> dict[str, Any]:
    """Verify a recorded trace `n` times; the object of `skylease bench firehose --json`, in µs per frame."""
    path = trace or next(path for path in TRACES if path.is_file())
    frames, documents = _load(path)
    passes = {
        ("ours", "verify_warm"): _ours(frames, documents, chained=False),
        ("ours", "verify_chained"): _ours(frames, documents, chained=True),
        ("ours", "verify_read"): _ours(frames, documents, chained=True, is_read=True),
        ("decode_only", "verify_warm"): _decode_only(frames),
    }
    sdk = _sdk(frames, documents)
    if sdk is not None:
        passes["atproto_sdk", "verify_warm"] = sdk
    with _one_core():
        took = _in_turns(n, passes, len(frames))
    ours = {case: took["ours", case] for side, case in passes if side == "ours"}
    ours |= _processes(n, path, frames, documents)
    peers = {side: {case: took[side, case]} for side, case in passes if side != "ours"}
    return {
        "bench": "firehose",
        "unit": "us",
        "trace": path.name,
        "frames": len(frames),
        "compiled": compiled.fast is not None,
        "ours": ours,
        "peers": peers,
        "absent": {} if sdk else {"atproto_sdk": "not installed (it comes with the extra dev)"},
        "ratios": {
            peer: {
                case: round(cases["verify_warm"]["p50"] / ours[case]["p50"], 2)
                for case in ("verify_warm", "verify_chained", "verify_read")
            }
            for peer, cases in peers.items()
        },
        "two_to_one": round(ours["one_process"]["p50"] / ours["two_processes"]["p50"], 2),
        "machine_two_to_one": round(ours["one_process"]["p50"] / ours["two_apart"]["p50"], 2),
        "machine": f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}",
    }


def _load(path: Path) -> tuple[Frames, Documents]:
    frames = [(recorded.received_us // 1000, recorded.frame) for recorded in read_trace(path)]
    documents = json.loads(path.with_suffix(".did_docs.json").read_text())
    return frames, {did: doc if isinstance(doc, list) else [doc] for did, doc in documents.items() if doc}


def _ours(frames: Frames, documents: Documents, *, chained: bool, is_read: bool = False) -> Pass:
    verifier = Verifier()
    steps: dict[str, int] = {}

    def judge_all() -> int:
        good, records = 0, 0
        for now_ms, frame in frames:
            judgement = verifier.receive(frame, now_ms)
            while judgement.needs:
                for need in judgement.needs:
                    known = documents[need.did]
                    step = steps[need.did] = min(steps.get(need.did, -1) + need.refresh, len(known) - 1)
                    verifier.learn(need.did, known[max(step, 0)])
                judgement = verifier.receive(frame, now_ms)
            good += judgement.verdict in (Verdict.ACCEPT, Verdict.NOOP)
            if is_read:
                records += len(judgement.records) if judgement.event is not None else 0
        return good

    bases = _bases(frames) if chained else {}

    def run() -> int:
        verifier.rewind()
        for did, base in bases.items():
            if base.since is not None and base.prev_data is not None:
                verifier.adopt(did, rev=base.since, data=base.prev_data)
        return judge_all()

    run()  # the keys
    return run


def _processes(n: int, path: Path, frames: Frames, documents: Documents) -> dict[str, dict[str, Any]]:
    """One process, two that share a stream, and two with half of it each, on whatever cores there are."""
    items = _stream(frames, STREAM_PASSES)
    half = _stream(frames, STREAM_PASSES // 2)
    one, two = Verifier(), Verifier()
    with Provers(1, one.key_of) as alone, Provers(2, two.key_of) as both, _other(path) as other:
        passes: dict[tuple[str, str], Pass] = {
            ("ours", "one_process"): partial(_judge_stream, items, documents, one, alone),
            ("ours", "two_processes"): partial(_judge_stream, items, documents, two, both),
            ("ours", "two_apart"): partial(
                _apart, partial(_judge_stream, half, documents, one, alone), other
            ),
        }
        if len({judge_all() for judge_all in passes.values()}) != 1:  # they learn the keys, too
            raise AssertionError("one process and two do not agree")
        took = _in_turns(min(n, 9), passes, len(items))
    return {case: took[side, case] for side, case in passes}


def _stream(frames: Frames, passes: int) -> Stream:
    return [((number, now_ms, frame), frame) for number in range(passes) for now_ms, frame in frames]


def _judge_stream(items: Stream, documents: Documents, verifier: Verifier, provers: Provers) -> int:
    good, present = 0, -1
    for (number, now_ms, frame), proved in provers.ahead(items):
        if number != present:
            present = number
            verifier.rewind()
        judgement = verifier.receive(frame, now_ms, proved)
        while judgement.needs:
            for need in judgement.needs:
                verifier.learn(need.did, documents[need.did][-1 if need.refresh else 0])
            judgement = verifier.receive(frame, now_ms, proved)
        good += judgement.verdict in (Verdict.ACCEPT, Verdict.NOOP)
    return good


@contextmanager
def _other(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that judges half of the stream whenever it gets a line, and then says how it went."""
    command = [sys.executable, "-m", "benchmarks.firehose", _OTHER, str(path.resolve())]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        try:
            yield process
        finally:
            process.kill()
            with suppress(BrokenPipeError):  # what it did not read
                process.communicate(timeout=DEADLINE_S)


def _apart(ours: Pass, other: "subprocess.Popen[str]") -> int:
    """Both halves at once."""
    assert other.stdin is not None
    assert other.stdout is not None
    with suppress(BrokenPipeError):  # then it does not answer either
        other.stdin.write("go\n")
    good = ours()
    if not select.select([other.stdout], [], [], DEADLINE_S)[0] or not (line := other.stdout.readline()):
        raise RuntimeError("the process beside this one gave no answer; what it said is above")
    return good + int(line)


def _be_other(path: Path) -> None:
    frames, documents = _load(path)
    half = _stream(frames, STREAM_PASSES // 2)
    verifier = Verifier()
    with Provers(1, verifier.key_of) as alone:
        for _ in sys.stdin:
            sys.stdout.write(f"{_judge_stream(half, documents, verifier, alone)}\n")
            sys.stdout.flush()


def _bases(frames: Frames) -> dict[Did, CommitEvent]:
    """The first commit of each account: what it stands on is what a running consumer knows."""
    bases: dict[Did, CommitEvent] = {}
    for _, frame in frames:
        event = parse_frame(frame)
        if isinstance(event, CommitEvent):
            bases.setdefault(event.did, event)
    return bases


def _decode_only(frames: Frames) -> Pass:
    def run() -> int:
        for _, frame in frames:
            body = libipld.decode_dag_cbor_multi(frame)[1]
            if "ops" in body:
                libipld.decode_car(body["blocks"])
        return len(frames)

    return run


def _sdk(frames: Frames, documents: Documents) -> Pass | None:
    """The same work as far as the SDK goes; None if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            car_of = import_module("atproto_core.car").CAR.from_bytes
            verify_signature = import_module("atproto_crypto.verify").verify_signature
            parse_message = import_module("atproto_firehose").parse_subscribe_repos_message
            frame_of = import_module("atproto_firehose.models").Frame.from_bytes
    except ImportError:
        return None
    keys = {did: signing_key(docs[-1], Did(did)).did_key for did, docs in documents.items()}

    def run() -> int:
        good = 0
        for _, frame in frames:
            message = parse_message(frame_of(frame))
            if type(message).__name__ != "Commit":
                continue
            car = car_of(message.blocks)
            commit = dict(car.blocks[car.root])
            signature = commit.pop("sig")
            commit["prev"] = None
            good += verify_signature(keys[message.repo], libipld.encode_dag_cbor(commit), signature)
            for op in message.ops:
                if op.cid is not None:
                    car.blocks.get(op.cid)
        return good

    return run


def _in_turns(
    n: int, passes: dict[tuple[str, str], Pass], frames: int
) -> dict[tuple[str, str], dict[str, Any]]:
    took: dict[tuple[str, str], list[float]] = {name: [] for name in passes}
    for _ in range(n):
        for name, run in passes.items():
            start = perf_counter_ns()
            run()
            took[name].append((perf_counter_ns() - start) / 1000 / frames)
    return {
        name: {
            "p50": round(statistics.median(times), 1),
            "p99": round(sorted(times)[n * 99 // 100], 1),
            "per_second": round(1e6 / statistics.median(times)),
            "n": n,
        }
        for name, times in took.items()
    }


@contextmanager
def _one_core() -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):  # macOS: as the scheduler likes
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


if __name__ == "__main__":
    if sys.argv[1:2] == [_OTHER]:
        _be_other(Path(sys.argv[2]))
    else:
        answer = bench_firehose(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
