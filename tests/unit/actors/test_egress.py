"""What the sections [egress] and [model] mean, and what they may not say."""

import json
from typing import Any

import pytest

from actors.egress import MODEL_HOST, way_out
from actors.errors import SettingsInvalid
from actors.settings import Settings, load_settings, render_toml
from sandboxes import AllowedHost, Credential
from sandboxes.egress.dial import Origin

SECRETS = {"key": "env:THE_KEY"}
HEADERS = {"api.example.com": "Authorization: Bearer {key}"}


def load(**changed: Any) -> Settings:
    return load_settings(None, {name.replace("__", "."): value for name, value in changed.items()})


def test_by_default_nothing_is_reached() -> None:
    found = way_out(Settings())
    assert (found.egress("catan"), dict(found.env), dict(found.secrets)) == (None, {}, {})


def test_hosts_are_allowed_by_type_of_environment() -> None:
    found = way_out(load(egress__hosts={"coding": ["pypi.org", "*.example.com:8443"]}))
    egress = found.egress("coding")
    assert egress is not None
    assert egress.hosts == (AllowedHost(host="pypi.org"), AllowedHost(host="*.example.com", ports=(8443,)))
    assert found.egress("catan") is None


def test_a_model_is_reached_by_all_under_a_name_of_ours_with_its_key_bound_to_it() -> None:
    url = "https://api.example.com/v1/chat/completions?x=y"
    found = way_out(load(model__url=url, model__name="m", egress__secrets=SECRETS, egress__headers=HEADERS))
    egress = found.egress("catan")
    assert egress is not None
    (entry,) = egress.hosts
    assert entry == AllowedHost(host=MODEL_HOST, credential=Credential(secret="key"))
    assert found.env == {"MODEL_URL": f"http://{MODEL_HOST}/v1/chat/completions?x=y", "MODEL_NAME": "m"}
    assert found.origins == {MODEL_HOST: Origin(host="api.example.com", port=443, encrypt=True)}
    assert found.secrets["key"].hosts == {MODEL_HOST}


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://127.0.0.1:11434/v1", "127.0.0.1:11434"),
        ("http://vllm/v1", "vllm"),
        ("https://[fd00::1]:8443/v1", "[fd00::1]:8443"),
    ],
)
def test_a_model_may_be_anywhere(url: str, authority: str) -> None:
    assert way_out(load(model__url=url, model__name="m")).origins[MODEL_HOST].authority == authority


def test_tables_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYLEASE_EGRESS__HOSTS", json.dumps({"coding": ["pypi.org"]}))
    settings = load_settings()
    assert settings.egress.hosts == {"coding": ("pypi.org",)}
    assert 'hosts = {"coding" = ["pypi.org"]}' in render_toml(settings)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        pytest.param({"egress__hosts": {"x": ["127.0.0.1"]}}, "is an address", id="address"),
        pytest.param({"egress__hosts": {"x": ["a.example:b"]}}, "no port", id="port"),
        pytest.param({"egress__hosts": {"x": ["*"]}}, "not a full host name", id="everything"),
        pytest.param({"egress__headers": HEADERS}, "has no use", id="header-without-a-host"),
        pytest.param(
            {"egress__hosts": {"x": ["api.example.com"]}, "egress__headers": HEADERS},
            "say in egress.secrets where it is",
            id="unknown-secret",
        ),
        pytest.param({"model__url": "api.example.com"}, "https://host/path", id="no-url"),
        pytest.param({"model__url": "https://a:b/", "model__name": "m"}, "https://host/path", id="bad-port"),
        pytest.param(
            {
                "model__url": "http://api.example.com/",
                "model__name": "m",
                "egress__headers": HEADERS,
                "egress__secrets": SECRETS,
            },
            "key unencrypted",
            id="a-key-in-the-clear",
        ),
        pytest.param({"model__url": "https://api.example.com/"}, "model.name", id="nameless-model"),
    ],
)
def test_what_cannot_be_met_is_one_line(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        way_out(load(**changed))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"egress__secrets": {"key": "sk-12345"}}, id="secret"),
        pytest.param({"egress__secrets": "sk-12345"}, id="secret-for-a-table"),
        pytest.param({"egress__headers": {"a.example.com": "x-api-key: sk-12345"}}, id="header"),
    ],
)
def test_a_secret_in_the_wrong_place_is_refused_and_not_repeated(changed: dict[str, Any]) -> None:
    with pytest.raises(SettingsInvalid, match="egress") as caught:
        way_out(load(**changed))
    assert "12345" not in str(caught.value)
