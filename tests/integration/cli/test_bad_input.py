"""Bad input: one line that says what, which and what to do; the documented exit code; nothing half-done."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).resolve().parents[2] / "data"
TRACE = DATA / "pds-trace.fht"


def one_line(ran: Any, code: int, *says: str) -> None:
    """The command failed as documented, and its last words are one line with these in it."""
    assert ran.code == code, (ran.code, ran.err)
    assert "Traceback" not in ran.err
    last = ran.err.strip().splitlines()[-1]
    assert last.startswith("skylease: ")
    for word in says:
        assert word in last, last
    assert ran.out == ""


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        pytest.param(["--frob"], 2, ["--frob", "--help"], id="unknown-flag"),
        pytest.param(["frobnicate"], 2, ["frobnicate"], id="unknown-command"),
        pytest.param(["simulate", "catan", "--frob"], 2, ["--frob"], id="unknown-flag-of-a-command"),
        pytest.param(["simulate", "chess"], 2, ["chess", "catan"], id="unknown-environment"),
        pytest.param(["simulate", "catan", "--agents", "9"], 2, ["2 to 4", "--agents"], id="too-many-agents"),
        pytest.param(["simulate", "rpg", "--agents", "7"], 2, ["1 to 6", "--agents"], id="too-large-a-party"),
        pytest.param(["simulate", "catan", "--adventures", "2"], 2, ["--adventures"], id="catan-campaign"),
        pytest.param(["simulate", "rpg", "--adventures", "0"], 2, ["1 to 100", "0"], id="no-adventures"),
        pytest.param(["simulate", "catan", "--tier", "iron"], 2, ["sandbox.tier", "iron"], id="unknown-tier"),
        pytest.param(["replay", "none.fht"], 3, ["none.fht"], id="missing-trace"),
        pytest.param(["firehose", "verify", "none.fht"], 3, ["none.fht"], id="missing-trace-verify"),
        pytest.param(["--config", "none.toml", "config", "show"], 2, ["none.toml"], id="missing-settings"),
        pytest.param(["leases", "list"], 3, ["ledger", "--data-dir"], id="no-ledger"),
        pytest.param(["leases", "list", "--status", "odd"], 2, ["odd", "active"], id="unknown-status"),
        pytest.param(
            ["sandboxes", "run", "--image", "nope", "--", "true"], 3, ["nope", "catan"], id="unknown-image"
        ),
        pytest.param(["bench", "nope"], 2, ["nope", "turn"], id="unknown-benchmark"),
        pytest.param(["down"], 3, ["skylease up"], id="nothing-is-up"),
        pytest.param(["sandboxes", "sleep", "x"], 3, ["skylease up"], id="nothing-is-up-to-sleep-in"),
        pytest.param(
            ["firehose", "tail", "http://127.0.0.1:1", "--count", "1"], 1, ["127.0.0.1:1"], id="relay-refuses"
        ),
        pytest.param(["firehose", "tail", "ftp://x", "--count", "1"], 1, ["ftp://x"], id="not-an-address"),
    ],
)
def test_wrong_words(skylease: Any, words: list[str], code: int, says: list[str]) -> None:
    one_line(skylease.run(*words), code, *says)


def test_a_setting_that_does_not_exist_names_the_nearest(skylease: Any, tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("[sandbox]\nteir = 'process'\n")
    one_line(skylease.run("--config", str(file), "config", "show"), 2, "sandbox.tier")
    one_line(skylease.run("config", "show", SKYLEASE_GAME__TURN_TIMOUT_S="1"), 2, "TURN_TIMEOUT_S")


def test_a_truncated_trace_says_how_much_of_it_is_whole(skylease: Any, tmp_path: Path) -> None:
    torn = tmp_path / "torn.fht"
    torn.write_bytes(TRACE.read_bytes()[:5000])
    shutil.copy(DATA / "pds-trace.did_docs.json", tmp_path / "torn.did_docs.json")
    ledger = tmp_path / "ledger.db"
    for command in (["replay", str(torn)], ["firehose", "verify", str(torn)]):
        ran = skylease.run(*command)
        assert ran.code == 1
        assert "18 whole frames" in ran.err
    not_one = skylease.run(
        *("replay", str(DATA / "README.md"), "--did-docs", str(DATA / "pds-trace.did_docs.json"))
    )
    one_line(not_one, 1, "not a trace", "README.md")
    wrong_documents = ("--did-docs", str(torn), "--ledger", str(ledger))
    one_line(skylease.run("replay", str(TRACE), *wrong_documents), 2, "torn.fht", "not JSON")
    assert not ledger.exists()


@contextmanager
def listening(answer: bytes | None) -> Iterator[int]:
    """Somebody else on a port, who answers everything with `answer` (None: never)."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    if answer is not None:
                        client.recv(4096)
                        client.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def test_a_port_in_use(skylease: Any) -> None:
    with listening(None) as port:
        one_line(skylease.run("network", "--port", str(port)), 1, str(port), "in use")


