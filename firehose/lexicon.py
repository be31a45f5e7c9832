"""Lexicons: what a record of a collection may look like, compiled once into plain functions.

Source: atproto.com/specs/lexicon. A schema is a contract about fields that are named; others may be there.
Refs are followed within the loaded documents only, and compiled on first use, so that schemas may refer to
each other.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from firehose.cid import Cid, parse_cid
from firehose.errors import LexiconInvalid, LexiconUnknown, SyntaxInvalid, shown
from firehose.syntax import (
    parse_at_identifier,
    parse_at_uri,
    parse_datetime,
    parse_did,
    parse_handle,
    parse_language,
    parse_nsid,
    parse_record_key,
    parse_tid,
    parse_uri,
)

Check = Callable[[Any, str], None]  # value, path to it; raises LexiconInvalid

FORMATS: Final[dict[str, Callable[[object], object]]] = {
    "at-identifier": parse_at_identifier,
    "at-uri": parse_at_uri,
    "cid": parse_cid,
    "datetime": parse_datetime,
    "did": parse_did,
    "handle": parse_handle,
    "language": parse_language,
    "nsid": parse_nsid,
    "record-key": parse_record_key,
    "tid": parse_tid,
    "uri": parse_uri,
}
MAX_DEPTH: Final = 64  # ours: of a value in a schema that refers to itself


class Lexicons:
    """A set of schemas.

    >>> note = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
    >>> main = {"type": "record", "key": "tid", "record": note}
    >>> document = {"lexicon": 1, "id": "com.example.note", "defs": {"main": main}}
    >>> lexicons = Lexicons.from_documents([document])
    >>> lexicons.validate("com.example.note", {"$type": "com.example.note", "text": 7})
    Traceback (most recent call last):
    firehose.errors.LexiconInvalid: /text: not a string
    """

    def __init__(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        """Not for callers: use `load` or `from_documents`."""
        self._documents = documents
        self._checks: dict[str, Check] = {}

    @classmethod
    def load(cls, folder: Path) -> "Lexicons":
        """The schemas in the `*.json` files of `folder`.

        Raises: LexiconInvalid: a file is no lexicon. OSError: one cannot be read.
        """
        documents = []
        for path in sorted(folder.glob("*.json")):
            try:
                documents.append(json.loads(path.read_text(encoding="utf-8")))
            except ValueError as error:
                raise LexiconInvalid(str(path), f"not JSON: {error}") from None
        return cls.from_documents(documents)

    @classmethod
    def from_documents(cls, documents: Iterable[Mapping[str, Any]]) -> "Lexicons":
        """The schemas in these lexicon documents, all compiled, so that a mistake in one shows at once.

        Raises: LexiconInvalid: one is no lexicon, uses a type that is not known, or refers to what is not
        there.
        """
        by_id: dict[str, Mapping[str, Any]] = {}
        for document in documents:
            name, defs = document.get("id"), document.get("defs")
            if document.get("lexicon") != 1 or not isinstance(name, str) or not isinstance(defs, Mapping):
                raise LexiconInvalid(shown(name), "not a lexicon document of version 1")
            by_id[name] = defs
        lexicons = cls(by_id)
        for name, defs in by_id.items():
            for part in defs:
                lexicons._check_for(f"{name}#{part}")
        return lexicons

    @property
    def nsids(self) -> frozenset[str]:
        """The names of all schemas."""
        return frozenset(self._documents)

    def validate(self, nsid: str, record: Mapping[str, Any]) -> None:
        """Check a record of the collection `nsid`; its links are `Cid`s and its bytes are bytes.

        Raises:
            LexiconInvalid: it does not fit; the error says where.
            LexiconUnknown: there is no schema of a record by this name.
        """
        if nsid not in self._documents:
            raise LexiconUnknown("", f"no lexicon {nsid} is known")
        if not isinstance(record, Mapping) or record.get("$type", nsid) != nsid:
            raise LexiconInvalid("/$type", f"not {nsid}")
        self._checks[f"{nsid}#main"](record, "")

    def _check_for(self, ref: str) -> Check:
        """The check of a definition, `nsid#part`, compiled at most once."""
        check = self._checks.get(ref)
        if check is None:
            nsid, _, part = ref.partition("#")
            schema = self._documents.get(nsid, {}).get(part)
            if schema is None:
                raise LexiconInvalid(ref, "a reference to what is not there")
            # What a schema that refers to itself finds while it is compiled: it looks again when it is used.
            self._checks[ref] = lambda value, path: self._checks[ref](value, path)
            check = self._checks[ref] = self._compile(schema, nsid, ref)
        return check

    def _compile(self, schema: Mapping[str, Any], nsid: str, where: str) -> Check:
        kind = schema.get("type")
        match kind:
            case "record":
                return self._compile(schema.get("record", {}), nsid, where)
            case "object":
                return self._object(schema, nsid, where)
            case "array":
                return self._array(schema, nsid, where)
            case "ref":
                return self._check_for(_absolute(schema.get("ref"), nsid, where))
            case "union":
                return self._union(schema, nsid, where)
            case str() if kind in _SIMPLE:
                return _SIMPLE[kind](schema)
        raise LexiconInvalid(where, f"a schema of type {shown(kind)}")

    def _object(self, schema: Mapping[str, Any], nsid: str, where: str) -> Check:
        nullable = frozenset(schema.get("nullable", ()))
        required = tuple(schema.get("required", ()))
        properties = [
            (name, f"/{name}", self._compile(part, nsid, f"{where}/{name}"), name in nullable)
            for name, part in schema.get("properties", {}).items()
        ]

        def check(value: Any, path: str) -> None:
            if not isinstance(value, Mapping):
                raise LexiconInvalid(path, "not an object")
            for name in required:
                if name not in value:
                    raise LexiconInvalid(f"{path}/{name}", "missing")
            for name, step, check_part, may_be_null in properties:
                if name in value:
                    part = value[name]
                    if part is not None or not may_be_null:
                        check_part(part, path + step)

        return _bounded(check)

    def _array(self, schema: Mapping[str, Any], nsid: str, where: str) -> Check:
        check_item = self._compile(schema.get("items", {}), nsid, f"{where}/items")
        low, high = schema.get("minLength", 0), schema.get("maxLength")

        def check(value: Any, path: str) -> None:
            if not isinstance(value, list | tuple):
                raise LexiconInvalid(path, "not an array")
            if len(value) < low or (high is not None and len(value) > high):
                raise LexiconInvalid(path, f"{len(value)} items, where {_range(low, high)} are allowed")
            for index, item in enumerate(value):
                check_item(item, f"{path}/{index}")

        return check

    def _union(self, schema: Mapping[str, Any], nsid: str, where: str) -> Check:
        refs = [_absolute(ref, nsid, where) for ref in schema.get("refs", ())]
        checks = {ref.removesuffix("#main"): self._check_for(ref) for ref in refs}
        closed = bool(schema.get("closed", False))

        def check(value: Any, path: str) -> None:
            kind = value.get("$type") if isinstance(value, Mapping) else None
            if not isinstance(kind, str) or not kind:
                raise LexiconInvalid(path, "not an object with a $type")
            check_part = checks.get(kind.removesuffix("#main"))
            if check_part is not None:
                check_part(value, path)
            elif closed:
                raise LexiconInvalid(path, f"{shown(kind)} is none of {', '.join(checks)}")

        return check


def _bounded(check: Check) -> Check:
    """`check`, unless the path has become too long: only a schema that refers to itself can get there."""

    def bounded(value: Any, path: str) -> None:
        if path.count("/") > MAX_DEPTH:
            raise LexiconInvalid(path[:100], "nested too deep")
        check(value, path)

    return bounded


def _absolute(ref: Any, nsid: str, where: str) -> str:
    if not isinstance(ref, str) or not ref:
        raise LexiconInvalid(where, "a reference without a name")
    name, hash_sign, part = ref.partition("#")
    return f"{name or nsid}#{part if hash_sign else 'main'}"


def _string(schema: Mapping[str, Any]) -> Check:
    low, high = schema.get("minLength", 0), schema.get("maxLength")  # in bytes of UTF-8
    low_letters, high_letters = schema.get("minGraphemes", 0), schema.get("maxGraphemes")
    check_value = _fixed(schema)
    parse = FORMATS.get(schema["format"]) if "format" in schema else None
    if "format" in schema and parse is None:
        raise LexiconInvalid("format", f"{shown(schema['format'])} is not known")

    def check(value: Any, path: str) -> None:
        if not isinstance(value, str):
            raise LexiconInvalid(path, "not a string")
        if low or high is not None:
            length = len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))
            if length < low or (high is not None and length > high):
                raise LexiconInvalid(path, f"{length} bytes, where {_range(low, high)} are allowed")
        # Code points, of which a grapheme may have several: an upper limit is kept a little too strictly.
        if len(value) < low_letters or (high_letters is not None and len(value) > high_letters):
            raise LexiconInvalid(path, f"{len(value)} letters, not {_range(low_letters, high_letters)}")
        check_value(value, path)
        if parse is not None:
            try:
                parse(value)
            except SyntaxInvalid as error:
                raise LexiconInvalid(path, str(error)) from None

    return check


def _integer(schema: Mapping[str, Any]) -> Check:
    low, high = schema.get("minimum"), schema.get("maximum")
    check_value = _fixed(schema)

    def check(value: Any, path: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise LexiconInvalid(path, "not an integer")
        if (low is not None and value < low) or (high is not None and value > high):
            raise LexiconInvalid(path, f"{value} is not {_range(low, high)}")
        check_value(value, path)

    return check


def _boolean(schema: Mapping[str, Any]) -> Check:
    check_value = _fixed(schema)

    def check(value: Any, path: str) -> None:
        if not isinstance(value, bool):
            raise LexiconInvalid(path, "not a boolean")
        check_value(value, path)

    return check


def _unknown(schema: Mapping[str, Any]) -> Check:
    def check(value: Any, path: str) -> None:
        if not isinstance(value, Mapping):
            raise LexiconInvalid(path, "not an object")

    return check


def _bytes(schema: Mapping[str, Any]) -> Check:
    low, high = schema.get("minLength", 0), schema.get("maxLength")

    def check(value: Any, path: str) -> None:
        if not isinstance(value, bytes):
            raise LexiconInvalid(path, "not bytes")
        if len(value) < low or (high is not None and len(value) > high):
            raise LexiconInvalid(path, f"{len(value)} bytes, where {_range(low, high)} are allowed")

    return check


def _cid_link(schema: Mapping[str, Any]) -> Check:
    def check(value: Any, path: str) -> None:
        if not isinstance(value, Cid):
            raise LexiconInvalid(path, "not a link")

    return check


def _blob(schema: Mapping[str, Any]) -> Check:
    accept = tuple(str(pattern) for pattern in schema.get("accept", ("*/*",)))
    high = schema.get("maxSize")

    def check(value: Any, path: str) -> None:
        if not isinstance(value, Mapping) or value.get("$type") != "blob":
            raise LexiconInvalid(path, "not a blob")
        kind, size = value.get("mimeType"), value.get("size")
        if not isinstance(value.get("ref"), Cid) or not isinstance(kind, str):
            raise LexiconInvalid(path, "a blob without a ref or a mimeType")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise LexiconInvalid(f"{path}/size", "not a size")
        if high is not None and size > high:
            raise LexiconInvalid(f"{path}/size", f"{size} bytes, where {high} are allowed")
        if not any(_accepts(pattern, kind) for pattern in accept):
            raise LexiconInvalid(f"{path}/mimeType", f"{shown(kind)} is none of {', '.join(accept)}")

    return check


def _null(schema: Mapping[str, Any]) -> Check:
    def check(value: Any, path: str) -> None:
        if value is not None:
            raise LexiconInvalid(path, "not null")

    return check


_SIMPLE: Final[dict[str, Callable[[Mapping[str, Any]], Check]]] = {
    "blob": _blob,
    "boolean": _boolean,
    "bytes": _bytes,
    "cid-link": _cid_link,
    "integer": _integer,
    "null": _null,
    "string": _string,
    "token": _string,
    "unknown": _unknown,
}


def _fixed(schema: Mapping[str, Any]) -> Check:
    """The check of `const` and `enum`; `knownValues` binds nobody."""
    const, choices = schema.get("const"), schema.get("enum")

    def check(value: Any, path: str) -> None:
        if const is not None and value != const:
            raise LexiconInvalid(path, f"not {const!r}")
        if choices is not None and value not in choices:
            raise LexiconInvalid(path, f"{shown(value)} is none of {', '.join(map(str, choices))}")

    return check


def _accepts(pattern: str, kind: str) -> bool:
    return pattern in ("*/*", kind) or (pattern.endswith("/*") and kind.startswith(pattern[:-1]))


def _range(low: int | None, high: int | None) -> str:
    if high is None:
        return f"at least {low}"
    return f"at most {high}" if not low else f"{low} to {high}"
