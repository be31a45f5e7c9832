"""Blobs: bytes that records refer to by their hash."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from firehose.cid import Cid
from firehose.network.refusals import Refusal, invalid_request
from firehose.network.store import Store

MAX_BLOB_BYTES: Final = 5 * 1024 * 1024  # @atproto/pds: PDS_BLOB_UPLOAD_LIMIT
MAX_MIME_CHARS: Final = 127
DEFAULT_MIME: Final = "application/octet-stream"


class Blobs:
    """One account's blobs are its own: the same bytes of another account are another blob."""

    def __init__(self, store: Store, *, clock: Callable[[], int]) -> None:
        """Keep blobs in `store`; `clock` gives epoch milliseconds."""
        self._store = store
        self._clock = clock

    def upload(self, did: str, content: bytes, mime_type: str) -> dict[str, Any]:
        """Store the bytes; the blob reference that a record may hold, in its JSON form.

        Raises:
            Refusal: empty, or too large.
        """
        if not content:
            raise invalid_request("the blob is empty")
        if len(content) > MAX_BLOB_BYTES:
            raise Refusal("PayloadTooLarge", f"a blob has at most {MAX_BLOB_BYTES} bytes", 413)
        mime_type = mime_type[:MAX_MIME_CHARS] or DEFAULT_MIME
        cid = str(Cid.for_raw(content))
        self._store.execute(
            "INSERT OR IGNORE INTO blobs VALUES (?, ?, ?, ?, ?)", did, cid, mime_type, self._clock(), content
        )
        return {"$type": "blob", "ref": {"$link": cid}, "mimeType": mime_type, "size": len(content)}

    def get(self, did: str, cid: str) -> tuple[bytes, str]:
        """The bytes and their MIME type.

        Raises:
            Refusal: BlobNotFound.
        """
        found = self._store.row("SELECT content, mime_type FROM blobs WHERE did = ? AND cid = ?", did, cid)
        if found is None:
            raise Refusal("BlobNotFound", f"{did} has no blob {cid}")
        return bytes(found[0]), str(found[1])

    def check_references(self, did: str, record: object) -> None:
        """Check that every blob a record refers to is here.

        Raises:
            Refusal: one is not: uploadBlob comes first.
        """
        for cid in blob_references(record):
            if self._store.row("SELECT 1 FROM blobs WHERE did = ? AND cid = ?", did, cid) is None:
                raise Refusal(
                    "BlobNotFound", f"the record refers to blob {cid}, which {did} has not uploaded"
                )


def blob_references(value: object) -> Iterator[str]:
    """The CIDs of all blobs that a record refers to, in order, as often as it does."""
    if isinstance(value, dict):
        reference = value.get("ref")
        if value.get("$type") == "blob" and isinstance(reference, Cid):
            yield str(reference)
        for item in value.values():
            yield from blob_references(item)
    elif isinstance(value, list):
        for item in value:
            yield from blob_references(item)
