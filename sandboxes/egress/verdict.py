"""How a connection through the proxy went."""

from enum import StrEnum


class Verdict(StrEnum):
    """One word per connection, for the log and the counts."""

    ALLOWED = "allowed"
    HOST_NOT_ALLOWED = "host-not-allowed"
    ADDRESS_REFUSED = "address-refused"
    BAD_REQUEST = "bad-request"
    NAME_MISMATCH = "name-mismatch"  # a tunnel asked for another server than it was opened to
    NO_SECRET = "no-secret"
    NO_SUCH_HOST = "no-such-host"
    UNREACHABLE = "unreachable"
    BAD_RESPONSE = "bad-response"
    TOO_LARGE = "too-large"
    TIMED_OUT = "timed-out"
    BROKEN = "broken"  # one side went away
    CLOSED = "closed"  # the sandbox was destroyed, or the proxy stopped


class Refusal(Exception):
    """A connection is not served: the HTTP status and the line for the sandbox, the verdict for us."""

    def __init__(self, status: int, verdict: Verdict, line: str) -> None:
        super().__init__(status, verdict, line)
        self.status, self.verdict, self.line = status, verdict, line
