"""The images as they were built: their packages, whose they are, and what a lease records of them."""

import asyncio
from pathlib import Path

import pytest

from actors.faces import SandboxOrder
from actors.host import Host, HostConfig, make_tier
from actors.resources import shipped
from sandboxes import ImageNotBuilt, Limits, connect_sandbox
from sandboxes.images.build import find_built
from sandboxes.images.folder import digest_of, folder
from sandboxes.tiers.docker_engine import Engine, EngineDown

PACKAGES = {
    "catan": "python3 -c 'import numpy, pydantic'",
    "rpg": "python3 -c 'import aiohttp, pydantic'",
    "coding": "tsc --version && tsx --version && ruff --version && pytest --version && npm --version "
    "&& test \"$(git config user.name) <$(git config user.email)>\" = 'Agent <agent@atproto.network>'",
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    engine = Engine()
    try:
        engine.version()
    except EngineDown as down:
        pytest.skip(f"docker: {down}")
    for name in PACKAGES:
        if find_built(engine, f"skylease/{name}:dev") is None:
            pytest.skip(f"docker: the image {name} is not built (make images)")
    return engine


@pytest.fixture
def host(tmp_path: Path) -> Host:
    config = HostConfig(node_id="here", root=tmp_path, images=shipped("images"), limits=Limits(), slots=4)
    return Host(config, make_tier("docker", tmp_path / "sandboxes"))


@pytest.mark.parametrize("name", PACKAGES)
def test_an_image_has_its_packages_and_an_unprivileged_user(engine: Engine, name: str) -> None:
    client = engine._connected()
    host_config = client.create_host_config(
        network_mode="none", cap_drop=["ALL"], read_only=True, tmpfs={"/tmp": ""}
    )
    script = f'set -e; test "$(id -u)" != 0; test "$PYTHONUSERBASE" = /workspace/.local; {PACKAGES[name]}'
    container = client.create_container(
        f"skylease/{name}:dev",
        ["/bin/sh", "-c", script],
        host_config=host_config,
        labels={"skylease.test": "built"},
    )["Id"]
    try:
        client.start(container)
        assert client.wait(container, timeout=60)["StatusCode"] == 0, client.logs(container).decode()
    finally:
        engine.remove(container)


def test_nothing_of_the_build_host_stays_in_an_image(engine: Engine) -> None:
    for name in PACKAGES:
        built = engine.image(f"skylease/{name}:dev")
        assert built is not None
        assert not [entry for entry in built["Config"]["Env"] if "CERT" in entry or "PROXY" in entry.upper()]


async def test_a_lease_says_which_image_its_sandbox_runs(engine: Engine, host: Host) -> None:
    built = find_built(engine, "skylease/catan:dev")
    assert built is not None
    fresh = built.sources == digest_of(shipped("images") / "catan")
    told = await host.image("catan")
    assert told.startswith(f"skylease/catan:dev@{built.digest}")
    assert ("+sha256:" in told) is not fresh
    order = SandboxOrder(
        name="built-one",
        lease_id="did:plc:a::c",
        epoch=1,
        agent_did="did:plc:a",
        environment_id="c",
        environment_type="catan",
    )
    try:
        async with connect_sandbox(await host.create(order), epoch=1) as sandbox:
            seen = await sandbox.exec(["cat", "/image/take_turn.py"])
        assert seen.stdout == (shipped("images") / "catan/take_turn.py").read_bytes()
        container = engine.labels("skylease.lease=did:plc:a::c")
        assert len(container) == 1
        inspected = await asyncio.to_thread(engine._connected().inspect_container, next(iter(container)))
        assert inspected["Image"] == built.digest
    finally:
        await host.destroy("built-one")
    assert engine.labels("skylease.lease=did:plc:a::c") == {}


async def test_an_image_whose_folder_has_changed_is_bound_over_and_one_not_built_is_refused(
    engine: Engine, tmp_path: Path
) -> None:
    for name in ("catan", "nobody-built-this"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "image.toml").write_text('turn_script = "take_turn.py"\n')
        (tmp_path / "images" / name / "take_turn.py").write_text("pass\n")
    tier = make_tier("docker", tmp_path / "sandboxes")
    changed = await tier.locate(folder(tmp_path / "images", "catan").spec())
    assert changed.bind_root is True
    assert changed.digest is not None
    with pytest.raises(ImageNotBuilt, match="skylease images build nobody-built-this"):
        await tier.locate(folder(tmp_path / "images", "nobody-built-this").spec())
