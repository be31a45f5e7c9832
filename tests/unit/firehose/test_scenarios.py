"""Frames and verdicts that other implementations recorded; they lie beside the checkout, not in it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from firehose.drisl import encode, from_json
from firehose.errors import RepoInvalid
from firehose.frames import CommitEvent, parse_frame
from firehose.repo import read_repo_car
from firehose.tid import tid_micros
from firehose.verify import Policy, Verdict, Verifier
from firehose.verify.proof import check_ops, check_tree, open_commit, read_records

SHARED = Path(__file__).parents[4] / "shared" / "data"
pytestmark = pytest.mark.optional


def shared(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        if os.environ.get("SKYLEASE_REQUIRE_SHARED") == "1":
            pytest.fail(f"{path} must be there in this run, and is not")
        pytest.skip("recordings of strangers' accounts are not copied into the checkout, nor beside it here")
    return path


def scenario(name: str) -> tuple[list[tuple[bytes, bool]], dict[str, list[dict[str, Any]]], bool]:
    """Frames with whether a relay drops them, DID documents, and whether the relay is a lenient one."""
    told = json.loads(shared(f"relay-scenarios/{name}.json").read_text())
    frames = []
    for message in told["messages"]:
        frame = message["frame"]
        frames.append((encode(frame["header"]) + encode(from_json(frame["body"])), message["drop"]))
    documents = {}
    for account in told["accounts"]:
        identity = account["identity"]
        did = identity["did"]
        documents[did] = [
            {
                "id": did,
                "verificationMethod": [
                    {"id": f"{did}#{name}", "controller": did, **key}
                    for name, key in identity["keys"].items()
                ],
            }
        ]
    return frames, documents, told["lenient"]


@pytest.mark.parametrize("name", ["post_lifecycle", "account_lifecycle", "post_lifecycle_legacy"])
def test_a_relays_scenarios(name: str, judge: Any) -> None:
    frames, documents, is_lenient = scenario(name)
    verifier = Verifier(policy=Policy.LENIENT if is_lenient else Policy.FILTERED)
    assert len(frames) >= 4
    for raw, is_dropped in frames:
        event = parse_frame(raw)
        rev = getattr(event, "rev", None)
        now_ms = 1_750_000_000_000 if rev is None else tid_micros(rev) // 1000 + 1000
        judgement = judge(verifier, raw, now_ms, documents)
        assert (judgement.verdict not in (Verdict.ACCEPT, Verdict.NOOP)) is is_dropped, judgement.detail


def test_a_strict_verifier_asks_an_old_server_for_proof(judge: Any) -> None:
    frames, documents, _ = scenario("post_lifecycle_legacy")
    verifier = Verifier()
    said = [judge(verifier, raw, 1_750_000_000_000, documents) for raw, _ in frames]
    assert [(judgement.verdict, judgement.reason) for judgement in said] == [
        (Verdict.ACCEPT, "unproven"),
        *[(Verdict.DESYNC, "prev-data-missing")] * (len(frames) - 1),
    ]


@pytest.mark.parametrize("seq", [4621317030, 4621317332])
def test_commits_in_json_say_what_their_trees_say(seq: int) -> None:
    told = json.loads(shared(f"firehose-json/firehose_commit_{seq}.json").read_text())
    event = parse_frame(encode({"op": 1, "t": "#commit"}) + encode(from_json(told)))
    assert isinstance(event, CommitEvent)
    commit, blocks = open_commit(event)
    places = check_ops(event)
    check_tree(event, commit, blocks)
    (record,) = read_records(event, places, blocks)
    assert record.collection == "app.bsky.feed.repost"


def test_the_cars_hold_the_records_that_another_tool_listed() -> None:
    records = read_repo_car(shared("cars/jcalabro.repo.car").read_bytes()).records
    listed = [
        line.split("\t")[:2]
        for line in shared("cars/jcalabro.expected_records.tsv").read_text().splitlines()
        if line.strip()
    ]
    assert sorted([path, str(cid)] for path, (cid, _) in records.items()) == sorted(listed)


OLD = ["fakermaker.repo", "paul_staging.repo", "repo_slice", "divy"]
OLDEST = "bafyreieovfuizojpw3zresz7sx3nk4trm2by23pt5rxbey3jme4uo5ogiu"


@pytest.mark.parametrize("name", [*OLD, OLDEST])
def test_repositories_of_version_2_are_refused_by_name(name: str) -> None:
    path = shared(f"cars/{name}.{'repo' if name == 'divy' else 'car'}")
    with pytest.raises(RepoInvalid) as caught:
        read_repo_car(path.read_bytes())
    assert caught.value.reason == "commit-version"


@pytest.mark.parametrize(
    ("name", "count"),
    [("jcalabro.repo", 23), ("greenground.repo", 2), ("rsky.valid_repo", 6), ("arroba.snarfed2", 5)],
)
def test_repositories_of_other_servers_are_read(name: str, count: int) -> None:
    assert len(read_repo_car(shared(f"cars/{name}.car").read_bytes()).records) == count
