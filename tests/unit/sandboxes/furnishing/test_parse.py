"""Reading workspaces: what is one is read whole, what is none is refused by name, nothing else is raised."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxes import InvalidSpec
from sandboxes.furnishing import (
    BindMount,
    Directory,
    File,
    GitRepo,
    LocalDir,
    LocalFile,
    Projection,
    Source,
    WorkspaceSpec,
    parse_workspace,
    read_workspace,
)
from sandboxes.furnishing.entries import KINDS, MAX_CONTENT_BYTES, MAX_ENTRIES
from sandboxes.furnishing.marker import Marker, parse_marker

BASE = Path("/srv/image")
ALLOWED = (Path("/srv/allowed"),)


def parsed(table: object) -> WorkspaceSpec:
    return parse_workspace(table, where="t", base=BASE, allowed=ALLOWED)


def test_every_kind() -> None:
    table = {
        "f": {"type": "file", "content": "aGk=", "encoding": "base64", "executable": True},
        "d": {"type": "dir", "ephemeral": True, "children": {"x": {"type": "file", "content": ""}}},
        "lf": {"type": "local_file", "source": "a/b"},
        "ld": {"type": "local_dir", "source": "/srv/allowed/c", "ephemeral": True},
        "g": {"type": "git_repo", "url": "https://example.com/r.git", "ref": "HEAD", "depth": 1},
        "/mnt/x": {"type": "bind_mount", "source": "x", "read_only": False},
        ".": {"type": "projection", "source": "."},
    }
    spec = parsed(table)
    assert spec.entries == (
        File(path="f", content=b"hi", executable=True),
        Directory(path="d", ephemeral=True),
        File(path="d/x", content=b"", ephemeral=True),  # what is in an ephemeral directory is
        LocalFile(path="lf", source=Source(base=BASE, path="a/b")),
        LocalDir(path="ld", source=Source(base=ALLOWED[0], path="c"), ephemeral=True),
        GitRepo(path="g", url="https://example.com/r.git", depth=1),
        BindMount(path="/mnt/x", source=BASE / "x", read_only=False),
        Projection(path=".", source=Source(base=BASE, path=".")),
    )
    assert spec.ephemeral == ("d", "ld")
    assert [mount.target for mount in spec.mounts] == ["/mnt/x"]


FILE: dict[str, Any] = {"type": "file", "content": ""}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        pytest.param([], "not a table of entries", id="no-table"),
        pytest.param({"a": "file"}, "t.a: it is not a table with a type", id="no-entry"),
        pytest.param({"a": {"type": "socket"}}, "'socket' is none of file, dir", id="unknown-type"),
        pytest.param({"a": {"type": ["file"]}}, "is none of file, dir", id="no-type"),
        pytest.param({"/etc/passwd": FILE}, "not a plain relative path", id="absolute"),
        pytest.param({"../a": FILE}, "not a plain relative path", id="climbs"),
        pytest.param({"a/../../b": FILE}, "not a plain relative path", id="climbs-inside"),
        pytest.param({"a//b": FILE}, "not a plain relative path", id="empty-part"),
        pytest.param({"a\0": FILE}, "not a plain relative path", id="nul"),
        pytest.param({"\udc80": FILE}, "not Unicode", id="surrogate"),
        pytest.param({"x" * 300: FILE}, "more than 255 bytes", id="long-name"),
        pytest.param({"/".join("x" * 40): FILE}, "longer or deeper", id="deep"),
        pytest.param({".skylease/workspace.json": FILE}, "skylease's own", id="our-marker"),
        pytest.param({"a": {**FILE, "mode": 7}}, "file has no mode", id="unknown-key"),
        pytest.param({"a": {**FILE, "ephemeral": 1}}, "neither true nor false", id="no-flag"),
        pytest.param({"a": {"type": "file"}}, "content: it is missing", id="no-content"),
        pytest.param({"a": {**FILE, "encoding": "rot13"}}, "neither utf-8 nor base64", id="encoding"),
        pytest.param({"a": {**FILE, "encoding": "base64", "content": "é"}}, "not base64", id="no-base64"),
        pytest.param(
            {"a": {**FILE, "content": "x" * (MAX_CONTENT_BYTES + 1)}}, "are more than", id="too-large"
        ),
        pytest.param(
            {f"f{n}": FILE for n in range(MAX_ENTRIES + 1)}, "more than 1000 entries", id="too-many"
        ),
        pytest.param({"a": FILE, "a/b": FILE}, "would lie within file a", id="file-in-file"),
        pytest.param(
            {"d": {"type": "dir", "ephemeral": True}, "d/x": FILE}, "d is ephemeral", id="kept-in-ephemeral"
        ),
        pytest.param(
            {"a": {"type": "local_file", "source": "../x"}}, "not a plain relative", id="source-climbs"
        ),
        pytest.param(
            {"a": {"type": "local_dir", "source": "/etc"}}, "none of the directories", id="source-outside"
        ),
        pytest.param(
            {"a": {"type": "local_dir", "source": "/srv/allowed/../../etc"}}, "climbs", id="source-escapes"
        ),
        pytest.param(
            {"a": {"type": "git_repo", "url": "u", "depth": 0}}, "not a number of commits", id="depth"
        ),
        pytest.param(
            {"a": {"type": "git_repo", "url": "u", "depth": True}}, "number of commits", id="depth-flag"
        ),
        pytest.param(
            {"/workspace/x": {"type": "bind_mount", "source": "x"}}, "would cover", id="mount-over-ours"
        ),
        pytest.param({"/mnt/x": {"type": "bind_mount", "source": "../x"}}, "climbs", id="mount-climbs"),
        pytest.param(
            {".": {"type": "projection", "source": ".", "include": ["../x"]}},
            "plain relative",
            id="include-climbs",
        ),
        pytest.param(
            {".": {"type": "projection", "source": ".", "include": ["a", "a"]}},
            "include names one twice",
            id="include-twice",
        ),
        pytest.param(
            {".": {"type": "projection", "source": "."}, "skills/x": FILE},
            "would lie within projection",
            id="in-projection",
        ),
    ],
)
def test_what_is_refused(table: object, says: str) -> None:
    with pytest.raises(InvalidSpec, match=says):
        parsed(table)


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from([*KINDS, ".", "a/b"])
)
KEYS = st.sampled_from(
    [
        "type",
        "content",
        "source",
        "children",
        "ephemeral",
        "include",
        "url",
        "ref",
        "depth",
        "a",
        ".",
        "/mnt/x",
        "a/b",
    ]
)
TABLES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=4)
    ),
)
NAMES = st.sampled_from(["a", "b", "c.md", "Ü"])
ENTRIES = st.fixed_dictionaries(
    {"type": st.just("file"), "content": st.text()}, optional={"ephemeral": st.booleans()}
)
TREES = st.recursive(
    ENTRIES,
    lambda inner: st.builds(
        lambda children, flag: {"type": "dir", "children": children, "ephemeral": flag},
        st.dictionaries(NAMES, inner, max_size=3),
        st.booleans(),
    ),
    max_leaves=8,
)


@given(TABLES)
def test_nonsense_is_refused_and_nothing_else_is_raised(table: object) -> None:
    try:
        spec = parsed(table)
    except InvalidSpec:
        return
    assert isinstance(spec, WorkspaceSpec)


@settings(max_examples=40)
@given(st.dictionaries(NAMES, TREES, max_size=4))
def test_a_tree_is_read_whole_and_what_is_ephemeral_stays_together(table: dict[str, Any]) -> None:
    spec = parsed(table)
    flags: dict[str, bool] = {}

    def walk(level: dict[str, Any], prefix: str, inherited: bool) -> None:
        for name, entry in level.items():
            flags[prefix + name] = bool(entry.get("ephemeral")) or inherited
            walk(entry.get("children", {}), f"{prefix}{name}/", flags[prefix + name])

    walk(table, "", False)
    assert {entry.path: entry.ephemeral for entry in spec.entries} == flags
    for path, flag in flags.items():
        assert flag == any(path == top or path.startswith(f"{top}/") for top in spec.ephemeral)


def test_the_settings_win_over_the_image() -> None:
    image = parsed({"a": FILE, "b": FILE})
    given_too = parsed({"b": {**FILE, "content": "ours"}, "c": FILE})
    assert [(entry.path, getattr(entry, "content", None)) for entry in image.beneath(given_too).entries] == [
        ("a", b""),
        ("b", b"ours"),
        ("c", b""),
    ]


def test_a_file_of_either_form(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text('["a"]\ntype = "local_file"\nsource = "x"\n')
    (tmp_path / "w.json").write_text('{"a": {"type": "local_file", "source": "x"}}')
    assert read_workspace(tmp_path / "w.toml") == read_workspace(tmp_path / "w.json")
    for content in (b"\xff", b"[" * 100_000, b'["a"]\ntype = 7'):
        (tmp_path / "w.json").write_bytes(content)
        (tmp_path / "bad.toml").write_bytes(content)
        for name in ("w.json", "bad.toml"):
            with pytest.raises(InvalidSpec):
                read_workspace(tmp_path / name)


@given(
    st.binary(max_size=60)
    | st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner))
    .map(repr)
    .map(str.encode)
)
def test_a_marker_of_nonsense_is_an_empty_one(raw: bytes) -> None:
    assert parse_marker(raw) == Marker()


@given(st.frozensets(st.sampled_from(["a", "skills/x", "b/c/d"])), st.frozensets(st.text(max_size=5)))
def test_a_marker_comes_back(projected: frozenset[str], laid: frozenset[str]) -> None:
    marker = Marker(laid=laid, projected=projected, hash="h")
    assert parse_marker(marker.to_bytes()) == marker
