"""What can go wrong in this room, as one tree.

FirehoseError
├── SyntaxInvalid         a DID, handle, NSID, TID, record key, AT-URI or CID string is malformed
├── DrislInvalid          bytes are not canonical DRISL-CBOR, or a value cannot be written as such
├── CarInvalid            an archive is malformed, or one of its blocks does not hash to its CID
├── MstInvalid            a tree node breaks a rule of the repository specification
├── MissingBlock          a block that is needed is not there (also a KeyError)
├── KeyInvalid            a key cannot be parsed, or its curve is unknown
├── DocumentInvalid       a DID document does not say what we need of it
├── RepoInvalid           a repository or commit breaks a rule (the peer's fault)
├── WriteRefused          a write does not fit the repository's present state (the caller's fault)
├── FrameInvalid          a frame of the stream breaks a rule; carries a stable reason
├── TraceInvalid          a trace file is damaged
├── LexiconInvalid        a record does not fit its schema
│   └── LexiconUnknown    no schema is known for this NSID
├── HttpError             an HTTP exchange gave no answer
│   ├── HttpAddressInvalid    not an address we could ask (the caller's fault)
│   ├── HttpUnreachable       no connection, or it broke (also a ConnectionError)
│   ├── HttpTimeout           no whole answer in time (also a TimeoutError)
│   ├── HttpTooLarge          the answer is larger than we read
│   └── HttpProtocolError     what came back is not HTTP
├── XrpcError             a server refused a call, and says why
├── DirectoryUnavailable  nobody could say who a DID is: "could not check", not "invalid"
├── PlcOperationInvalid   a did:plc operation is malformed, unsigned, or of another DID
├── SubscriptionError     a stream cannot be followed any further
│   ├── CursorInFuture        the host has never issued our cursor
│   ├── SubscriptionRefused   the host says that this stream will not be served
│   └── UpstreamUnreachable   no stream in the time that we were given
├── ProverDied            a process that verifies is gone
├── ListenFailed          a server cannot take its address (also an OSError)
│   └── PortInUse             somebody else has the port
├── WindowUnavailable     a tap's window file cannot be read or written
└── StoreUnavailable      the embedded network's database cannot be opened, read or written

Every class passes its arguments on to `Exception`, so that an instance survives pickling.
"""

SHOWN_CHARS = 80  # of a stranger's value in a message


def shown(value: object) -> str:
    """A stranger's value as it may stand in a message: quoted, and cut when it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


class FirehoseError(Exception):
    """Anything that this room raises on purpose."""


class SyntaxInvalid(FirehoseError, ValueError):
    """A string is not a valid `kind`."""

    def __init__(self, kind: str, value: object) -> None:
        super().__init__(kind, value)
        self.kind = kind  # "did", "handle", "nsid", "tid", "record-key", "at-uri", "cid", …
        self.value = value

    def __str__(self) -> str:
        return f"not a valid {self.kind}: {shown(self.value)}"


class DrislInvalid(FirehoseError, ValueError):
    """Bytes are not canonical DRISL-CBOR, or a value cannot be written as such."""

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset  # byte in the input, None while encoding

    def __str__(self) -> str:
        return self.reason if self.offset is None else f"{self.reason}, at byte {self.offset}"


class CarInvalid(FirehoseError, ValueError):
    """A CAR file is malformed, too large, or holds a block whose hash is not its CID's."""

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(reason, offset)
        self.reason = reason  # one of a few stable words, e.g. "block-hash"
        self.offset = offset

    def __str__(self) -> str:
        return self.reason if self.offset is None else f"{self.reason}, at byte {self.offset}"


class MstInvalid(FirehoseError, ValueError):
    """A tree node breaks a rule of atproto.com/specs/repository, "MST Structure"."""

    def __init__(self, reason: str, cid: str | None = None) -> None:
        super().__init__(reason, cid)
        self.reason = reason
        self.cid = cid

    def __str__(self) -> str:
        return self.reason if self.cid is None else f"{self.reason}, in node {self.cid}"


class MissingBlock(FirehoseError, KeyError):
    """A block that is needed is not there: the archive is partial, or the store has lost it."""

    def __init__(self, cid: str) -> None:
        super().__init__(cid)
        self.cid = cid

    def __str__(self) -> str:
        return f"block {self.cid} is missing"


class KeyInvalid(FirehoseError, ValueError):
    """A public or private key cannot be parsed."""

    def __init__(self, reason: str, value: object = None) -> None:
        super().__init__(reason, value)
        self.reason = reason
        self.value = value  # never a private key

    def __str__(self) -> str:
        return self.reason if self.value is None else f"{self.reason}: {shown(self.value)}"


class DocumentInvalid(FirehoseError, ValueError):
    """A DID document lacks something we need, or says it in a form we do not accept."""

    def __init__(self, did: str, reason: str) -> None:
        super().__init__(did, reason)
        self.did = did
        self.reason = reason

    def __str__(self) -> str:
        return f"the document of {self.did}: {self.reason}"


class RepoInvalid(FirehoseError, ValueError):
    """A repository or a commit breaks a rule; `reason` is a stable word, e.g. "commit-version"."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class WriteRefused(FirehoseError, ValueError):
    """A write cannot be applied: a create over a record, an update or delete of none, …"""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class FrameInvalid(FirehoseError, ValueError):
    """A frame breaks a rule of atproto.com/specs/event-stream or /specs/sync."""

    def __init__(self, reason: str, detail: str = "", seq: int | None = None) -> None:
        super().__init__(reason, detail, seq)
        self.reason = reason  # a stable word, e.g. "frame-cbor"
        self.detail = detail
        self.seq = seq  # if the frame was whole enough to say

    def __str__(self) -> str:
        where = "" if self.seq is None else f" (seq {self.seq})"
        return f"{self.reason}{where}: {self.detail}" if self.detail else f"{self.reason}{where}"


class TraceInvalid(FirehoseError, ValueError):
    """A trace file is damaged at `offset`; what lies before it can be read."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(path, offset, reason)
        self.path = path
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}, at byte {self.offset}"