@pytest.mark.ray
def test_a_port_in_use_stops_a_game_before_it_starts(skylease: Any) -> None:
    with listening(None) as port:
        one_line(
            skylease.run("simulate", "catan", SKYLEASE_NETWORK__PORT=str(port)),
            1,
            "network",
            str(port),
            "in use",
        )


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", id="refuses"),
        pytest.param(b"\xff\x00garbage\r\n\r\n", id="garbage"),
    ],
)
def test_a_relay_that_is_none(skylease: Any, tmp_path: Path, answer: bytes) -> None:
    with listening(answer) as port:
        words = ("firehose", "record", f"ws://127.0.0.1:{port}", str(tmp_path / "t.fht"), "--count", "1")
        one_line(skylease.run(*words), 1, str(port))


@pytest.mark.ray
def test_a_relay_that_is_none_starts_no_game(skylease: Any) -> None:
    with listening(b"\xff\x00garbage\r\n\r\n") as port:
        relay = f"ws://127.0.0.1:{port}"
        ran = skylease.run(
            *("simulate", "catan", "--json"),
            SKYLEASE_NETWORK__RELAY_URL=relay,
            SKYLEASE_RAY__START_TIMEOUT_S="30",  # within which Ray itself has to start as well
        )
        one_line(ran, 1, relay, "network.relay_url")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk(skylease: Any, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(small)], check=True)
    try:
        trace = small / "t.fht"
        ran = skylease.run("replay", str(TRACE), "--ledger", str(small / "ledger.db"))
        one_line(ran, 1, "ledger.db")
        with served(skylease) as url:
            ran = skylease.run("firehose", "record", url, str(trace), "--cursor", "0", "--count", "467")
        one_line(ran, 1, "no space left", "t.fht")
    finally:
        subprocess.run(["umount", str(small)], check=True)


@contextmanager
def served(skylease: Any) -> Iterator[str]:
    """The PDS trace as a firehose."""
    server = skylease.start("firehose", "serve", str(TRACE), "--json")
    assert server.stdout is not None
    yield __import__("json").loads(server.stdout.readline())["url"]
    server.terminate()
    server.wait(timeout=20)


def test_no_user_namespaces(skylease: Any, tmp_path: Path) -> None:
    """In a user namespace of our own no further one can be made: as where the kernel forbids them."""
    code = "import os, sys; os.unshare(os.CLONE_NEWUSER)" if hasattr(os, "unshare") else ""
    command = [sys.executable, "-c", code] if code else ["unshare", "--user", "--", "true"]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this host allows no user namespaces at all")
    done = subprocess.run(
        [
            "unshare",
            "--user",
            "--",
            str(Path(sys.executable).with_name("skylease")),
            "sandboxes",
            "run",
            "--",
            "true",
        ],
        env=skylease.env | {"SKYLEASE_DATA_DIR": "/tmp/skylease-nobody-test"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    shutil.rmtree("/tmp/skylease-nobody-test", ignore_errors=True)
    assert done.returncode == 1
    assert "user namespaces" in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
