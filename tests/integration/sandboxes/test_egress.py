"""What a sandbox reaches and what it does not, tried from inside."""

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxes import (
    AllowedHost,
    Credential,
    Egress,
    ImageSpec,
    InvalidSpec,
    Limits,
    Sandbox,
    SandboxSpec,
    SlotSpec,
    Tier,
    open_tier,
)
from sandboxes.egress.gateway import Gateway
from sandboxes.egress.secrets import Secret, Secrets
from sandboxes.tiers.gvisor import GvisorTier
from sandboxes.tiers.registry import NEVER_CHOSEN, TIERS

KEY = "sk-what-nobody-inside-may-see"
FETCH = """\
import sys, urllib.request, urllib.error
try:
    with urllib.request.urlopen(sys.argv[1], timeout=20) as answer: print(answer.read().decode())
except urllib.error.HTTPError as error: print(error.code, error.reason, error.read().decode())
except OSError as error: print(type(error).__name__, error)
"""
HOST = """\
import asyncio, sys
from pathlib import Path
from sandboxes.egress.dial import Dialer
from sandboxes.egress.gateway import Gateway
from sandboxes.egress.secrets import Secrets
async def main():
    gateway = Gateway(secrets=Secrets({}), dialer=Dialer())
    assert await gateway.open(sys.argv[1], Path(sys.argv[2]))
    print("serving", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
TALK = """\
import socket
with socket.create_connection(("127.0.0.1", 3128)) as sock:
    sock.sendall(b"GET http://api.example.com/ HTTP/1.1\\r\\n")
    print("talking", flush=True)
    assert sock.recv(100)[:12] in (b"", b"HTTP/1.1 503")
