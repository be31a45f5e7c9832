"""What is planned, carried out on a model of a workspace: ours is exactly so, the agent's is untouched."""

from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes import InvalidSpec
from sandboxes.furnishing import Source, Start, hostfiles
from sandboxes.furnishing.hostfiles import DIRECTORY, HostFiles, Tree, Wanted, hash_of
from sandboxes.furnishing.plan import Delete, Make, Step, Write, decide, plan, with_parents
from sandboxes.workspace import Seen

Model = dict[str, bytes | None]  # content by path; None: a directory; LINK: a link to nowhere that is known
LINK = b"\0link"


@pytest.mark.parametrize(
    ("is_ready", "is_there", "is_restored", "start"),
    [
        pytest.param(True, True, False, Start.LIVE, id="A"),
        pytest.param(True, False, True, Start.RESTORED, id="B"),
        pytest.param(True, False, False, Start.LOST, id="D-degraded"),
        pytest.param(False, True, True, Start.RESTORED_UNREADY, id="C-there"),
        pytest.param(False, False, True, Start.RESTORED_UNREADY, id="C"),
        pytest.param(False, True, False, Start.FRESH, id="D-there"),
        pytest.param(False, False, False, Start.FRESH, id="D"),
    ],
)
def test_the_start_decision(is_ready: bool, is_there: bool, is_restored: bool, start: Start) -> None:
    assert decide(is_ready=is_ready, is_there=is_there, is_restored=is_restored) is start


PATHS = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "f/g/h"]


def trees(contents: st.SearchStrategy[bytes | None]) -> st.SearchStrategy[Model]:
    """Trees: a path is in one only if all above it are directories."""

    def whole(wanted: Model) -> Model:
        found: Model = {}
        for path in sorted(wanted, key=lambda path: path.count("/")):
            parents = sorted(with_parents([path]) - {path})
            if all(wanted.get(parent) is None for parent in parents):
                found.update(dict.fromkeys(parents))
                found[path] = wanted[path]
        return found

    return st.dictionaries(st.sampled_from(PATHS), contents, max_size=6).map(whole)


CONTENTS = st.none() | st.sampled_from([b"1", b"2", b"33"])


def as_tree(model: Model) -> Tree:
    return {
        path: DIRECTORY if content is None else Wanted(content=content) for path, content in model.items()
    }


def look(model: Model, path: str, wanted: Tree) -> Seen:
    if path not in model:
        return Seen(kind=None)
    content = model[path]
    if content is None:
        return Seen(kind="directory")
    if content == LINK:
        return Seen(kind="link")
    return Seen(kind="file", size=len(content), mode=0o644, sha256=sha256(content).hexdigest())


def carry_out(model: Model, steps: list[Step]) -> Model:
    model = dict(model)
    for step in steps:
        for parent in with_parents([step.path]) - {step.path}:
            assert model.get(parent, LINK) is None, (step, "is not in a directory")
        match step:
            case Delete():
                below = [path for path in model if path.startswith(f"{step.path}/")]
                if not (step.if_empty and below):
                    for path in [*below, step.path]:
                        del model[path]
            case Make():
                assert model.get(step.path) is None
                model[step.path] = None
            case Write():
                assert model.get(step.path, b"") is not None
                assert step.wanted.content is not None
                model[step.path] = step.wanted.content
    return model


@given(trees(CONTENTS), trees(CONTENTS | st.just(LINK)), st.frozensets(st.sampled_from(PATHS)))
def test_what_is_ours_is_exactly_so_and_the_rest_is_untouched(
    ours: Model, there: Model, stale: frozenset[str]
) -> None:
    stale -= with_parents(ours)
    paths = with_parents([*ours, *stale])
    steps = plan(as_tree(ours), {}, stale, {path: look(there, path, as_tree(ours)) for path in paths})
    after = carry_out(there, steps)
    assert {path: after[path] for path in with_parents(ours)} == {**dict.fromkeys(with_parents(ours)), **ours}
    for path in stale:
        assert after.get(path) is None  # gone, or a directory that somebody else uses
    for path, content in there.items():
        mine = path in stale or any(path == own or path.startswith(f"{own}/") for own in with_parents(ours))
        assert mine or after[path] == content
    assert plan(as_tree(ours), {}, (), {path: look(after, path, {}) for path in with_parents(ours)}) == []


@given(trees(CONTENTS), trees(CONTENTS | st.just(LINK)))
def test_what_is_laid_once_overwrites_nothing(once: Model, there: Model) -> None:
    steps = plan({}, as_tree(once), (), {path: look(there, path, {}) for path in with_parents(once)})
    after = carry_out(there, steps)
    assert {path: after[path] for path in there} == there
    for path in after.keys() - there.keys():
        assert after[path] == once[path]
    if not there:
        assert after == once


def test_of_a_host_only_what_lies_beneath_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("s")
    base = tmp_path / "base"
    (base / "real").mkdir(parents=True)
    (base / "real" / "x").write_text("x")
    (base / "to-dir").symlink_to(tmp_path)
    (base / "to-file").symlink_to(tmp_path / "secret")
    host = HostFiles()
    tree = host.read(Source(base=base, path="."), ".")
    assert set(tree) == {"real", "real/x"}
    assert sorted(host.skipped) == [str(base / "to-dir"), str(base / "to-file")]
    for path in ("to-file", "to-dir", "to-dir/secret", "nothing"):
        with pytest.raises(InvalidSpec, match="cannot be read"):
            host.read(Source(base=base, path=path), "inside")
    for limit, value in (("MAX_FILES", 1), ("MAX_FILE_BYTES", 0), ("MAX_TOTAL_BYTES", 0), ("MAX_DEPTH", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(hostfiles, limit, value)
            with pytest.raises(InvalidSpec, match="more than"):
                HostFiles().read(Source(base=base, path="."), "inside")


def test_the_hash_is_of_paths_bits_and_contents() -> None:
    trees_apart: list[Tree] = [
        {},
        {"a": Wanted(content=b"1")},
        {"a": Wanted(content=b"2")},
        {"b": Wanted(content=b"1")},
        {"a": Wanted(content=b"1", executable=True)},
        {"a": DIRECTORY},
    ]
    assert len({hash_of(tree) for tree in trees_apart}) == len(trees_apart)
