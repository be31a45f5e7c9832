"""Sandboxes shared by scope, as the settings want them."""

from pathlib import Path
from typing import Any

import pytest

from actors.errors import SettingsInvalid
from actors.settings import Settings, load_settings
from actors.sharing import _policy, as_settings_say, check_distributed, local_parts, open_sharing, report
from sandboxes import ImageSpec, SandboxSpec
from sandboxes.sharing import (
    Caller,
    GuardUnavailable,
    NotDistributed,
    OnUnreadable,
    Scope,
    SharingError,
    StatesUnavailable,
    Wanted,
)
from sandboxes.snapshot_policy import check_url

REDIS = "redis://cache.example:6379/1"
NOBODY = "unix:///nowhere/redis.sock"


def settings(tmp_path: Path, **flags: Any) -> Settings:
    given = {name.replace("__", "."): value for name, value in flags.items()}
    return load_settings(flags={"data_dir": str(tmp_path), **given})


@pytest.mark.parametrize(
    ("flags", "local"),
    [
        ({}, {"sharing.states", "sharing.guard", "snapshots.url"}),
        ({"sharing__states": REDIS}, {"sharing.guard", "snapshots.url"}),
        ({"sharing__states": REDIS, "sharing__guard": "process"}, {"sharing.guard", "snapshots.url"}),
        ({"sharing__guard": REDIS, "snapshots__url": "s3://bucket/x"}, {"sharing.states"}),
        ({"sharing__states": REDIS, "sharing__guard": REDIS, "snapshots__url": "none:"}, {"snapshots.url"}),
        ({"sharing__states": REDIS, "sharing__guard": REDIS, "snapshots__url": "file:/x"}, {"snapshots.url"}),
        ({"sharing__states": NOBODY, "sharing__guard": REDIS, "snapshots__url": REDIS}, {"sharing.states"}),
        ({"sharing__states": REDIS, "sharing__guard": REDIS, "snapshots__url": REDIS}, set()),
    ],
)
def test_what_is_local_is_named(tmp_path: Path, flags: dict[str, str], local: set[str]) -> None:
    lenient = settings(tmp_path, **flags)
    assert {part.partition(" ")[0] for part in local_parts(lenient)} == local
    check_distributed(lenient)
    strict = settings(tmp_path, sharing__require_distributed=True, **flags)
    if not local:
        check_distributed(strict)
        return
    with pytest.raises(NotDistributed) as refused:
        check_distributed(strict)
    assert all(name in str(refused.value) for name in local)


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("", ""),
        ("none:", "none:"),
        ("file:/x", "file:///x/shared"),
        ("s3://bucket", "s3://bucket/shared"),
        ("s3://bucket/x?region=eu", "s3://bucket/x/shared?region=eu"),
        ("redis://host:6379/0", "redis://host:6379/0?prefix=skylease-shared"),
        ("redis://host/0?prefix=mine", "redis://host/0?prefix=mine-shared"),
    ],
)
def test_files_have_a_place_of_their_own_in_the_store(tmp_path: Path, url: str, own: str) -> None:
    policy = _policy(settings(tmp_path, snapshots__url=url))
    assert check_url(policy.url) == own


async def test_nothing_starts_where_everything_must_be_shared_and_is_not(tmp_path: Path) -> None:
    with pytest.raises(NotDistributed):
        async with open_sharing(settings(tmp_path, sharing__require_distributed=True)):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("sharing.guard", ""),
        ("sharing.guard", "cluster"),
        ("sharing.states", "s3://bucket"),
        ("sharing.states", "redis://:hunter2@host"),
        ("sharing.guard_ttl_s", -5),
        ("sharing.guard_ttl_s", "soon"),
        ("sharing.guard_ttl_s", float("nan")),
        ("sharing.wait_s", -1),
        ("sharing.on_unreadable", "ignore"),
        ("lease.ttl_s", -1),
        ("lease.sleep_after_s", "garbage"),
    ],
)
def test_nonsense_is_refused_by_name_and_without_secrets(flag: str, value: object) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        load_settings(flags={flag: value})
    assert flag in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_the_report_shows_no_secret_and_is_json_ready(tmp_path: Path) -> None:
    shown = report(settings(tmp_path, sharing__states=REDIS))
    assert shown["states"] == REDIS
    assert shown["guard"] == "ledger"
    assert [part.partition(" ")[0] for part in shown["local"]] == ["sharing.guard", "snapshots.url"]


@pytest.mark.parametrize(
    ("flags", "error"),
    [({"sharing__states": NOBODY}, StatesUnavailable), ({"sharing__guard": NOBODY}, GuardUnavailable)],
)
async def test_a_store_that_is_down_is_said(
    tmp_path: Path, flags: dict[str, str], error: type[SharingError]
) -> None:
    image = tmp_path / "image"
    image.mkdir()
    (image / "take_turn.py").touch()
    spec = SandboxSpec(name="x", epoch=0, image=ImageSpec(name="x", root=image))
    told = settings(tmp_path, sharing__on_unreadable="fresh", sharing__wait_s=1.5, **flags)
    wanted = Wanted(spec=spec, tier="unsafe", scope=Scope.GLOBAL, caller=Caller())
    wanted = as_settings_say(told, wanted)
    assert (wanted.wait_s, wanted.on_unreadable) == (1.5, OnUnreadable.FRESH)
    async with open_sharing(told) as sharing:
        with pytest.raises(error, match="/nowhere/redis"):
            await sharing.acquire(wanted)
        assert await sharing.sweep("unsafe", idle_s=0) == ()
