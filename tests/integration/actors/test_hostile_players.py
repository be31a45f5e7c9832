"""Players whose turn scripts print anything: the game goes on, and nothing of it reaches a screen."""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from actors import records
from actors.resources import shipped
from actors.view import happening
from firehose import XrpcClient
from leases import LeaseStatus

RunningLine = Callable[..., AbstractAsyncContextManager[Any]]  # of a `Line`; conftest.py

# Every other turn of everybody is one of these; the others are the scripted player's.
HOSTILE = r"""
import json, os, runpy, sys
ESCAPES = "\x1b[2J\x1b]0;owned\x07 <script>alert(1)</script> [red]x[/red] `|*_ \x00\u202e # [a](javascript:1)"
LINK = {"$link": "bafkreibme22gw2h7y2h7tg2fhqotaqjucnbc24deqo72b6mkl2egezxhvy"}
BLOB = {"$type": "blob", "mimeType": "a/b", "size": 1, "ref": LINK}
def said(text):
    return json.dumps({"type": "wait", "messages": [{"to": "@party", "text": text}]})
KINDS = [
    lambda: said(ESCAPES),
    lambda: json.dumps({"type": "attack", "target": ESCAPES}),
    lambda: said("x" * 1_000_000),
    lambda: '{"type":' * 5_000 + "1" + "}" * 5_000,
    lambda: json.dumps({"type": "attack", "target": 10**40}),
    lambda: '{"type": "attack", "target": NaN}',
    lambda: '{"type": "attack", "target": 1.5}',
    lambda: '{"type": "wait", "messages": [{"to": "@party", "text": "\\ud800"}]}',
    lambda: json.dumps({"type": "wait", "where": {"$link": "not a cid"}}),
    lambda: json.dumps({"type": "wait", "blob": {"$bytes": "?"}}),
    lambda: json.dumps({"type": "wait", "blob": BLOB}),
    lambda: sys.exit(ESCAPES),
    lambda: json.dumps({"type": "wait", ESCAPES: ESCAPES}),
    lambda: json.dumps({"type": "x" * 300_000}),
    lambda: said(""),
    lambda: "{}",
]
turn = int(os.environ["TURN_NUMBER"])
if turn % 2:
    sys.path.insert(0, "/image")
    runpy.run_path("/image/honest.py", run_name="__main__")
else:
    with open("/data/character.json", "w") as file:  # its own file, as broken as can be
        file.write("\x1b]0;owned\x07" * turn)
    print(KINDS[(turn // 2 - 1) % len(KINDS)]())
"""


async def test_whatever_players_print_the_game_goes_on(running_line: RunningLine, tmp_path: Path) -> None:
    shutil.copytree(shipped("images") / "rpg", tmp_path / "images/rpg")
    (tmp_path / "images/rpg/take_turn.py").rename(tmp_path / "images/rpg/honest.py")
    (tmp_path / "images/rpg/take_turn.py").write_text(HOSTILE)
    async with running_line(tmp_path / "line", images=tmp_path / "images") as line:
        master, *players = [await line.account(name) for name in ("gamemaster", "alice", "bob", "carol")]
        agents = [line.agent(player, master, environment_types=("rpg",)) for player in players]
        running = line.start_agents(agents)
        game = line.master(
            master,
            players,
            environment_id="rpg-1",
            environment_type="rpg",
            settings={"turn_cap": 40},
            action_timeout_s=20.0,
        )
        await game.run()
        status = await game.status()
        await line.until({LeaseStatus.DESTROYED}, 3)
        assert not any(task.done() for task in running)
        reasons = await line.reasons(master)
        for task in running:
            task.cancel()
        assert not [reason for reason in reasons if "no action within" in reason]  # nobody crashed or hung
        assert len(reasons) >= 15
        assert any("it has 1000" in reason for reason in reasons), reasons  # bytes
        assert any("putRecord" in reason for reason in reasons), reasons  # refused by the PDS itself
        assert all(0 < len(reason) <= 500 for reason in reasons)
        assert status["outcome"]["turns"] - status["skipped"] >= 15
        told = (await game.sequel(["alice", "bob", "carol"]))["chronicle"]
        assert "to the party: “" in told
        for shown in (told, *(happening(event, ["a", "b", "c"]) for event in status["recent"])):
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)
        assert "<script>" not in told
        ElementTree.fromstring((await game.board(["alice", "bob", "carol"]))["svg"])
        async with XrpcClient(line.endpoints.pds_url) as xrpc:
            turns, _ = await xrpc.list_records(master.did, records.GAME_TURN, limit=100)
        assert max(len(json.dumps(turn["value"])) for turn in turns) < 64 * 1024
        kept = list((tmp_path / "line").glob("data/*/character.json.corrupt-*"))
        assert kept
        assert all("owned" in file.read_text() for file in kept)
