"""`skylease firehose`: the protocol tools, without Ray."""

import asyncio
import contextlib
import errno
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from actors.cli.console import Answer, frame_counter, run
from actors.cli.moments import parse_moment_us, parse_start
from actors.errors import Refused, TraceDamaged, WrongUse
from actors.replay import JudgeSpec, Material, judge_trace, load_material, load_state
from firehose import CommitEvent, Policy, Subscriber, TraceInvalid, parse_frame
from firehose.segments import SegmentWriter, TraceLimits
from firehose.serve import FrameServer
from firehose.trace import TraceWriter, read_trace
from firehose.trace_window import TraceWindow

app = typer.Typer(help="The AT Protocol firehose: verify, record, serve and tail.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Trace = Annotated[Path, typer.Argument(help="Trace: an .fht file, or a directory of segments.")]
Url = Annotated[str, typer.Argument(help="PDS, relay or tap: ws(s):// or http(s)://host[:port].")]
Cursor = Annotated[
    int | None, typer.Option(min=0, help="Start after this seq; 0: all it keeps; default: now.")
]
GIVE_UP_S = 10.0  # without a stream; a tool that waits for ever looks broken


@app.command("verify")
def verify(
    trace: Trace,
    did_docs: Annotated[
        Path | None,
        typer.Option(help="DID documents; default: {trace}.did_docs.json beside it, or those noted in it."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="What was known before: a JSON object, DID to {rev, data, active}.")
    ] = None,
    now: Annotated[
        str | None, typer.Option(help="The verifier's clock, RFC 3339; default: when each frame came.")
    ] = None,
    policy: Annotated[
        Policy, typer.Option(help="How much a commit must prove besides hashes and signature.")
    ] = Policy.STRICT,
    processes: Annotated[
        int, typer.Option(min=1, max=64, help="How many verify at once; the verdicts are the same.")
    ] = 1,
    from_seq: Annotated[int | None, typer.Option(min=0, help="Begin with this seq.")] = None,
    from_time: Annotated[str | None, typer.Option(help="Begin with what came then, RFC 3339.")] = None,
    as_json: Json = False,
) -> None:
    """Judge every frame of a trace with the trace's clock; a line a frame, then a summary."""
    answer = Answer(as_json=as_json)
    material = load_material(trace, did_docs)
    spec = JudgeSpec(
        now_ms=None if now is None else parse_moment_us("--now", now) // 1000,
        policy=policy,
        state={} if state is None else load_state(state),
        processes=processes,
        start=parse_start(from_seq, from_time),
    )
    run(_verify(material, spec, answer))


async def _verify(material: Material, spec: JudgeSpec, answer: Answer) -> None:
    verdicts: Counter[str] = Counter()
    with frame_counter() as bar:
        task = bar.add_task("frames", total=None)
        async for judged in judge_trace(material, spec):
            event, verdict = judged.judgement.event, judged.judgement.verdict
            assert verdict is not None
            verdicts[verdict] += 1
            bar.update(task, advance=1)
            row = {
                "seq": getattr(event, "seq", None),
                "type": type(event).__name__.removesuffix("Event").lower() if event else None,
                "did": getattr(event, "did", None),
                "rev": getattr(event, "rev", None),
                "verdict": verdict,
                "reason": judged.judgement.reason,
            }
            if answer.as_json:
                answer.object(row)
            elif verdict not in ("accept", "noop"):
                answer.object(row, f"{row['seq']} {row['did']} {verdict}: {row['reason']}")
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())) or "no frames"
    lost = material.notes.lost
    answer.object(
        {"frames": verdicts.total(), "verdicts": dict(sorted(verdicts.items())), "lost": lost},
        f"{told}; {lost} frames were lost while it was recorded" if lost else told,
    )


