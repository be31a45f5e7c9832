"""Lexicons: what fits, what does not, and where."""

import json
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from firehose.cid import Cid
from firehose.errors import LexiconInvalid, LexiconUnknown
from firehose.lexicon import Lexicons

OURS = Path(__file__).parents[3] / "config" / "lexicons"
CID = Cid.for_raw(b"x")
BLOB = {"$type": "blob", "ref": CID, "mimeType": "image/png", "size": 10}


def lexicons(properties: dict[str, Any], **more: Any) -> Lexicons:
    record = {"type": "object", "properties": properties, **more.pop("record", {})}
    main = {"type": "record", "key": "any", "record": record}
    return Lexicons.from_documents([{"lexicon": 1, "id": "a.b.c", "defs": {"main": main, **more}}])


GOOD_AND_BAD: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"type": "string"}, ["", "é"], [1, None, b"x", ["x"]]),
    ({"type": "string", "maxLength": 3}, ["abc", "é"], ["abcd", "éé"]),
    ({"type": "string", "minLength": 2}, ["ab", "é"], ["a", ""]),
    ({"type": "string", "maxGraphemes": 2, "minGraphemes": 1}, ["é", "éé"], ["", "ééé"]),
    ({"type": "string", "enum": ["a", "b"]}, ["a"], ["c", ""]),
    ({"type": "string", "knownValues": ["a"]}, ["a", "z"], [1]),
    ({"type": "string", "const": "a"}, ["a"], ["b"]),
    ({"type": "string", "format": "did"}, ["did:plc:abc"], ["alice.test", "did:plc:"]),
    ({"type": "string", "format": "handle"}, ["alice.test"], ["alice"]),
    ({"type": "string", "format": "nsid"}, ["a.b.c"], ["a.b"]),
    ({"type": "string", "format": "tid"}, ["3jzfcijpj2z2a"], ["x"]),
    ({"type": "string", "format": "at-uri"}, ["at://did:plc:abc/a.b.c/d"], ["https://x.y"]),
    ({"type": "string", "format": "cid"}, [str(CID)], ["x"]),
    (
        {"type": "string", "format": "datetime"},
        ["2026-01-01T00:00:00Z"],
        ["2026-01-01", "2026-13-01T00:00:00Z"],
    ),
    ({"type": "string", "format": "record-key"}, ["self"], ["..", "a/b"]),
    ({"type": "string", "format": "uri"}, ["https://example.com"], ["example"]),
    ({"type": "string", "format": "language"}, ["pt-BR"], ["!"]),
    ({"type": "string", "format": "at-identifier"}, ["did:plc:abc", "alice.test"], ["@x"]),
    ({"type": "integer"}, [0, -5, 1 << 60], [1.0, "1", True, None]),
    ({"type": "integer", "minimum": 1, "maximum": 3}, [1, 3], [0, 4]),
    ({"type": "integer", "enum": [1, 2]}, [2], [3]),
    ({"type": "boolean"}, [True, False], [0, 1, "true", None]),
    ({"type": "boolean", "const": False}, [False], [True]),
    ({"type": "unknown"}, [{}, {"a": 1.5}], [[], "x", None]),
    ({"type": "bytes", "maxLength": 2}, [b"", b"ab"], [b"abc", "ab"]),
    ({"type": "cid-link"}, [CID], [str(CID), CID.bytes]),
    (
        {"type": "blob", "accept": ["image/*"], "maxSize": 10},
        [BLOB],
        [BLOB | {"size": 11}, BLOB | {"mimeType": "a/b"}],
    ),
    (
        {"type": "blob"},
        [BLOB],
        [{}, BLOB | {"ref": "x"}, BLOB | {"size": "1"}, BLOB | {"size": -1}, BLOB | {"$type": "b"}],
    ),
    (
        {"type": "array", "items": {"type": "integer"}, "minLength": 1, "maxLength": 2},
        [[1], [1, 2]],
        [[], [1, 2, 3], ["a"], {}],
    ),
    (
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        [{"n": 1, "more": 2}],
        [{}, {"n": "x"}, []],
    ),
    (
        {"type": "object", "properties": {"n": {"type": "integer"}}, "nullable": ["n"]},
        [{"n": None}, {}],
        [{"n": "x"}],
    ),
    ({"type": "null"}, [None], [0]),
]


