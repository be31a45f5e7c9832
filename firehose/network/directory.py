"""The did:plc directory of the embedded network: signed operations in, documents out."""

import json
from collections.abc import Callable
from typing import Any

from firehose.network.store import Store
from firehose.plc import Operation, PlcState, check_genesis, check_log, check_update, render_document
from firehose.syntax import Did


class PlcDirectory:
    """Every operation is checked before it is stored, whoever brings it: the network's own PDS too."""

    def __init__(self, store: Store, *, clock: Callable[[], int]) -> None:
        """Keep operations in `store`; `clock` gives epoch milliseconds."""
        self._store = store
        self._clock = clock
        self._states: dict[str, PlcState] = {}

    def state(self, did: str) -> PlcState | None:
        """What the latest operation says; None if there is no such DID here."""
        if did not in self._states:
            operations = self.log(did)
            if not operations:
                return None
            self._states[did] = check_log(did, operations)
        return self._states[did]

    def document(self, did: str) -> dict[str, Any] | None:
        """The DID document; None if there is no such DID here."""
        state = self.state(did)
        return None if state is None else render_document(state)

    def log(self, did: str) -> list[Operation]:
        """All operations, the genesis first; empty if there is no such DID here."""
        rows = self._store.rows("SELECT operation FROM plc_operations WHERE did = ? ORDER BY position", did)
        return [json.loads(row[0]) for row in rows]

    def submit(self, did: str, operation: Operation) -> PlcState:
        """Check and store one operation; the same operation again changes nothing.

        Raises:
            PlcOperationInvalid: it is not a genesis of this DID, or does not follow the latest operation.
        """
        current = self.state(did)
        position = len(self.log(did))
        if current is not None and self.log(did)[-1] == operation:
            return current
        state = check_genesis(did, operation) if current is None else check_update(current, operation)
        self._store.execute(
            "INSERT INTO plc_operations VALUES (?, ?, ?, ?)",
            Did(did),
            position,
            json.dumps(operation).encode(),
            self._clock(),
        )
        self._states[did] = state
        return state

    def forget(self, did: str) -> None:
        """Drop what is cached about this DID: the transaction that changed it has failed."""
        self._states.pop(did, None)
