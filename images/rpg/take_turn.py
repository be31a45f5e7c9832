"""One turn of a dungeon crawl in a sandbox: state as JSON on stdin, one action as one JSON line on stdout.

The scripted player decides, unless MODEL_URL names a chat completions endpoint: then the model does. On
failure the reason goes to stderr, the exit code is 1 and stdout stays empty. PLAYER_SEED (default 0) gives
the scripted hero its temper; the same state and seed give the same action, whatever lies under DATA_DIR.

The agent's own files under DATA_DIR (default /data; see data.md) are brought up to date with every state.
Trouble with them is told on stderr and never costs a turn. A state with a `notice` asks for nothing: it is
noted, and answered {"type":"noted"}; {"notice":"death","cause":…} or {"notice":"end","reason":…} will do.
"""

import json
import os
import sys

# Run by a fork server, __main__ may lack a file and sys.path this folder.
sys.path.insert(0, os.path.dirname(os.path.abspath(globals().get("__file__", "/image/take_turn.py"))))

MAX_STATE_BYTES = 1_000_000
NOTICES = ("death", "end")
DATA_DIR = "/data"


def read_request(text):
    """The state out of stdin, bare or in the turn record that carries it; and the record's environment."""
    request = json.loads(text)
    if not isinstance(request, dict):
        raise ValueError("the state is not a JSON object")
    state = request.get("state", request)
    if isinstance(state, dict) and "legal" in request:
        state = {**state, "legal": request["legal"]}
    if not isinstance(state, dict) or not (state.get("legal") or state.get("notice") in NOTICES):
        raise ValueError("the state has no legal actions")
    return state, str(request.get("environment") or os.environ.get("GAME_ID") or "adventure")


def decide(state, memories):
    """The action for this state, by the model if one is configured, else by the script."""
    if state.get("notice"):
        return {"type": "noted"}
    if os.environ.get("MODEL_URL"):
        from rpg_model import ask_model  # urllib is slow to import and rarely wanted

        return ask_model(state, memories, os.environ)
    from rpg_player import choose

    return choose(state, int(os.environ.get("PLAYER_SEED") or 0))


def keep_journal(state, environment):
    """Bring the agent's files up to date. Returns: what it remembers; trouble goes to stderr."""
    from rpg_journal import Journal

    journal = Journal(os.environ.get("DATA_DIR") or DATA_DIR, environment)
    try:
        journal.update(state)
    except Exception as error:  # noqa: BLE001 — the edge: no file of ours may cost a turn
        journal.troubles.append(f"{type(error).__name__}: {error}")
    for trouble in journal.troubles:
        print(f"journal: {trouble}"[:500], file=sys.stderr)
    return journal.memories


def main():
    """Read, note, decide, print. Returns: the exit code."""
    try:
        state, environment = read_request(sys.stdin.read(MAX_STATE_BYTES))
        action = decide(state, keep_journal(state, environment))
    except Exception as error:  # noqa: BLE001 — the edge: the host needs one line and a code
        print(f"no action: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    sys.stdout.write(json.dumps(action, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
