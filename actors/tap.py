"""The tap as an actor: what the relays say, verified once, re-broadcast with filters."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from actors.faces import Report
from actors.loop import LoopActor
from firehose.identity import DidDirectory
from firehose.segments import TraceLimits
from firehose.tap import Tap, TapSpec

LIVE_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class TapConfig:
    """Where it listens and speaks; the port is fixed, so that agents find a restarted tap again."""

    upstream_urls: tuple[str, ...]
    upstream_name: str | None  # what a single upstream's cursor is kept under; None: its URL
    plc_url: str
    state_dir: Path
    host: str
    port: int
    record: Path | None
    window_limits: TraceLimits  # of what the tap keeps on disk for its clients
    record_limits: TraceLimits
    verify_processes: int
    from_start: bool  # with an empty window, hear all that upstream keeps: a network of our own is small


class TapActor(LoopActor):
    """Runs the tap until stopped. Its window on disk is all it needs to go on after a kill."""

    def __init__(self, config: TapConfig) -> None:
        self._config = config
        self._tap: Tap | None = None
        super().__init__()

    async def main(self) -> None:
        """Follow, verify and re-broadcast until cancelled."""
        config = self._config
        async with (
            DidDirectory(config.plc_url) as directory,
            Tap(
                config.upstream_urls,
                directory,
                config.state_dir,
                host=config.host,
                port=config.port,
                record=config.record,
                cursor=0 if config.from_start else None,
                spec=TapSpec(
                    upstream_name=config.upstream_name,
                    window=config.window_limits,
                    record=config.record_limits,
                    verify_processes=config.verify_processes,
                ),
            ) as tap,
        ):
            self._tap = tap
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(tap.run(), name="tap")
                await self._until_live(tap)
                self.set_ready()

    async def _until_live(self, tap: Tap) -> None:
        """Until upstream has let us in and what it sends can be read."""
        while True:
            upstream = tap.stats()["upstream"]
            counters = {name: count for name, count in upstream["counters"].items() if name != "received"}
            told = ", ".join(f"{count} {name}" for name, count in counters.items())
            self.waiting_for = (
                f"the firehose at {', '.join(self._config.upstream_urls)} "
                f"(state {upstream['state']}; {told or 'no answer'}): "
                "check network.relay_url and network.pds_url"
            )
            if upstream["state"] == "live" and not counters.get("garbage"):
                return
            await asyncio.sleep(LIVE_POLL_S)

    async def stats(self) -> Report:
        """What was seen, verified and rejected, who listens, the newest position; empty while down."""
        return dict(self._tap.stats()) if self._tap else {}
