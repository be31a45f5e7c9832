"""Identifiers of the AT Protocol as types: each is a `str` that only its parser here makes.

Sources: atproto.com/specs/{did,handle,nsid,tid,record-key,at-uri-scheme,lexicon}.
"""

import re
from datetime import datetime
from typing import Final, NewType

from firehose.errors import SyntaxInvalid

Did = NewType("Did", str)
Handle = NewType("Handle", str)
Nsid = NewType("Nsid", str)
Tid = NewType("Tid", str)
RecordKey = NewType("RecordKey", str)
AtUri = NewType("AtUri", str)

MAX_DID_CHARS: Final = 2048  # specs/did, "DID Identifier Syntax"
MAX_HANDLE_CHARS: Final = 253  # specs/handle
MAX_NSID_CHARS: Final = (
    317  # specs/nsid; its limit of 253 for the authority alone is not kept by the interop vectors
)
MAX_URI_CHARS: Final = 8192  # specs/lexicon, "at-uri" and "uri"
MAX_LANGUAGE_CHARS: Final = 128

# \Z, never $: `$` also matches before a last newline.
_DID = re.compile(r"did:[a-z]+:[a-zA-Z0-9._:%-]*[a-zA-Z0-9._-]\Z")
_HANDLE = re.compile(
    r"([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)+[a-zA-Z]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\Z"
)
_NSID = re.compile(
    r"[a-zA-Z]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)+"
    r"\.[a-zA-Z][a-zA-Z0-9]{0,62}\Z"
)
_TID = re.compile(r"[2-7a-j][2-7a-z]{12}\Z")
_RECORD_KEY = re.compile(r"[a-zA-Z0-9._~:-]{1,512}\Z")
_DATETIME = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})(\.\d{1,20})?(Z|[+-]\d{2}:\d{2})\Z", re.ASCII)
_URI = re.compile(r"[a-z][a-z.+-]{0,80}:[!-~]+\Z")
_LANGUAGE = re.compile(
    r"(?:i-[a-z]+|[a-z]{2,3}(?:-[a-zA-Z0-9]{1,8})*|[xX](?:-[a-zA-Z0-9]{1,8})+)\Z", re.ASCII
)


def parse_did(value: object) -> Did:
    """The DID in `value`.

    Raises: SyntaxInvalid: it is none.
    """
    if isinstance(value, str) and len(value) <= MAX_DID_CHARS and _DID.match(value):
        return Did(value)
    raise SyntaxInvalid("did", value)


def parse_handle(value: object) -> Handle:
    """The handle in `value`, as written (compare handles in lower case).

    Raises: SyntaxInvalid: it is none.
    """
    if isinstance(value, str) and len(value) <= MAX_HANDLE_CHARS and _HANDLE.match(value):
        return Handle(value)
    raise SyntaxInvalid("handle", value)


def parse_at_identifier(value: object) -> Did | Handle:
    """The DID or handle in `value`.

    Raises: SyntaxInvalid: it is neither.
    """
    try:
        return (
            parse_did(value) if isinstance(value, str) and value.startswith("did:") else parse_handle(value)
        )
    except SyntaxInvalid:
        raise SyntaxInvalid("at-identifier", value) from None


def parse_nsid(value: object) -> Nsid:
    """The namespaced identifier in `value`.

    Raises: SyntaxInvalid: it is none.
    """
    if isinstance(value, str) and len(value) <= MAX_NSID_CHARS and _NSID.match(value):
        return Nsid(value)
    raise SyntaxInvalid("nsid", value)


def parse_tid(value: object) -> Tid:
    """The timestamp identifier in `value`.

    Raises: SyntaxInvalid: it is none.
    """
    if isinstance(value, str) and _TID.match(value):
        return Tid(value)
    raise SyntaxInvalid("tid", value)


def parse_record_key(value: object) -> RecordKey:
    """The record key in `value`.

    Raises: SyntaxInvalid: it is none.
    """
    if isinstance(value, str) and _RECORD_KEY.match(value) and value not in (".", ".."):
        return RecordKey(value)
    raise SyntaxInvalid("record-key", value)


def parse_path(value: object) -> tuple[Nsid, RecordKey]:
    """The collection and record key in a repository path `collection/rkey`.

    Raises: SyntaxInvalid: it is no such path.
    """
    if isinstance(value, str):
        collection, slash, rkey = value.partition("/")
        if slash:
            try:
                return parse_nsid(collection), parse_record_key(rkey)
            except SyntaxInvalid:
                pass
    raise SyntaxInvalid("path", value)


def parse_at_uri(value: object) -> AtUri:
    """The AT-URI in `value`: an authority, perhaps a collection, perhaps a record key; no query, no fragment.

    Raises: SyntaxInvalid: it is none.
    """
    split_at_uri(value)
    return AtUri(str(value))


def split_at_uri(value: object) -> tuple[Did | Handle, Nsid | None, RecordKey | None]:
    """Authority, collection and record key of an AT-URI; what is not there is None.

    Raises: SyntaxInvalid: it is none.
    """
    if isinstance(value, str) and len(value) <= MAX_URI_CHARS and value.startswith("at://"):
        authority, *rest = value[5:].split("/")
        try:
            who = parse_at_identifier(authority)
            match rest:
                case []:
                    return who, None, None
                case [collection]:
                    return who, parse_nsid(collection), None
                case [collection, rkey]:
                    return who, parse_nsid(collection), parse_record_key(rkey)
        except SyntaxInvalid:
            pass
    raise SyntaxInvalid("at-uri", value)


def parse_datetime(value: object) -> str:
    """The datetime in `value`: RFC 3339 with seconds and zone, and a moment that exists.

    Raises: SyntaxInvalid: it is none.
    """
    match = _DATETIME.match(value) if isinstance(value, str) and len(value) <= 64 else None
    if match is None or match[3] == "-00:00":
        raise SyntaxInvalid("datetime", value)
    text = str(match.string)
    year_zero = text.startswith("0000")
    if year_zero and match[3] != "Z" and match[3][0] == "+":
        raise SyntaxInvalid("datetime", value)  # it could lie before the year zero
    zone = "+00:00" if match[3] == "Z" else match[3]
    try:
        # Python knows no year 0: the year 4 has the same calendar.
        datetime.fromisoformat(("0004" + match[1][4:] if year_zero else match[1]) + zone)
    except ValueError:
        raise SyntaxInvalid("datetime", value) from None
    return text


def parse_uri(value: object) -> str:
    """The generic URI in `value` (checked superficially, as the specification asks).

    Raises: SyntaxInvalid: it is none.
    """
    if isinstance(value, str) and len(value) <= MAX_URI_CHARS and _URI.match(value):
        return value
    raise SyntaxInvalid("uri", value)


def parse_language(value: object) -> str:
    """The BCP 47 language tag in `value` (well-formed; not looked up in any registry).

    Raises: SyntaxInvalid: it is none.
    """
    if isinstance(value, str) and len(value) <= MAX_LANGUAGE_CHARS and _LANGUAGE.match(value):
        return value
    raise SyntaxInvalid("language", value)