@pytest.mark.parametrize(
    ("schema", "good", "bad"), GOOD_AND_BAD, ids=lambda value: json.dumps(value, default=str)[:40]
)
def test_a_value_of_each_type(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    checker = lexicons({"field": schema})
    for value in good:
        checker.validate("a.b.c", {"field": value})
    for value in bad:
        with pytest.raises(LexiconInvalid) as caught:
            checker.validate("a.b.c", {"field": value})
        assert caught.value.path.startswith("/field")


def test_the_error_says_where() -> None:
    inner = {"type": "object", "properties": {"n": {"type": "integer"}}}
    checker = lexicons({"list": {"type": "array", "items": inner}})
    with pytest.raises(LexiconInvalid, match="/list/1/n: not an integer"):
        checker.validate("a.b.c", {"list": [{"n": 1}, {"n": "x"}]})


def test_refs_and_unions() -> None:
    checker = lexicons(
        {
            "ref": {"type": "ref", "ref": "#point"},
            "open": {"type": "union", "refs": ["#point"]},
            "closed": {"type": "union", "refs": ["#point"], "closed": True},
        },
        point={"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}},
    )
    checker.validate("a.b.c", {"ref": {"x": 1}, "open": {"$type": "other.type.here"}})
    checker.validate("a.b.c", {"closed": {"$type": "a.b.c#point", "x": 1}})
    records: list[dict[str, Any]] = [
        {"ref": {}},
        {"open": {"x": 1}},
        {"open": {"$type": "a.b.c#point"}},
        {"closed": {"$type": "other.type.here"}},
        {"closed": 7},
    ]
    for record in records:
        with pytest.raises(LexiconInvalid):
            checker.validate("a.b.c", record)


def test_a_schema_that_refers_to_itself_has_an_end() -> None:
    node = {"type": "object", "properties": {"next": {"type": "ref", "ref": "#node"}}}
    checker = lexicons({"first": {"type": "ref", "ref": "#node"}}, node=node)
    chain: dict[str, Any] = {}
    for _ in range(20):
        chain = {"next": chain}
    checker.validate("a.b.c", {"first": chain})
    for _ in range(5000):
        chain = {"next": chain}
    with pytest.raises(LexiconInvalid, match="deep"):
        checker.validate("a.b.c", {"first": chain})


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"lexicon": 2, "id": "a.b.c", "defs": {}},
        {"lexicon": 1, "id": "a.b.c"},
        {"lexicon": 1, "id": "a.b.c", "defs": {"main": {"type": "tuple"}}},
        {"lexicon": 1, "id": "a.b.c", "defs": {"main": {"type": "ref", "ref": "#none"}}},
        {"lexicon": 1, "id": "a.b.c", "defs": {"main": {"type": "ref"}}},
        {"lexicon": 1, "id": "a.b.c", "defs": {"main": {"type": "string", "format": "colour"}}},
        {"lexicon": 1, "id": "a.b.c", "defs": {"main": {"type": "array"}}},
    ],
)
def test_a_mistake_in_a_schema_shows_at_once(document: dict[str, Any]) -> None:
    with pytest.raises(LexiconInvalid):
        Lexicons.from_documents([document])


def test_what_is_not_known_and_what_is_not_that() -> None:
    checker = lexicons({})
    with pytest.raises(LexiconUnknown):
        checker.validate("x.y.z", {})
    with pytest.raises(LexiconInvalid, match=r"\$type"):
        checker.validate("a.b.c", {"$type": "x.y.z"})
    checker.validate("a.b.c", {"$type": "a.b.c"})


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(LexiconInvalid, match=r"bad\.json"):
        Lexicons.load(tmp_path)


def test_our_own_lexicons_are_read_and_quick() -> None:
    checker = Lexicons.load(OURS)
    assert "dev.skylease.game.turn" in checker.nsids
    record = {
        "environment": "catan-1",
        "turn": 5,
        "player": "did:plc:abc",
        "phase": "main",
        "state": {"hand": [1, 2]},
        "createdAt": "2026-01-01T00:00:00.000Z",
    }
    start = process_time()
    for _ in range(200):
        checker.validate("dev.skylease.game.turn", record)
    assert (process_time() - start) / 200 < 500e-6  # measured: 9 µs; ten times our aim is a mistake
    with pytest.raises(LexiconInvalid, match="/turn"):
        checker.validate("dev.skylease.game.turn", record | {"turn": 0})
