"""The identifiers, held to the vectors that every implementation is held to."""

from collections.abc import Callable
from pathlib import Path

import pytest

from firehose.cid import parse_cid
from firehose.errors import SyntaxInvalid
from firehose.syntax import (
    parse_at_identifier,
    parse_at_uri,
    parse_datetime,
    parse_did,
    parse_handle,
    parse_language,
    parse_nsid,
    parse_path,
    parse_record_key,
    parse_tid,
    parse_uri,
    split_at_uri,
)

SYNTAX = Path(__file__).parents[2] / "data" / "interop" / "syntax"
PARSERS: dict[str, Callable[[object], object]] = {
    "atidentifier": parse_at_identifier,
    "aturi": parse_at_uri,
    "cid": parse_cid,
    "datetime": parse_datetime,
    "did": parse_did,
    "handle": parse_handle,
    "language": parse_language,
    "nsid": parse_nsid,
    "recordkey": parse_record_key,
    "tid": parse_tid,
    "uri": parse_uri,
}


def vectors(name: str) -> list[str]:
    lines = (SYNTAX / f"{name}.txt").read_text(encoding="utf-8").split("\n")
    return [line for line in lines if line and not line.startswith("#")]


def cases(suffix: str) -> list[object]:
    return [
        pytest.param(kind, line, id=f"{kind}-{number}")
        for kind in PARSERS
        for number, line in enumerate(vectors(f"{kind}_{suffix}"))
    ]


@pytest.mark.parametrize(("kind", "line"), cases("syntax_valid"))
def test_a_valid_one_is_parsed_to_itself(kind: str, line: str) -> None:
    assert PARSERS[kind](line) == line


@pytest.mark.parametrize(("kind", "line"), cases("syntax_invalid"))
def test_an_invalid_one_is_refused(kind: str, line: str) -> None:
    with pytest.raises(SyntaxInvalid):
        PARSERS[kind](line)


@pytest.mark.parametrize("line", vectors("datetime_parse_invalid"))
def test_a_moment_that_does_not_exist_is_refused(line: str) -> None:
    with pytest.raises(SyntaxInvalid):
        parse_datetime(line)


@pytest.mark.parametrize("kind", PARSERS)
@pytest.mark.parametrize("value", [None, 7, b"did:plc:abc", "", "did:plc:abc\n", "a.b.c\n", "\ud800"])
def test_what_is_no_identifier_at_all_is_refused(kind: str, value: object) -> None:
    with pytest.raises(SyntaxInvalid):
        PARSERS[kind](value)


def test_every_vector_file_is_used() -> None:
    used = {f"{kind}_syntax_{verdict}" for kind in PARSERS for verdict in ("valid", "invalid")}
    used |= {
        "datetime_parse_invalid",
        "language_parse_invalid",
    }  # the latter: well-formed, and we do not look further
    assert {path.stem for path in SYNTAX.glob("*.txt")} == used


def test_an_at_uri_comes_apart() -> None:
    assert split_at_uri("at://did:plc:abc/com.example.note/one") == ("did:plc:abc", "com.example.note", "one")
    assert split_at_uri("at://alice.test") == ("alice.test", None, None)


@pytest.mark.parametrize(
    "path",
    ["com.example.note", "com.example.note/", "/one", "a/b", "com.example.note/a/b", "com.example.note/.."],
)
def test_a_path_has_a_collection_and_a_key(path: str) -> None:
    with pytest.raises(SyntaxInvalid):
        parse_path(path)


def test_an_error_says_what_it_met_and_cuts_it() -> None:
    with pytest.raises(SyntaxInvalid) as caught:
        parse_did("x" * 5000)
    assert caught.value.kind == "did"
    assert len(str(caught.value)) < 120
