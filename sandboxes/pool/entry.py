"""What the pool knows of one sandbox or slot."""

from dataclasses import dataclass
from pathlib import Path

from sandboxes.pool.states import LIVE, Kind
from sandboxes.spec import SandboxState


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """See the module. Times are epoch milliseconds."""

    name: str
    kind: Kind
    state: SandboxState
    epoch: int
    since_ms: int  # in this state
    used_ms: int  # when it was last used, as far as the pool has seen
    directory: Path | None = None  # on this node, once it has been up
    is_local: bool = True  # cold: whether its files are on this node, not in the shared store alone
    is_prewarmed: bool = False  # a slot that somebody ordered, and nobody has used yet
    is_dozing: bool = False  # waiting, and its memory paged out
    made_of: str = ""  # a slot: what it was made from, so that one of an older image is told

    @property
    def is_live(self) -> bool:
        """Whether it takes room: memory and processes."""
        return self.state in LIVE or self.state is SandboxState.FAILED  # until it is cleared away

    @property
    def is_slot(self) -> bool:
        """Whether it is nobody's."""
        return self.kind is Kind.SLOT
