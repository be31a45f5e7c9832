"""Getting back in step: which repositories have to be read whole, when, and what is held back meanwhile.

Source: atproto.com/specs/sync, "Repository Synchronization". Pure: gaps, archives and failures come in,
wishes for archives go out; `firehose.resync_shell` carries them out. Repositories in step are not here.
"""

import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from firehose.errors import RepoInvalid
from firehose.resync_journal import Pending
from firehose.syntax import Did
from firehose.verify.accounts import RepoState

MAX_REPOS: Final = 10_000  # ours: out of step at once; a gap of any other repository waits for its next event
MAX_HELD_FRAMES: Final = 2048  # ours: of one repository
MAX_HELD_BYTES: Final = 64_000_000  # ours: of all repositories together
MAX_FETCHES: Final = 8  # at once …
MAX_HOST_FETCHES: Final = 2  # … and from one host
STARTS: Final = 5  # ours: for one repository …
START_WINDOW_MS: Final = 60_000  # … within this time
RETRY_BASE_MS: Final = 60_000  # doubled with each failure in a row, drawn between half of it and all
RETRY_CAP_MS: Final = 3_600_000


class Phase(StrEnum):
    """How a repository stands to what we know of it."""

    SYNCED = "synced"  # in step; the machine forgets it
    DESYNCHRONIZED = "desynchronized"  # events are missing; waits for its turn
    RESYNCING = "resyncing"  # its archive is being read
    ERROR = "error"  # that failed; waits before the next try


class Cause(StrEnum):
    """Why a repository changes its phase."""

    GAP = "gap"
    STARTED = "started"
    ADOPTED = "adopted"
    FAILED = "failed"
    GONE = "gone"  # the account is not active any more


