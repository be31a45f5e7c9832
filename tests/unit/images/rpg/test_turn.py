"""The turn script and the scripted player: one JSON line or a reason, the same for the same state."""

import ast
import copy
import json
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from games import TurnRequest
from games.rpg import Rpg


class StubModel:
    """A chat completions endpoint on the loopback that says what it is told to say."""

    def __init__(self) -> None:
        self.says: Any = ""
        self.heard: list[dict[str, Any]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                stub.heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                raw = json.dumps({"choices": [{"message": {"content": stub.says}}]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.env = {
            "MODEL_URL": f"http://127.0.0.1:{self.server.server_port}/v1/chat/completions",
            "MODEL_NAME": "stub-1",
        }


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
    assert (result.returncode, result.stdout) == (1, "")
    assert word in result.stderr.splitlines()[-1]


# -- the script ---------------------------------------------------------------------------------------------


def test_a_state_gives_one_json_line(take_turn: Any, first: TurnRequest) -> None:
    result = take_turn(first.state)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("\n") == 1
    assert json.loads(result.stdout) in (first.legal or [])


def test_a_whole_turn_record_will_do_as_well(take_turn: Any, first: TurnRequest) -> None:
    wrapped = {"environment": "rpg-7", "turn": 1, "phase": "town", "state": first.state}
    assert take_turn(wrapped).stdout == take_turn(first.state).stdout


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"state": 3}', '{"legal": []}', '{"legal": [{}, {}]}', "[" * 100_000],
)
def test_a_bad_state_is_a_reason_on_stderr(take_turn: Any, text: str) -> None:
    assert_refused(take_turn(text), "no action")


def test_a_bad_player_seed_is_a_reason_on_stderr(take_turn: Any, first: TurnRequest) -> None:
    assert_refused(take_turn(first.state, PLAYER_SEED="seven"), "seven")


def test_a_notice_asks_for_nothing(take_turn: Any, tmp_path: Path) -> None:
    game = Rpg.new(1, 0, {})
    game.quest.harm(0, 999, "a test")
    result = take_turn({"environment": "rpg-7", "turn": 3, "state": game.farewell(0)})
    assert (result.returncode, result.stderr, result.stdout) == (0, "", '{"type":"noted"}\n')
    sheet = json.loads((tmp_path / "data" / "character.json").read_text())
    assert (sheet["status"], sheet["character"]["items"]) == ("dead", {})


def test_no_trouble_with_files_costs_a_turn(take_turn: Any, first: TurnRequest, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where a folder should be")
    result = take_turn(first.state)
    assert result.returncode == 0
    assert json.loads(result.stdout) in (first.legal or [])
    assert result.stderr.startswith("journal: ")


# -- the scripted player ------------------------------------------------------------------------------------


@pytest.mark.parametrize("players", [1, 3, 6])
def test_every_action_is_accepted(player: Any, players: int) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(4):
        game = Rpg.new(players, seed, {"rooms": 4 if seed % 2 else 12})
        while (request := game.request()) is not None:
            action = player.choose(json.loads(json.dumps(request.state)), seed)
            kinds[action["type"]] += 1
            game.apply(request.player, action)
        assert game.outcome().reason != "abandoned"  # type: ignore[union-attr]
    assert {"buy", "depart", "attack", "advance", "rest"} <= kinds.keys()


def test_the_same_state_and_seed_give_the_same_action_and_leave_the_state_alone(player: Any) -> None:
    game = Rpg.new(4, 3, {})
    while (request := game.request()) is not None:
        before = copy.deepcopy(request.state)
        action = player.choose(request.state, 5)
        assert player.choose(request.state, 5) == action
        assert request.state == before
        game.apply(request.player, action)


def test_every_class_plays_its_part(player: Any) -> None:
    used: dict[str, set[str]] = {}
    for seed in range(16):
        game = Rpg.new(4, seed, {})
        while (request := game.request()) is not None:
            action = player.choose(request.state, seed)
            klass = request.state["character"]["class"]
            used.setdefault(klass, set()).add(action.get("spell", action["type"]))
            game.apply(request.player, action)
    assert {"taunt", "attack"} <= used["warrior"]
    assert {"hide", "disarm", "sneak"} <= used["scout"]
    assert {"fireball", "ice_lance", "lightning", "storm"} <= used["mage"]
    assert {"heal", "mend", "smite"} <= used["healer"]


# -- the model ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["{}", "```json\n{}\n```", "Onwards.\n{}\nGood luck!"])
def test_a_model_decides_and_knows_what_it_noted(
    take_turn: Any, first: TurnRequest, model: StubModel, words: str
) -> None:
    action = (first.legal or [])[-1] | {"messages": [{"to": "@party", "text": "follow me"}]}
    model.says = words.replace("{}", json.dumps(action))
    result = take_turn(first.state, **model.env)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout) == action
    messages = model.heard[0]["messages"]
    assert "# Playing the dungeon crawl" in messages[0]["content"]
    told = json.loads(messages[1]["content"])
    assert told["state"] == first.state
    assert told["memories"][0]["kind"] == "joined"


@pytest.mark.parametrize(
    ("says", "word"),
    [
        ("I wait.", "no JSON object"),
        ('{"type": "storm"}', "not legal"),
        ('{"type": ', "no JSON object"),
        (None, "no text"),
    ],
)
def test_what_a_model_may_not_say(
    take_turn: Any, first: TurnRequest, model: StubModel, says: Any, word: str
) -> None:
    model.says = says
    assert_refused(take_turn(first.state, **model.env), word)


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
    assert described["name"] == "rpg"
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
