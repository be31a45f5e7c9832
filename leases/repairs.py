"""What was found to disagree with the ledger, and what was done about it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leases.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """One disagreement: what was found where, and what was done; `name` is of a sandbox or a folder."""

    at: int  # epoch ms
    found: str
    done: str
    node_id: str
    name: str
    lease_id: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        whose = f" of {self.lease_id}" if self.lease_id else ""
        return f"{self.name}{whose}: {self.found}; {self.done}"


def write(store: Store, repair: Repair) -> None:
    """Note a repair."""
    store.run(
        "INSERT INTO repairs (at, found, done, node_id, name, lease_id, detail) VALUES (?, ?, ?, ?, ?, ?, ?)",
        *(repair.at, repair.found, repair.done, repair.node_id, repair.name, repair.lease_id),
        json.dumps(repair.detail, sort_keys=True) if repair.detail else None,
    )


def read(store: Store, limit: int) -> list[Repair]:
    """Give the newest repairs, the newest first."""
    return [
        Repair(
            at=row["at"],
            found=row["found"],
            done=row["done"],
            node_id=row["node_id"],
            name=row["name"],
            lease_id=row["lease_id"],
            detail=json.loads(row["detail"]) if row["detail"] else {},
        )
        for row in store.rows("SELECT * FROM repairs ORDER BY id DESC LIMIT ?", limit)
    ]
