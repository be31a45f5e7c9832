"""Settings: the file tells the defaults, the order holds, a wrong key gets its nearest name."""

from pathlib import Path

import pytest

from actors.errors import SettingsInvalid
from actors.settings import Settings, load_settings, names, render_toml

ROOT = Path(__file__).resolve().parents[3]


def test_the_shipped_file_lists_every_setting_with_its_default() -> None:
    assert (ROOT / "config/skylease.toml").read_text() == render_toml(Settings(), data_dir_default=True)


def test_the_shipped_file_can_be_loaded() -> None:
    loaded = load_settings(ROOT / "config/skylease.toml")
    assert loaded.model_dump(exclude={"data_dir"}) == Settings().model_dump(exclude={"data_dir"})


def test_flags_beat_environment_beats_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "s.toml"
    file.write_text("[sandbox]\npids = 11\nslots = 12\nmemory_mib = 100\n")
    monkeypatch.setenv("SKYLEASE_SANDBOX__PIDS", "21")
    monkeypatch.setenv("SKYLEASE_SANDBOX__SLOTS", "22")
    sandbox = load_settings(file, {"sandbox.pids": 31, "sandbox.tier": None}).sandbox
    assert (sandbox.pids, sandbox.slots, sandbox.memory_mib, sandbox.tier) == (31, 22, 100, "process")


@pytest.mark.parametrize("name", names())
def test_every_setting_says_what_it_is(name: str) -> None:
    line = f"{name.rpartition('.')[2]} = "
    text = render_toml(Settings()).splitlines()
    assert any(text[at - 1].startswith("# ") for at, row in enumerate(text) if row.startswith(line))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param("[sandbox]\nteir = 'x'\n", "did you mean sandbox.tier?", id="misspelt-key"),
        pytest.param("[sandbx]\ntier = 'x'\n", "did you mean sandbox?", id="misspelt-table"),
        pytest.param("[lease]\nttl_s = -1\n", "lease.ttl_s is -1", id="out-of-range"),
        pytest.param("[lease\n", "is not TOML", id="not-toml"),
        pytest.param("[snapshots]\nurl = 'ftp://x'\n", "is no store: empty, file:/path", id="no-store"),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "s.toml"
    file.write_text(content)
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(file)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="cannot be read"):
        load_settings(tmp_path / "none.toml")


def test_an_unknown_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYLEASE_SANDBOX__TEIR", "x")
    with pytest.raises(SettingsInvalid, match="did you mean SKYLEASE_SANDBOX__TIER"):
        load_settings()