"""
REFERENCE = "skylease/base:dev"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> ImageSpec:
    root = tmp_path_factory.mktemp("image")
    (root / "take_turn.py").write_text('print(\'{"type": "pass"}\')')
    root.chmod(0o755)
    return ImageSpec(name="test", root=root, reference=REFERENCE)


@pytest.fixture(scope="module", params=[name for name in TIERS if name not in NEVER_CHOSEN])
def tier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, image: ImageSpec) -> Tier:
    tier = open_tier(request.param, tmp_path_factory.mktemp("state"))
    probe = asyncio.run(tier.probe())
    if not probe.ok:
        pytest.skip(f"{request.param}: {probe.lacks[0].why}")
    for lack in probe.lacks:
        if lack.what == "egress":
            pytest.skip(f"{request.param}: {lack.why}")
    if not asyncio.run(tier.has_image(image)):
        pytest.skip(f"{request.param}: the image {REFERENCE} is not built")
    return tier


@pytest.fixture(scope="module")
def egress(world: Any) -> Egress:
    ports = (world.upstream.port,)
    key = Credential(secret="model", header="x-api-key", prefix="")
    hosts = (AllowedHost(host="api.example.com", ports=ports, credential=key),)
    return Egress(hosts=(*hosts, AllowedHost(host="*.example.org", ports=ports)))


@pytest.fixture(scope="module")
def sandbox(tier: Tier, image: ImageSpec, egress: Egress) -> Iterator[Sandbox]:
    yield asyncio.run(tier.create(SandboxSpec(name="inside", epoch=1, image=image, egress=egress)))
    asyncio.run(tier.destroy("inside"))


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    file = tmp_path_factory.mktemp("secrets") / "key"
    file.write_text(KEY)
    file.chmod(0o600)
    return Secrets({"model": Secret(source=f"file:{file}", hosts=frozenset({"api.example.com"}))})


@pytest.fixture
async def gateway(world: Any, secrets: Secrets, sandbox: Sandbox) -> AsyncIterator[Gateway]:
    gateway = Gateway(secrets=secrets, dialer=world.open_dialer)
    await gateway.open(sandbox.name, sandbox.directory)
    yield gateway
    await gateway.close_all()


async def fetch(sandbox: Sandbox, url: str) -> str:
    result = await sandbox.exec(["python3", "-c", FETCH, url], timeout=30)
    return result.text + result.stderr_text


async def test_an_allowed_host_is_reached_and_the_key_stays_outside(
    world: Any, gateway: Gateway, sandbox: Sandbox
) -> None:
    assert '"path": "/quiet"' not in await fetch(
        sandbox, f"http://api.example.com:{world.upstream.port}/quiet"
    )
    (heard,) = world.upstream.heard
    assert ["x-api-key", KEY] in heard["headers"]
    look = (
        "import glob, os\nfor p in [*glob.glob('/proc/[0-9]*/environ'), *glob.glob('/proc/[0-9]*/cmdline'),\n"
        " *(os.path.join(d, f) for top in ('/run', '/workspace', '/tmp', '/image')\n"
        "  for d, _, fs in os.walk(top) for f in fs)]:\n"
        "  try: print(p, open(p, errors='replace').read())\n  except OSError: pass\n"
    )
    seen = (await sandbox.exec(["python3", "-c", look])).text
    assert "HTTP_PROXY=http://127.0.0.1:3128" in seen
    assert KEY not in seen
    assert "x-api-key" not in seen  # the policy itself is not inside either


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://evil.example.com/", "403 Forbidden: evil.example.com:443 is not among the hosts"),
        ("https://evil.example.com/", "403 Forbidden: evil.example.com:443 is not among the hosts"),
        ("http://169.254.169.254/latest/meta-data/", "403 Forbidden: '169.254.169.254' is an address"),
        ("http://0x7f000001/", "403 Forbidden: '0x7f000001' is not a full host name"),
        ("http://api.example.com.:{port}/", "403 Forbidden: 'api.example.com.' is not a host name"),
        ("http://localhost.:{port}/", "403 Forbidden: 'localhost.' is not a host name"),
    ],
)
async def test_everything_else_is_refused_with_a_clear_line(
    world: Any, gateway: Gateway, sandbox: Sandbox, url: str, words: str
) -> None:
    assert words in await fetch(sandbox, url.replace("{port}", str(world.upstream.port)))
    assert world.asked == []


async def test_a_name_that_turns_inside_is_refused(world: Any, secrets: Secrets, sandbox: Sandbox) -> None:
    strict = Gateway(secrets=secrets, dialer=world.dialer)
    await strict.open(sandbox.name, sandbox.directory)
    said = await fetch(sandbox, f"http://wild.example.org:{world.upstream.port}/")
    assert "403 Forbidden: wild.example.org leads to an address that is refused (loopback)" in said
    await strict.close_all()


async def test_there_is_no_other_way_out(world: Any, gateway: Gateway, sandbox: Sandbox) -> None:
    code = (
        "import socket\nfor host, port in (('127.0.0.1', PORT), ('169.254.169.254', 80), ('1.2.3.4', 443)):\n"
        "    with socket.socket() as sock:\n        sock.settimeout(2)\n"
        "        print(host, sock.connect_ex((host, port)) != 0)\n"
        "try: print(socket.getaddrinfo('api.example.com', 443))\nexcept OSError: print('no names')\n"
    ).replace("PORT", str(world.upstream.port))
    said = (await sandbox.exec(["python3", "-c", code], timeout=30)).text
    assert said == "127.0.0.1 True\n169.254.169.254 True\n1.2.3.4 True\nno names\n"


async def test_a_proxy_that_was_killed_harms_nothing_and_another_takes_over(
    world: Any, secrets: Secrets, sandbox: Sandbox
) -> None:
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOST, sandbox.name, str(sandbox.directory), stdout=subprocess.PIPE
    )
    assert host.stdout is not None
    await host.stdout.readline()
    talking = await sandbox.start_process(["python3", "-c", TALK])
    await talking.wait_for_log("talking", timeout=20)
    host.kill()
    await host.wait()
    assert (await talking.wait(timeout=20)) == 0  # it was told of the end
    url = f"http://api.example.com:{world.upstream.port}/"
    assert "503 Service Unavailable: the node's proxy does not answer" in await fetch(sandbox, url)
    assert (await sandbox.turn({}, turn=1)).action == {"type": "pass"}
    again = Gateway(secrets=secrets, dialer=world.open_dialer)  # as a host does that has started again
    await again.open(sandbox.name, sandbox.directory)
    assert (await fetch(sandbox, url)).strip() == "{}"
    await again.close_all()


async def test_a_forwarder_that_was_killed_inside_comes_back(
    world: Any, gateway: Gateway, sandbox: Sandbox
) -> None:
    await sandbox.exec("kill -9 -1")
    async with asyncio.timeout(60):
        while (await fetch(sandbox, f"http://api.example.com:{world.upstream.port}/")).strip() != "{}":
            await asyncio.sleep(0.02)


async def test_a_large_download_arrives_whole_while_turns_go_on(
    world: Any, gateway: Gateway, sandbox: Sandbox
) -> None:
    world.upstream.answer = os.urandom(8 << 20)
    code = (
        "import hashlib, sys, urllib.request\n"
        "print(hashlib.sha256(urllib.request.urlopen(sys.argv[1]).read()).hexdigest())"
    )
    url = f"http://api.example.com:{world.upstream.port}/large"
    running = asyncio.ensure_future(sandbox.exec(["python3", "-c", code, url], timeout=60))
    turns = 0
    while not running.done():
        assert (await sandbox.turn({}, turn=turns)).action == {"type": "pass"}
        turns += 1
    assert (await running).text.strip() == hashlib.sha256(world.upstream.answer).hexdigest()
    world.upstream.answer = b"{}"
    assert turns > 0


async def test_a_sandbox_without_egress_has_no_way_out(
    world: Any, tier: Tier, image: ImageSpec, secrets: Secrets
) -> None:
    async with await tier.create(SandboxSpec(name="closed", epoch=1, image=image)) as closed:
        gateway = Gateway(secrets=secrets, dialer=world.open_dialer)
        assert not await gateway.open("closed", closed.directory)
        assert not list(closed.directory.rglob("proxy.sock"))
        said = await closed.exec("env | grep -ic proxy; ls /run/skylease/egress; echo $?")
        assert said.text.startswith("0\n")
        code = "import socket; print(socket.socket().connect_ex(('127.0.0.1', 3128)) != 0)"
        assert (await closed.exec(["python3", "-c", code])).text == "True\n"
    await tier.destroy("closed")


async def test_what_is_destroyed_is_cut_off(
    world: Any, tier: Tier, image: ImageSpec, egress: Egress, secrets: Secrets
) -> None:
    gateway = Gateway(secrets=secrets, dialer=world.open_dialer)
    async with await tier.create(SandboxSpec(name="short", epoch=1, image=image, egress=egress)) as short:
        await gateway.open("short", short.directory)
        assert (await fetch(short, f"http://api.example.com:{world.upstream.port}/")).strip() == "{}"
    await tier.destroy("short")  # with the proxy still there
    assert not short.directory.exists()
    await gateway.close("short")
    assert gateway.names() == []
    assert gateway.counts() == {"allowed": 1}


async def test_the_way_out_comes_with_the_claim_of_a_slot(
    world: Any, tier: Tier, image: ImageSpec, egress: Egress, secrets: Secrets
) -> None:
    if await tier.can_warm() is not None:
        return  # tests/contract/test_slots.py holds it to that
    await tier.warm(SlotSpec(name="slot-0123456789abcdef", image=image, limits=Limits(), reaches_out=True))
    gateway = Gateway(secrets=secrets, dialer=world.open_dialer)
    spec = SandboxSpec(name="claimed", epoch=1, image=image, egress=egress)
    try:
        async with await tier.claim("slot-0123456789abcdef", spec) as claimed:
            await gateway.open("claimed", claimed.directory)
            assert (await fetch(claimed, f"http://api.example.com:{world.upstream.port}/")).strip() == "{}"
            assert "403 Forbidden" in await fetch(claimed, "http://evil.example.com/")
            hostile = "rm -rf /run/skylease/egress/*; touch /run/skylease/egress/x; ls /run/skylease/egress"
            assert (await claimed.exec(hostile)).text == "proxy.sock\n"
    finally:
        await gateway.close_all()
        await tier.destroy("claimed")


async def test_a_sandbox_that_was_saved_with_its_processes_has_its_way_out_again(
    world: Any, image: ImageSpec, egress: Egress, secrets: Secrets, tmp_path: Path
) -> None:
    tier = GvisorTier(tmp_path / "state")
    probe = await tier.probe()
    if not probe.ok:
        pytest.skip(f"gvisor: {probe.lacks[0].why}")
    spec = SandboxSpec(name="saved", epoch=1, image=image, egress=egress)
    gateway = Gateway(secrets=secrets, dialer=world.open_dialer)
    try:
        async with await tier.create(spec) as first:
            await gateway.open("saved", first.directory)
            assert (await fetch(first, f"http://api.example.com:{world.upstream.port}/")).strip() == "{}"
            await gateway.close("saved")
        await tier.checkpoint("saved", tmp_path / "saved")
        async with await tier.restore(spec, tmp_path / "saved") as second:
            await gateway.open("saved", second.directory)
            assert (await fetch(second, f"http://api.example.com:{world.upstream.port}/")).strip() == "{}"
    finally:
        await gateway.close_all()
        await tier.destroy("saved")


async def test_a_tier_without_a_network_of_its_own_refuses(
    image: ImageSpec, egress: Egress, tmp_path: Path
) -> None:
    with pytest.raises(InvalidSpec, match=r"egress: the tier unsafe cannot .* it shares the host's network"):
        await open_tier("unsafe", tmp_path).create(
            SandboxSpec(name="no", epoch=1, image=image, egress=egress)
        )
    assert not (tmp_path / "no").exists()
