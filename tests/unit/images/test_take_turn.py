"""The turn script: one JSON line or a reason, by the script or by a stub of a model."""

import ast
import json
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from games import TurnRequest


class StubModel:
    """A chat completions endpoint on the loopback that says what it is told to say."""

    def __init__(self) -> None:
        self.says: Any = ""
        self.status = 200
        self.heard: list[tuple[dict[str, str], dict[str, Any]]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stub.heard.append((dict(self.headers), body))
                reply = {"choices": [{"message": {"role": "assistant", "content": stub.says}}]}
                raw = stub.says if isinstance(stub.says, bytes) else json.dumps(reply).encode()
                self.send_response(stub.status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/chat/completions"


@pytest.fixture
def model() -> Iterator[StubModel]:
    stub = StubModel()
    thread = threading.Thread(target=stub.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield stub
    stub.server.shutdown()
    thread.join()
    stub.server.server_close()


def assert_refused(result: Any, word: str) -> None:
    assert result.returncode == 1
    assert result.stdout == ""
    assert word in result.stderr
    assert len(result.stderr.splitlines()) == 1


# -- the script ---------------------------------------------------------------------------------------------


def test_a_state_gives_one_json_line(take_turn: Any, first: TurnRequest) -> None:
    result = take_turn(first.state)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("\n") == 1
    assert json.loads(result.stdout) in (first.legal or [])


def test_a_whole_turn_record_will_do_as_well(take_turn: Any, first: TurnRequest) -> None:
    bare = {key: value for key, value in first.state.items() if key != "legal"}
    wrapped = {"environment": "catan-7", "turn": 1, "state": bare, "legal": first.legal}
    assert take_turn(wrapped).stdout == take_turn(first.state).stdout


def test_the_script_is_deterministic_and_its_seed_matters_only_to_ties(
    take_turn: Any, first: TurnRequest
) -> None:
    assert take_turn(first.state).stdout == take_turn(first.state, PLAYER_SEED="0").stdout
    for seed in ("1", "2"):
        assert json.loads(take_turn(first.state, PLAYER_SEED=seed).stdout) in (first.legal or [])


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"state": 3}', '{"legal": []}', '{"legal": [{}, {}]}', "[" * 100_000],
)
def test_a_bad_state_is_a_reason_on_stderr(take_turn: Any, text: str) -> None:
    assert_refused(take_turn(text), "no action")


def test_a_bad_player_seed_is_a_reason_on_stderr(take_turn: Any, first: TurnRequest) -> None:
    assert_refused(take_turn(first.state, PLAYER_SEED="seven"), "seven")


# -- the model ----------------------------------------------------------------------------------------------

SPOKEN = [
    pytest.param("{}", id="raw"),
    pytest.param("```json\n{}\n```", id="in-a-fence"),
    pytest.param("I settle by the wheat.\n{}\nGood luck!", id="among-words"),
]


@pytest.mark.parametrize("words", SPOKEN)
def test_a_model_decides(
    take_turn: Any, first: TurnRequest, model: StubModel, words: str, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret\n")
    assert first.legal is not None
    model.says = words.replace("{}", json.dumps(first.legal[11]))
    env = {"MODEL_URL": model.url, "MODEL_NAME": "stub-1", "MODEL_KEY_FILE": str(key)}
    result = take_turn(first.state, **env)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout) == first.legal[11]
    headers, body = model.heard[0]
    assert headers["Authorization"] == "Bearer s3cret"
    assert body["model"] == "stub-1"
    assert "# Playing Catan" in body["messages"][0]["content"]
    assert json.loads(body["messages"][1]["content"]) == first.state


def test_a_model_may_fill_in_a_form(take_turn: Any, first: TurnRequest, model: StubModel) -> None:
    action = {"type": "discard", "cards": {"ore": 4}}
    model.says = json.dumps(action)
    state = first.state | {"legal": [{"type": "discard", "open": True, "count": 4}]}
    result = take_turn(state, MODEL_URL=model.url, MODEL_NAME="stub-1")
    assert json.loads(result.stdout) == action


@pytest.mark.parametrize(
    ("says", "word"),
    [
        pytest.param("I pass.", "no JSON object", id="words-only"),
        pytest.param('{"type": "end_turn"}', "not legal", id="not-legal"),
        pytest.param('{"type": "build_settlement", "node": 1} or {"a": 1}', "no single", id="two-objects"),
        pytest.param('{"type": ', "no JSON object", id="cut-off"),
        pytest.param(None, "no text", id="no-content"),
        pytest.param(b"<html>", "not JSON", id="no-json-at-all"),
        pytest.param(b"{}", "no message", id="no-message"),
        pytest.param(b" " * 300_000, "larger than", id="far-too-long"),
    ],
)
def test_what_a_model_may_not_say(
    take_turn: Any, first: TurnRequest, model: StubModel, says: Any, word: str
) -> None:
    model.says = says
    assert_refused(take_turn(first.state, MODEL_URL=model.url, MODEL_NAME="stub-1"), word)


def test_an_endpoint_that_fails_is_a_reason(take_turn: Any, first: TurnRequest, model: StubModel) -> None:
    model.status = 500
    assert_refused(take_turn(first.state, MODEL_URL=model.url, MODEL_NAME="m"), "did not answer")


@pytest.mark.parametrize(
    ("env", "word"),
    [
        ({"MODEL_URL": "http://127.0.0.1:1/x"}, "MODEL_NAME"),
        ({"MODEL_URL": "http://127.0.0.1:1/x", "MODEL_NAME": "m"}, "did not answer"),
        ({"MODEL_URL": "file:///etc/passwd", "MODEL_NAME": "m"}, "http"),
        ({"MODEL_URL": "http://127.0.0.1:1/x", "MODEL_NAME": "m", "MODEL_KEY_FILE": "/none"}, "key file"),
    ],
)
def test_a_model_that_is_half_configured_is_a_reason(
    take_turn: Any, first: TurnRequest, env: dict[str, str], word: str
) -> None:
    assert_refused(take_turn(first.state, **env), word)


# -- the image ----------------------------------------------------------------------------------------------


def test_the_image_names_what_is_there(image: Path) -> None:
    described = tomllib.loads((image / "image.toml").read_text())
    assert described["name"] == "catan"
    assert (image / described["turn_script"]).is_file()
    for module in described["preload"]:
        assert module in sys.stdlib_module_names or (image / f"{module}.py").is_file()


def test_the_scripts_need_the_standard_library_of_3_9_and_each_other_only(image: Path) -> None:
    own = {path.stem for path in image.glob("*.py")}
    for path in image.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 9))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= own | set(sys.stdlib_module_names)
