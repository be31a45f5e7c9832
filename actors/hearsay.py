"""What a Jetstream server says of our records: nothing in it is signed, so it is another ear, not a witness.

It never begins a lease: agents do not listen here. It ends one only where the configuration believes it
(`network.unverified`); otherwise what it says is counted and forgotten.
"""

import logging
from collections.abc import Callable, Sequence

from actors import records
from actors.events import RecordEvent, RecordReader
from firehose import Jetstream, SubscriptionError, ToldRecord
from leases import Ledger

log = logging.getLogger(__name__)


async def listen(
    url: str,
    collections: Sequence[str],
    reader: RecordReader,
    ledger: Ledger,
    *,
    believes: bool,
    wake: Callable[[], None],
) -> None:
    """Follow a Jetstream server from now on, until cancelled or until it cannot be followed any further.

    Args:
        url: of the server.
        collections: which records to hear.
        reader: reads ours out of them.
        ledger: counts what is heard; its leases end by it if `believes`.
        believes: whether an ending that nobody has proved counts.
        wake: is called when leases may have ended.
    """
    async with Jetstream(url, collections=collections) as jetstream:
        try:
            async for told in jetstream.events():
                event = reader.read_told(told) if isinstance(told, ToldRecord) else None
                if event is not None and _hear(event, ledger, believes=believes):
                    wake()
        except SubscriptionError as error:  # the proved stream goes on without it
            log.error("jetstream given up", extra={"url": url, "reason": str(error)})


def _hear(event: RecordEvent, ledger: Ledger, *, believes: bool) -> bool:
    if event.collection in (records.ENV_CREATED, records.GAME_TURN):
        return False
    ledger.count("unverified_believed" if believes else "unverified_ignored")
    if believes:
        ledger.expire_by_condition(
            event.record["environment"],
            records.condition_of(event.collection),
            author_did=event.author_did,
            subject_did=event.record.get("subject"),
            event=event.uri,
        )
    return believes
