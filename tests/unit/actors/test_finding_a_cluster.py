"""Which cluster is at hand: what is named, then what `skylease up` started, then what `ray start` noted."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.cluster import find_address, ray_folder
from actors.errors import ClusterUnavailable
from actors.settings import Settings, load_settings


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in [name for name in os.environ if name.startswith(("RAY_", "SKYLEASE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    return load_settings(flags={"data_dir": str(tmp_path / "data")})


@pytest.fixture
def answering() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def note(text: str) -> None:
    ray_folder().mkdir()
    (ray_folder() / "ray_current_cluster").write_text(text)


def test_nothing_is_at_hand(settings: Settings) -> None:
    assert find_address(settings) is None


def test_a_cluster_is_found_where_ray_was_told_to_note_it(settings: Settings, answering: str) -> None:
    note(answering)
    assert find_address(settings) == answering


def test_a_dead_one_is_passed_over(settings: Settings) -> None:
    note("127.0.0.1:1")
    assert find_address(settings) is None


def test_local_looks_for_none(settings: Settings, answering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    note(answering)
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert find_address(settings) is None


def test_auto_wants_one(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    with pytest.raises(ClusterUnavailable, match="no Ray cluster runs"):
        find_address(settings)


def test_ray_itself_notes_it_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._common.utils import get_default_ray_temp_dir

    for variables in ({}, {"TMPDIR": "/a"}, {"TMPDIR": "/a", "RAY_TMPDIR": "/b"}):
        monkeypatch.delenv("TMPDIR", raising=False)
        monkeypatch.delenv("RAY_TMPDIR", raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert str(ray_folder()) == get_default_ray_temp_dir()  # type: ignore[no-untyped-call]