TRANSITIONS: Final = {
    (Phase.SYNCED, Cause.GAP): Phase.DESYNCHRONIZED,
    (Phase.DESYNCHRONIZED, Cause.GAP): Phase.DESYNCHRONIZED,
    (Phase.DESYNCHRONIZED, Cause.STARTED): Phase.RESYNCING,
    (Phase.DESYNCHRONIZED, Cause.GONE): Phase.SYNCED,
    (Phase.RESYNCING, Cause.GAP): Phase.RESYNCING,
    (Phase.RESYNCING, Cause.ADOPTED): Phase.SYNCED,
    (Phase.RESYNCING, Cause.FAILED): Phase.ERROR,
    (Phase.RESYNCING, Cause.GONE): Phase.SYNCED,
    (Phase.ERROR, Cause.GAP): Phase.ERROR,
    (Phase.ERROR, Cause.STARTED): Phase.RESYNCING,
    (Phase.ERROR, Cause.GONE): Phase.SYNCED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRepo:
    """A wish: read the whole repository of this account, from the relay or else from its PDS."""

    did: Did
    attempt: int  # 0 for the first one since it was in step


@dataclass(frozen=True, slots=True)
class HeldFrame:
    """A frame that did not follow from what was known when it came."""

    received_ms: int
    frame: bytes


@dataclass(slots=True, kw_only=True)
class _Repo:
    phase: Phase = Phase.SYNCED
    host: str = ""
    failures: int = 0
    not_before_ms: int = 0
    held: deque[HeldFrame] = field(default_factory=deque)
    held_bytes: int = 0


Note = Callable[[Did, Pending | None], None]


def _nobody(did: Did, pending: Pending | None) -> None:
    return


class Resync:
    """The repositories of one stream that are out of step.

    The contract of the caller:
    - Tell `gap` of each frame whose verdict is DESYNC.
    - Then, and again at `due_ms`, carry out the wishes of `start`; for each call `check` with what the
    archive proved and then `adopted`, or `failed`.
    - What `adopted` gives back, judge once more, in that order: what follows from the archive is new.
    - When an account is not active any more, call `gone`; an archive that comes for it then is unwanted
    (`is_wanted`).
    """

    def __init__(self, rng: random.Random, note: Note = _nobody) -> None:
        """Begin.

        Args:
            rng: draws the pauses after failures.
            note: is told of each repository that gets out of step, fails again, or (None) is done with.
        """
        self._rng = rng
        self._note = note
        self._repos: OrderedDict[Did, _Repo] = OrderedDict()
        self._starts: OrderedDict[Did, deque[int]] = OrderedDict()
        self._paused_hosts: dict[str, int] = {}
        self._held_bytes = 0
        self.counters: Counter[str] = Counter()

    def phase(self, did: Did) -> Phase:
        """Where a repository is."""
        repo = self._repos.get(did)
        return Phase.SYNCED if repo is None else repo.phase

    def phases(self) -> Counter[Phase]:
        """How many repositories are where, apart from those in step."""
        return Counter(repo.phase for repo in self._repos.values())

    def is_wanted(self, did: Did) -> bool:
        """Whether somebody still waits for this archive."""
        return self.phase(did) is Phase.RESYNCING

    def gap(self, did: Did, frame: bytes, now_ms: int, *, host: str | None = None) -> None:
        """A frame does not follow from what is known of its repository.

        Args:
            did: the account.
            frame: as it was received; it is held back.
            now_ms: when it was received, in epoch milliseconds.
            host: the account's PDS, if it is known: the limits per host go by it.
        """
        repo = self._repos.get(did)
        if repo is None:
            if len(self._repos) >= MAX_REPOS:
                self.counters["too-many-repos"] += 1
                return
            repo = self._repos[did] = _Repo(not_before_ms=now_ms)
        repo.host = host or repo.host
        self._move(repo, Cause.GAP)
        self._tell(did, repo)
        self._hold(repo, HeldFrame(now_ms, frame))

    def restore(self, did: Did, pending: Pending) -> None:
        """Take up a repository that was out of step when an earlier run ended."""
        if len(self._repos) < MAX_REPOS:
            self._repos[did] = _Repo(
                phase=Phase.ERROR if pending.failures else Phase.DESYNCHRONIZED,
                host=pending.host,
                failures=pending.failures,
                not_before_ms=pending.not_before_ms,
            )

    def start(self, now_ms: int) -> list[FetchRepo]:
        """The wishes that may be carried out now, within the limits; each counts as begun."""
        running = [repo.host for repo in self._repos.values() if repo.phase is Phase.RESYNCING]
        hosts = Counter(running)
        room = MAX_FETCHES - len(running)
        wishes = []
        for did, repo in self._repos.items():
            if room <= 0:
                break
            if repo.phase is Phase.RESYNCING or now_ms < self._ready_ms(did, repo, now_ms):
                continue
            if hosts[repo.host] >= MAX_HOST_FETCHES:
                continue
            self._move(repo, Cause.STARTED)
            self._note_start(did, now_ms)
            hosts[repo.host] += 1
            room -= 1
            wishes.append(FetchRepo(did=did, attempt=repo.failures))
        return wishes

    def due_ms(self, now_ms: int) -> int | None:
        """When `start` has something to give, if nothing else happens before; None: not by waiting."""
        waiting = [
            self._ready_ms(did, repo, now_ms)
            for did, repo in self._repos.items()
            if repo.phase is not Phase.RESYNCING
        ]
        return min(waiting, default=None)

    def check(self, known: RepoState | None, found: RepoState) -> None:
        """Check that an archive can be what became of the repository that we know.

        Raises: RepoInvalid: it is older, or another history.
        """
        if known is None or found.rev > known.rev:
            return
        if found.rev < known.rev:
            raise RepoInvalid("rev-old", f"the archive is of {found.rev}, and {known.rev} is known")
        if found.data != known.data:
            raise RepoInvalid("fork", f"two trees under the same rev {found.rev}")

    def adopted(self, did: Did) -> tuple[HeldFrame, ...]:
        """The archive was taken up: the repository is in step. Returns: what was held back."""
        repo = self._repos.pop(did)
        self._move(repo, Cause.ADOPTED)
        self._held_bytes -= repo.held_bytes
        self._note(did, None)
        self.counters["adopted"] += 1
        return tuple(repo.held)

    def failed(self, did: Did, now_ms: int, *, retry_after_ms: int | None = None) -> None:
        """There is no archive to be had, or it proves nothing; the host may have asked for a pause."""
        repo = self._repos[did]
        self._move(repo, Cause.FAILED)
        self.counters["failed"] += 1
        pause_ms = min(RETRY_CAP_MS, RETRY_BASE_MS << min(repo.failures, 10))
        repo.not_before_ms = now_ms + int(pause_ms * (0.5 + self._rng.random() / 2))
        repo.failures += 1
        self._repos.move_to_end(did)
        self._tell(did, repo)
        if retry_after_ms is not None:
            self._paused_hosts[repo.host] = now_ms + min(retry_after_ms, RETRY_CAP_MS)

    def gone(self, did: Did) -> None:
        """The account is not active any more: what was held back is not for us."""
        repo = self._repos.pop(did, None)
        if repo is not None:
            self._move(repo, Cause.GONE)
            self._held_bytes -= repo.held_bytes
            self._note(did, None)

    def _tell(self, did: Did, repo: _Repo) -> None:
        pending = Pending(host=repo.host, failures=repo.failures, not_before_ms=repo.not_before_ms)
        self._note(did, pending)

    def _move(self, repo: _Repo, cause: Cause) -> None:
        repo.phase = TRANSITIONS[repo.phase, cause]

    def _hold(self, repo: _Repo, held: HeldFrame) -> None:
        size = len(held.frame)
        if len(repo.held) >= MAX_HELD_FRAMES or self._held_bytes + size > MAX_HELD_BYTES:
            # Nothing is lost by that: what comes later does not follow, and so the archive is read again.
            self.counters["held-dropped"] += 1
            return
        repo.held.append(held)
        repo.held_bytes += size
        self._held_bytes += size

    def _ready_ms(self, did: Did, repo: _Repo, now_ms: int) -> int:
        starts = self._starts.get(did, ())
        recent = [at for at in starts if now_ms - at < START_WINDOW_MS]
        limited_until = recent[0] + START_WINDOW_MS if len(recent) >= STARTS else 0
        paused_until = self._paused_hosts.get(repo.host, 0)
        if paused_until <= now_ms:
            self._paused_hosts.pop(repo.host, None)
        return max(repo.not_before_ms, limited_until, paused_until)

    def _note_start(self, did: Did, now_ms: int) -> None:
        self._starts.setdefault(did, deque(maxlen=STARTS)).append(now_ms)
        self._starts.move_to_end(did)
        while len(self._starts) > MAX_REPOS:
            self._starts.popitem(last=False)
