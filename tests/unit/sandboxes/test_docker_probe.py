"""What an engine says about itself, and what the docker tier makes of it."""

from pathlib import Path
from typing import Any

import pytest

from sandboxes.tiers.docker_engine import Engine, EngineDown, explain_down
from sandboxes.tiers.docker_probe import Found, Reach, probe_engine

VERSION = {"Version": "24.0.7", "ApiVersion": "1.43", "Os": "linux", "Arch": "arm64"}
INFO = {
    "OperatingSystem": "Debian",
    "CgroupVersion": "2",
    "MemoryLimit": True,
    "PidsLimit": True,
    "SwapLimit": True,
    "CpuCfsQuota": True,
    "SecurityOptions": ["name=seccomp,profile=default"],
    "DefaultRuntime": "runc",
    "Runtimes": {"runc": {}, "runsc": {}},
}


class Says:
    """An engine as far as the probe asks one."""

    def __init__(self, url: str, version: dict[str, Any], info: dict[str, Any]) -> None:
        self.base_url, self._version, self._info = url, version, info

    def version(self) -> dict[str, Any]:
        return {**VERSION, **self._version}

    def info(self) -> dict[str, Any]:
        return {**INFO, **self._info}


def probe(
    *,
    url: str = "http+docker://localhost",
    version: dict[str, Any] | None = None,
    runtime: str | None = None,
    reach: Reach | None = None,
    is_root: bool = True,
    **info: Any,
) -> Found:
    engine: Any = Says(url, version or {}, info)
    return probe_engine(engine, runtime=runtime, reach=reach, is_root=is_root)


def test_an_engine_of_this_machine_shares_everything() -> None:
    found = probe()
    assert (found.reach, found.machine, found.is_local) == (Reach.SOCKET, "aarch64", True)
    assert found.probe.ok
    assert found.probe.lacks == ()


UNUSABLE: list[Any] = [
    pytest.param({"version": {"ApiVersion": "1.40", "Version": "19.03"}}, "19.03", "20.10", id="too-old"),
    pytest.param({"version": {"Os": "windows"}}, "windows containers", "Linux containers", id="windows"),
    pytest.param({"runtime": "kata"}, "no runtime kata (it knows runc, runsc)", "daemon.json", id="runtime"),
    pytest.param({"PidsLimit": False}, "cannot limit", "controllers", id="no-limits"),
]


@pytest.mark.parametrize(("said", "why", "remedy"), UNUSABLE)
def test_what_makes_an_engine_useless_is_one_line(said: dict[str, Any], why: str, remedy: str) -> None:
    found = probe(**said)
    assert not found.probe.ok
    (lack,) = found.probe.lacks
    assert why in lack.why
    assert remedy in lack.effect
    assert "\n" not in lack.why + lack.effect


REACHES: list[Any] = [
    pytest.param({"url": "http://10.0.0.1:2375"}, Reach.NOTHING, "over the network", id="tcp"),
    pytest.param({"url": "http+docker://ssh"}, Reach.NOTHING, "over the network", id="ssh"),
    pytest.param({"SecurityOptions": ["name=rootless"]}, Reach.NOTHING, "rootless", id="rootless"),
    pytest.param({"SecurityOptions": ["name=userns"]}, Reach.NOTHING, "userns-remap", id="userns-remap"),
    pytest.param({"runtime": "runsc"}, Reach.FILES, "gVisor", id="gvisor"),
    pytest.param({"reach": Reach.FILES}, Reach.FILES, "configured", id="configured"),
]


@pytest.mark.parametrize(("said", "reach", "why"), REACHES)
def test_what_is_not_shared_is_said(said: dict[str, Any], reach: Reach, why: str) -> None:
    found = probe(**said)
    assert found.probe.ok
    assert found.reach is reach
    assert why in next(lack.why for lack in found.probe.lacks if lack.what == "shared socket")


LACKS: list[Any] = [
    ({"SwapLimit": False}, "swap limit"),
    ({"CpuCfsQuota": False}, "cpu limit"),
    ({"SecurityOptions": []}, "seccomp"),
    ({"is_root": False}, "own uid"),
]


@pytest.mark.parametrize(("said", "what"), LACKS, ids=[what for _, what in LACKS])
def test_a_missing_limit_is_a_lack(said: dict[str, Any], what: str) -> None:
    assert what in [lack.what for lack in probe(**said).probe.lacks]


@pytest.mark.parametrize("host", ["unix:///no/such.sock", "tcp://127.0.0.1:1"], ids=["socket", "tcp"])
def test_no_engine_is_one_line(host: str) -> None:
    found = probe_engine(Engine(host), runtime=None, reach=None, is_root=True)
    (lack,) = found.probe.lacks
    assert (lack.what, lack.why) == ("engine", "no Docker Engine answers")
    assert "DOCKER_HOST" in lack.effect


def test_an_engine_that_breaks_off_is_down(tmp_path: Path) -> None:
    with pytest.raises(EngineDown) as caught:
        Engine("nonsense://x").version()
    assert "nonsense" in str(caught.value)


def wrapped(cause: Exception) -> Exception:
    """The cause as the SDK wraps it."""
    return RuntimeError("Error while fetching server API version", RuntimeError("Connection aborted.", cause))


DOWNS: list[Any] = [
    pytest.param(wrapped(PermissionError(13, "Permission denied")), "denied", "group docker", id="denied"),
    pytest.param(wrapped(TimeoutError("timed out")), "did not answer within 30 s", "dockerd", id="silent"),
    pytest.param(
        wrapped(ConnectionRefusedError(111, "no")), "no Docker Engine answers", "DOCKER_HOST", id="refused"
    ),
    pytest.param(OSError("something\nelse"), "something else", "docker version", id="other"),
]


@pytest.mark.parametrize(("error", "why", "remedy"), DOWNS)
def test_what_keeps_us_from_the_engine(error: Exception, why: str, remedy: str) -> None:
    down = explain_down(error)
    assert why in down.reason
    assert remedy in down.remedy
