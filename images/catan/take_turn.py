"""One turn of Catan inside a sandbox: state as JSON on stdin, one action as one JSON line on stdout.

The scripted player decides, unless MODEL_URL names a chat completions endpoint: then the model does. On
failure the reason goes to stderr, the exit code is 1 and stdout stays empty. PLAYER_SEED (default 0) breaks
the scripted player's ties; the same state and seed give the same action.
"""

import json
import os
import sys

# Run by a fork server, __main__ may lack a file and sys.path this folder.
sys.path.insert(0, os.path.dirname(os.path.abspath(globals().get("__file__", "/image/take_turn.py"))))

MAX_STATE_BYTES = 1_000_000


def read_state(text):
    """The state out of stdin: bare, or the turn record that carries it."""
    request = json.loads(text)
    if not isinstance(request, dict):
        raise ValueError("the state is not a JSON object")
    state = request.get("state", request)
    if isinstance(state, dict) and "legal" in request:
        state = state | {"legal": request["legal"]}
    if not isinstance(state, dict) or not state.get("legal"):
        raise ValueError("the state has no legal actions")
    return state


def decide(state):
    """The action for this state, by the model if one is configured, else by the script."""
    if os.environ.get("MODEL_URL"):
        from catan_model import ask_model  # urllib is slow to import and rarely wanted

        return ask_model(state, os.environ)
    from catan_player import choose

    return choose(state, int(os.environ.get("PLAYER_SEED") or 0))


def main():
    """Read, decide, print. Returns: the exit code."""
    try:
        action = decide(read_state(sys.stdin.read(MAX_STATE_BYTES)))
    except Exception as error:  # noqa: BLE001 — the edge: the host needs one line and a code
        print(f"no action: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    sys.stdout.write(json.dumps(action, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
