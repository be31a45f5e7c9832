"""The signed commit of a repository: its bytes, its rules, its signature.

Source: atproto.com/specs/repository, "Commit Objects". A commit is signed without its `sig` field, and then
stored with it; both have one encoding, so a stranger's commit is checked by writing it again and comparing.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import libipld

from firehose import compiled
from firehose.cid import CID_BYTES, DAG_CBOR_PREFIX, Cid
from firehose.drisl import head, link
from firehose.errors import RepoInvalid, SyntaxInvalid
from firehose.keys import SigningKey, VerifyingKey
from firehose.syntax import Did, Tid, parse_did, parse_tid

VERSION: Final = 3
MAX_COMMIT_BYTES: Final = 4096  # ours: a DID has at most 2,048, and all the rest 200

_LINK: Final = link(b"")
_VERSION_FIELD: Final = b"\x67version" + head(0, VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit whose form is right; whether its signature is, `is_signed_by` says."""

    did: Did
    rev: Tid
    data: Cid  # the root of the tree
    prev: Cid | None  # almost always None since version 3
    sig: bytes
    signed: bytes | None = field(default=None, compare=False, repr=False)  # the bytes under `sig`, if at hand

    @property
    def signed_bytes(self) -> bytes:
        """What is signed."""
        return self.signed or _encode(self.did, self.rev, self.data.bytes, self.prev, None)

    def is_signed_by(self, key: VerifyingKey) -> bool:
        """Whether the signature is `key`'s."""
        return key.verify(self.sig, self.signed_bytes)


def sign_commit(
    key: SigningKey, *, did: Did, rev: Tid, data: Cid, prev: Cid | None = None
) -> tuple[Commit, bytes]:
    """A new commit, and its block."""
    sig = key.sign(_encode(did, rev, data.bytes, prev, None))
    commit = Commit(did=did, rev=rev, data=data, prev=prev, sig=sig)
    return commit, _encode(did, rev, data.bytes, prev, sig)


def parse_commit(block: bytes) -> Commit:
    """The commit in `block`.

    Raises: RepoInvalid: it breaks a rule, or is of an older version.
    """
    if len(block) > MAX_COMMIT_BYTES:
        raise RepoInvalid("commit-form", f"{len(block)} bytes")
    fields = None if compiled.fast is None else compiled.fast.commit(block)
    if fields is not None:
        did, rev, sig, data, signed = fields
        try:
            return Commit(
                did=parse_did(did), rev=parse_tid(rev), data=Cid(data), prev=None, sig=sig, signed=signed
            )
        except SyntaxInvalid as error:
            raise RepoInvalid("commit-form", str(error)) from None
    return _parse_slowly(block)


def _parse_slowly(block: bytes) -> Commit:
    try:
        value: dict[str, Any] = libipld.decode_dag_cbor(block)
        version = value["version"]
    except Exception as error:  # noqa: BLE001 - libipld raises ValueError, RecursionError, Unicode…
        raise RepoInvalid("commit-form", str(error)) from None
    if version != VERSION or version is True:
        raise RepoInvalid("commit-version", f"{version!r:.20}, where {VERSION} is the only one in use")
    try:
        did, rev, sig = parse_did(value["did"]), parse_tid(value["rev"]), value["sig"]
        data, prev = _cid(value["data"]), None if value["prev"] is None else _cid(value["prev"])
        # Writing it again compares field names, their order, links and shortest numbers at once.
        if type(sig) is bytes and _encode(did, rev, data.bytes, prev, sig) == block:
            return Commit(did=did, rev=rev, data=data, prev=prev, sig=sig)
    except (KeyError, SyntaxInvalid) as error:
        raise RepoInvalid("commit-form", str(error)) from None
    raise RepoInvalid("commit-form", "not the fields of a commit, or not in their canonical encoding")


def _cid(value: Any) -> Cid:
    if type(value) is bytes and len(value) == CID_BYTES and value.startswith(DAG_CBOR_PREFIX):
        return Cid(value)
    raise SyntaxInvalid("cid", value)


def _encode(did: Did, rev: Tid, data: bytes, prev: Cid | None, sig: bytes | None) -> bytes:
    name, revision = did.encode(), rev.encode()
    return b"".join(
        (
            b"\xa5" if sig is None else b"\xa6",
            b"\x63did",
            head(3, len(name)),
            name,
            b"\x63rev",
            head(3, len(revision)),
            revision,
            b"" if sig is None else b"\x63sig" + head(2, len(sig)) + sig,
            b"\x64data",
            _LINK,
            data,
            b"\x64prev",
            b"\xf6" if prev is None else _LINK + prev.bytes,
            _VERSION_FIELD,
        )
    )
