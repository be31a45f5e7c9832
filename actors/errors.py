"""What can go wrong in this room, as one tree; each reaches a person as one line: what, which, what to do.

SkyleaseError
├── SettingsInvalid          the configuration
├── WrongUse                 a command that makes no sense as typed (exit 2)
├── NotThere                 the thing asked for does not exist (exit 3)
├── Refused                  budget, capacity, dirty state (exit 4)
├── ClusterUnavailable       no Ray cluster, or it lacks what an actor needs
├── ActorSilent              an actor did not answer in time
├── ActorFailed              an actor could not start, and why
├── TraceDamaged             a trace ends in the middle of a frame, or is none
└── GameFailed               a game could not be played to its end

They cross Ray, so every one takes positional arguments and hands them to `super().__init__`.
"""

from typing import ClassVar


class SkyleaseError(Exception):
    """Base: `exit_code` is what the command line returns (DESIGN, section 4.6)."""

    exit_code: ClassVar[int] = 1


class SettingsInvalid(SkyleaseError):
    """A setting that does not exist or cannot have this value. `name` says which, and of what kind it is."""

    exit_code = 2

    def __init__(self, name: str, problem: str, remedy: str) -> None:
        super().__init__(name, problem, remedy)
        self.name, self.problem, self.remedy = name, problem, remedy

    def __str__(self) -> str:
        return f"{self.name} {self.problem}: {self.remedy}"


class _Line(SkyleaseError):
    """An error whose one argument is its line."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.line = line

    def __str__(self) -> str:
        return self.line


class WrongUse(_Line):
    """The command makes no sense as typed."""

    exit_code = 2


class NotThere(_Line):
    """The thing asked for does not exist."""

    exit_code = 3


class Refused(_Line):
    """Budget, capacity or dirty state forbids it."""

    exit_code = 4


class ClusterUnavailable(_Line):
    """No Ray cluster can be reached or started, or it lacks what an actor needs."""


class TraceDamaged(_Line):
    """A trace ends in the middle of a frame, or is none."""


class GameFailed(_Line):
    """A game could not be played to its end."""


class ActorFailed(SkyleaseError):
    """An actor could not start; `reason` is its own error's line."""

    def __init__(self, actor: str, reason: str) -> None:
        super().__init__(actor, reason)
        self.actor, self.reason = actor, reason

    def __str__(self) -> str:
        return f"the {self.actor.partition(':')[0]} cannot start: {self.reason}"


class ActorSilent(SkyleaseError):
    """An actor did not answer within its deadline."""

    def __init__(self, actor: str, call: str, timeout_s: float) -> None:
        super().__init__(actor, call, timeout_s)
        self.actor, self.call, self.timeout_s = actor, call, timeout_s

    def __str__(self) -> str:
        return (
            f"actor {self.actor} did not answer {self.call} within {self.timeout_s:g} s: "
            "see `skylease status`, and its log under the Ray session directory"
        )
