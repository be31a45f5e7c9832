"""What the supervisor hears on the firehose: endings, which end leases, and strangers, who are counted."""

from collections.abc import Callable
from typing import Final

from actors import records
from actors.events import RecordEvent, RecordReader
from firehose import Subscriber
from leases import Ledger

CURSOR: Final = "supervisor"
HEARD: Final = (*records.ENDINGS, records.GAME_TURN, records.ENV_CREATED)


class Hearing:
    """Follows the tap; what an ending does and the position after it are one transaction.

    Args:
        ledger: its leases end.
        reader: reads our records out of frames.
        tap_url: ws(s) origin of the tap.
        start_cursor: where to begin at the earliest.
        wake: is called when leases may have ended.
    """

    def __init__(
        self,
        ledger: Ledger,
        reader: RecordReader,
        *,
        tap_url: str,
        start_cursor: int,
        wake: Callable[[], None],
    ) -> None:
        self._ledger, self._reader, self._wake = ledger, reader, wake
        self._tap_url, self._start_cursor = tap_url, start_cursor
        self._creators: dict[str, str] = {}  # environment → who created it, for counting strangers

    async def listen(self) -> None:
        """Hear until cancelled, from where it was left."""
        saved = self._ledger.cursor(CURSOR)
        subscriber = Subscriber(self._tap_url, cursor=max(self._start_cursor, saved or 0), collections=HEARD)
        async for frame in subscriber.frames():
            for event in self._reader.read(frame)[1]:
                self._hear(event)

    def _hear(self, event: RecordEvent) -> None:
        environment_id = event.record["environment"]
        if event.collection == records.ENV_CREATED:
            self._creators.setdefault(environment_id, event.author_did)
        elif event.collection == records.GAME_TURN:
            if event.author_did not in self._authorities(environment_id):
                with self._ledger.atomic():
                    self._ledger.count("turn_from_stranger")
                    self._ledger.save_cursor(CURSOR, event.seq)
        else:
            with self._ledger.atomic():
                self._ledger.expire_by_condition(
                    environment_id,
                    records.condition_of(event.collection),
                    author_did=event.author_did,
                    subject_did=event.record.get("subject"),
                    event=event.uri,
                )
                self._ledger.save_cursor(CURSOR, event.seq)
            self._wake()

    def _authorities(self, environment_id: str) -> set[str]:
        leases = self._ledger.list(environment_id=environment_id)
        creator = self._creators.get(environment_id)
        return {lease.authority_did for lease in leases} or ({creator} if creator else set())
