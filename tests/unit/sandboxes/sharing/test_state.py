"""What is stored about a sandbox: lossless, tagged, and hostile until checked."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes import InvalidSpec, UnknownTier, open_tier
from sandboxes.sharing import State, StateUnreadable, UnknownState, parse_state
from sandboxes.tiers import registry
from sandboxes.tiers.registry import TIERS, known_tiers, register_tier
from sandboxes.tiers.unsafe import UnsafeTier

STATE = State(type="docker", name="agent-a-0123456789abcdef", epoch=7, node="n", image="catan", snapshot="ab")
TEXT = st.text(max_size=20)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | TEXT, st.lists, max_leaves=5)


@given(
    st.builds(
        State,
        type=st.sampled_from(sorted(TIERS)),
        name=st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True),
        epoch=st.integers(0, 2**63 - 1),
        node=st.none() | TEXT,
        image=TEXT,
        snapshot=st.none() | TEXT,
        projection=st.none() | TEXT,
        extra=st.dictionaries(TEXT.map(lambda text: f"x-{text}"), JSON, max_size=3),
    )
)
def test_nothing_is_lost_on_the_way(state: State) -> None:
    assert parse_state("k", state.to_bytes(), TIERS) == state


def test_fields_of_others_are_written_back() -> None:
    told = json.loads(STATE.to_bytes()) | {"containerId": "c1", "workspaceRootReady": True}
    again = json.loads(parse_state("k", json.dumps(told).encode(), TIERS).to_bytes())
    assert again == told


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(STATE.to_bytes()) | fields).encode()


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 60_000, "no JSON"),
        (b"[]", "no JSON object"),
        (b"{" + b" " * 70_000 + b"}", "more than"),
        (changed(format=2), "its format is 2"),
        (b"{}", "its format is None"),
        (changed(name="../../etc"), "not 1-48"),
        (changed(epoch=-1), "its epoch"),
        (changed(epoch=True), "its epoch"),
        (changed(epoch="7"), "its epoch"),
        (changed(type=None), "its type"),
        (changed(snapshot=5), "its snapshot"),
        (changed(node=["n"]), "its node"),
    ],
)
def test_what_is_no_state_is_refused_with_its_reason(raw: bytes, why: str) -> None:
    with pytest.raises(StateUnreadable, match=why) as caught:
        parse_state("agent/a", raw, TIERS)
    assert "agent/a" in str(caught.value)
    assert type(caught.value) is StateUnreadable


def test_a_state_of_an_unknown_tier_names_the_known_ones() -> None:
    with pytest.raises(UnknownState, match=r"'e2b', and known are .*docker"):
        parse_state("k", changed(type="e2b"), TIERS)


class _Theirs(UnsafeTier):
    name = "theirs"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr("sandboxes.tiers.unsafe.TheirTier", _Theirs, raising=False)
    register_tier("theirs", "sandboxes.tiers.unsafe:TheirTier")
    return "theirs"


def test_a_third_party_registers_a_tier(registered: str, tmp_path: Path) -> None:
    assert isinstance(open_tier(registered, tmp_path), _Theirs)
    assert parse_state("k", changed(type=registered), known_tiers()).type == registered
    register_tier("theirs", "sandboxes.tiers.unsafe:TheirTier")  # twice the same is once


def test_an_installed_package_brings_a_tier(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = tmp_path / "their-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[skylease.tiers]\npacked = their_package:Tier\n")
    (tmp_path / "their_package.py").write_text(
        "from sandboxes import UnsafeTier\nclass Tier(UnsafeTier):\n    name = 'packed'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry._installed.cache_clear()
    try:
        assert open_tier("packed", tmp_path / "root").name == "packed"
    finally:
        monkeypatch.undo()
        registry._installed.cache_clear()
    with pytest.raises(UnknownTier):
        open_tier("packed", tmp_path / "root")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("docker", "x:Y"),
        ("auto", "x:Y"),
        ("theirs", "other:Tier"),
        ("new", "no-class"),
        ("new", "module:not a name"),
        ("New Tier", "x:Y"),
    ],
)
def test_what_cannot_be_registered(registered: str, name: str, kind: str) -> None:
    with pytest.raises(InvalidSpec):
        register_tier(name, kind)