@app.command("record")
def record(
    url: Url,
    trace: Annotated[
        Path,
        typer.Argument(
            help="Trace to write or go on with: an .fht file, or by any other name a directory of compressed "
            "segments."
        ),
    ],
    cursor: Cursor = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Stop after so long.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many frames.")] = None,
    keep_mib: Annotated[
        int | None, typer.Option(min=1, help="Delete the oldest segments beyond so many MiB.")
    ] = None,
    keep_hours: Annotated[
        float | None, typer.Option(min=0.01, help="Delete segments that are older.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Record raw frames as they come, until Ctrl-C, --seconds or --count."""
    answer = Answer(as_json=as_json)
    done = {"trace": str(trace), "frames": 0, "last_seq": cursor}
    limits = TraceLimits(
        keep_bytes=None if keep_mib is None else keep_mib * 1024 * 1024,
        keep_s=None if keep_hours is None else keep_hours * 3600,
    )
    if trace.suffix == ".fht" and (keep_mib or keep_hours):
        raise WrongUse(f"{trace} is one file that only grows: --keep-mib and --keep-hours need a directory")
    try:
        with contextlib.suppress(KeyboardInterrupt):
            run(_record(url, trace, limits, done, seconds, count))
    except OSError as error:
        if error.filename is None and error.errno == errno.ENOSPC:
            raise TraceDamaged(
                f"no space left for {trace}: {done['frames']} frames are in it, free some space"
            ) from None
        raise
    answer.object(done, f"{done['frames']} frames in {trace}, last seq {done['last_seq']}")


def _writer(trace: Path, limits: TraceLimits) -> TraceWriter | SegmentWriter:
    if trace.suffix == ".fht" and not trace.is_dir():
        return TraceWriter(trace)
    try:
        return SegmentWriter(trace, limits)
    except BlockingIOError:
        raise Refused(f"somebody else records into {trace}: choose another directory") from None


async def _record(
    url: str, trace: Path, limits: TraceLimits, done: dict[str, Any], seconds: float | None, count: int | None
) -> None:
    with _writer(trace, limits) as writer, frame_counter() as bar, contextlib.suppress(TimeoutError):
        task = bar.add_task("frames", total=None)
        async with (
            Subscriber(url, cursor=done["last_seq"], give_up_after_s=GIVE_UP_S) as subscriber,
            asyncio.timeout(seconds),
        ):
            async for frame in subscriber.frames():
                writer.append(time.time_ns() // 1000, frame)
                writer.flush()
                done["frames"] += 1
                done["last_seq"] = subscriber.cursor
                bar.update(task, completed=done["frames"])
                if done["frames"] == count:
                    return


@app.command("serve")
def serve(
    trace: Trace,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    as_json: Json = False,
) -> None:
    """Serve a recorded trace as subscribeRepos, with cursors over all of it and filters, until Ctrl-C."""
    run(_serve(trace, host, port, Answer(as_json=as_json)))


async def _serve(trace: Path, host: str, port: int, answer: Answer) -> None:
    try:
        with frame_counter() as bar:
            task = bar.add_task("frames", total=None)
            window = TraceWindow(trace, lambda done: bar.update(task, completed=done))
    except TraceInvalid as error:
        whole = sum(1 for _ in read_trace(trace, tolerate_torn_tail=True)) if "torn" in error.reason else 0
        raise TraceDamaged(f"{error} ({whole} whole frames before it): name a whole trace") from None
    async with FrameServer(host, port, window) as server:
        served = {
            "url": server.url,
            "frames": len(window),
            "unreadable": window.skipped,
            "first_seq": window.first_seq,
            "last_seq": window.last_seq,
        }
        answer.object(
            served,
            f"{served['frames']} frames, seq {window.first_seq} to {window.last_seq}, on {server.url}; "
            "Ctrl-C ends it",
        )
        await asyncio.Event().wait()


@app.command("tail")
def tail(
    url: Url,
    cursor: Cursor = None,
    did: Annotated[list[str] | None, typer.Option(help="Only this account; repeatable.")] = None,
    collection: Annotated[list[str] | None, typer.Option(help="Only this collection, or prefix.*")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many frames.")] = None,
    as_json: Json = False,
) -> None:
    """Print events as they come, unverified; filters are applied by a tap, a PDS ignores them."""
    run(_tail(url, cursor, tuple(did or ()), tuple(collection or ()), count, Answer(as_json=as_json)))


async def _tail(
    url: str,
    cursor: int | None,
    dids: tuple[str, ...],
    collections: tuple[str, ...],
    count: int | None,
    answer: Answer,
) -> None:
    seen = 0
    async with Subscriber(
        url, cursor=cursor, dids=dids, collections=collections, give_up_after_s=GIVE_UP_S
    ) as subscriber:
        async for frame in subscriber.frames():
            row = _row(frame)
            answer.object(row, f"{row['seq']} {row['type']} {row['did']} {' '.join(row['ops'])}".rstrip())
            seen += 1
            if seen == count:
                return


def _row(frame: bytes) -> dict[str, Any]:
    event = parse_frame(frame)
    ops = [f"{op.action} {op.path}" for op in event.ops] if isinstance(event, CommitEvent) else []
    kind = type(event).__name__.removesuffix("Event").lower()
    return {
        "seq": getattr(event, "seq", None),
        "type": kind,
        "did": getattr(event, "did", None),
        "rev": getattr(event, "rev", None),
        "ops": ops,
    }