class LexiconInvalid(FirehoseError, ValueError):
    """A record does not fit its schema; `path` says where in it, e.g. `/players/2`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path or '/'}: {self.reason}"


class LexiconUnknown(LexiconInvalid):
    """No schema is known for this NSID."""


class HttpError(FirehoseError):
    """An HTTP exchange gave no answer."""


class HttpAddressInvalid(HttpError, ValueError):
    """Not an address that we could ask."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot use {shown(self.address)} as an address: {self.reason}"


class HttpUnreachable(HttpError, ConnectionError):
    """No connection, or it broke. `is_sent`: the request went out, so the server may have acted on it."""

    def __init__(self, url: str, reason: str, is_sent: bool = False) -> None:
        super().__init__(url, reason, is_sent)
        self.url = url
        self.reason = reason
        self.is_sent = is_sent

    def __str__(self) -> str:
        return f"cannot reach {self.url}: {self.reason}"


class HttpTimeout(HttpError, TimeoutError):
    """No whole answer in time; the server may have acted on the request."""

    def __init__(self, request: str, timeout_s: float) -> None:
        super().__init__(request, timeout_s)
        self.request = request
        self.timeout_s = timeout_s

    def __str__(self) -> str:
        return f"no answer to {self.request} in {self.timeout_s:g} s"


class HttpTooLarge(HttpError):
    """The answer is larger than we read."""

    def __init__(self, url: str, part: str, limit_bytes: int) -> None:
        super().__init__(url, part, limit_bytes)
        self.url = url
        self.part = part  # "headers" or "body"
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return f"the {self.part} that {self.url} sent are larger than {self.limit_bytes} bytes"


class HttpProtocolError(HttpError):
    """What came back is not HTTP."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.url} does not speak HTTP: {self.reason}"


class XrpcError(FirehoseError):
    """A server refused a call. `name` is the protocol's word for why, "InvalidSwap"."""

    def __init__(self, status: int, name: str, message: str, method: str) -> None:
        super().__init__(status, name, message, method)
        self.status = status
        self.name = name
        self.message = message
        self.method = method

    def __str__(self) -> str:
        return f"{self.method}: {self.status} {self.name}: {self.message}"


class DirectoryUnavailable(FirehoseError):
    """Nobody could say who a DID is; what hangs on it is unchecked, not invalid."""

    def __init__(self, did: str, reason: str) -> None:
        super().__init__(did, reason)
        self.did = did
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot resolve {shown(self.did)}: {self.reason}"


class PlcOperationInvalid(FirehoseError, ValueError):
    """A did:plc operation is malformed, not signed by a key in force, or of another DID."""

    def __init__(self, did: str, reason: str) -> None:
        super().__init__(did, reason)
        self.did = did
        self.reason = reason

    def __str__(self) -> str:
        return f"did:plc operation for {shown(self.did)}: {self.reason}"


class SubscriptionError(FirehoseError):
    """A stream cannot be followed any further."""


class CursorInFuture(SubscriptionError):
    """The host has never issued our cursor: it lost its sequence, or it is the wrong host."""

    def __init__(self, url: str, cursor: int | None) -> None:
        super().__init__(url, cursor)
        self.url = url
        self.cursor = cursor

    def __str__(self) -> str:
        return (
            f"{self.url} has not reached our cursor {self.cursor}: it has lost its sequence or is another "
            "host; start again without a cursor if that is meant"
        )


class SubscriptionRefused(SubscriptionError):
    """The host says that this stream will not be served."""

    def __init__(self, url: str, status: int) -> None:
        super().__init__(url, status)
        self.url = url
        self.status = status

    def __str__(self) -> str:
        return f"{self.url} answered {self.status}: it serves no event stream there; check the address"


class UpstreamUnreachable(SubscriptionError, ConnectionError):
    """No stream in the time that we were given."""

    def __init__(self, url: str, seconds: float, reason: str) -> None:
        super().__init__(url, seconds, reason)
        self.url = url
        self.seconds = seconds
        self.reason = reason

    def __str__(self) -> str:
        return f"no event stream from {self.url} in {self.seconds:g} s: {self.reason}"


class ProverDied(FirehoseError):
    """A process that verifies is gone, with the frames that it had: the stream goes on from its cursor."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number = number
        self.reason = reason

    def __str__(self) -> str:
        return f"verifying process {self.number} is gone: {self.reason}"


class ListenFailed(FirehoseError, OSError):
    """A server cannot take its address."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(host, port, reason)
        self.host = host
        self.port = port
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot listen on {self.host}:{self.port}: {self.reason}"


class PortInUse(ListenFailed):
    """Somebody else has the port."""

    def __init__(
        self, host: str, port: int, reason: str = "the port is in use; stop what uses it, or take port 0"
    ) -> None:
        super().__init__(host, port, reason)


class WindowUnavailable(FirehoseError):
    """A tap's window file cannot be read or written."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"the tap's window {self.path} is unusable: {self.reason}"


class StoreUnavailable(FirehoseError):
    """The embedded network's database cannot be opened, read or written."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"the network's database {self.path} is unusable: {self.reason}"
