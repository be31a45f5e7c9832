"""The embedded network as an actor: PDS, did:plc directory and relay on one port, kept in one SQLite file."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from actors.events import RecordReader
from actors.faces import Report
from actors.loop import LoopActor
from firehose.network import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """`path` is its database; the port is fixed, so that clients find a restarted network again."""

    path: Path
    host: str
    port: int
    lexicons: Path


class NetworkActor(LoopActor):
    """Serves until stopped."""

    def __init__(self, config: NetworkConfig) -> None:
        self._config = config
        self._network: Network | None = None
        super().__init__()

    async def main(self) -> None:
        """Serve until cancelled."""
        config = self._config
        config.path.parent.mkdir(parents=True, exist_ok=True)
        validate = RecordReader(config.lexicons).check
        async with Network(config.path, host=config.host, port=config.port, validate=validate) as network:
            self._network = network
            self.set_ready()
            await asyncio.Event().wait()

    async def stats(self) -> Report:
        """Counts of the network; empty while it is down."""
        return dict(self._network.stats()) if self._network else {}
