"""The model-driven player: asks a chat completions endpoint for one of the legal actions.

MODEL_URL is the endpoint (`…/v1/chat/completions`), MODEL_NAME the model. In a sandbox the URL says http and
goes to the proxy that HTTP_PROXY names: the node adds the key and speaks TLS, so no key is here. Outside of
one, MODEL_KEY_FILE names a file with the key: never the environment, which is easy to print.
What the model answers is a stranger's text: it must hold one JSON object, and that must be a legal action.
"""

import json
import os
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 30
MAX_ANSWER_BYTES = 200_000
MAX_KEY_BYTES = 10_000
MAX_TOKENS = 2_000
SKILL_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "skills", "catan-player.md")


class ModelError(Exception):
    """The model gave no usable action; the message says why."""


def ask_model(state, env):
    """The model's action for `state`.

    Raises: ModelError, if it is not configured, does not answer, or answers with anything but a legal action.
    """
    name = env.get("MODEL_NAME")
    if not name:
        raise ModelError("MODEL_URL is set, MODEL_NAME is not")
    with open(SKILL_FILE, encoding="utf-8") as skill:
        messages = [
            {"role": "system", "content": skill.read()},
            {"role": "user", "content": json.dumps(state, separators=(",", ":"))},
        ]
    body = {"model": name, "messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS}
    reply = _post(env["MODEL_URL"], body, _key(env.get("MODEL_KEY_FILE")))
    try:
        text = reply["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise ModelError("the endpoint's answer has no message") from None
    return check_legal(find_object(text), state["legal"])


def find_object(text):
    """The one JSON object in a model's answer: bare, in a fence, or with words around it."""
    if not isinstance(text, str):
        raise ModelError("the model's message is no text")
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        raise ModelError("the model's message holds no JSON object")
    try:
        found = json.loads(text[start : end + 1])
    except ValueError:
        raise ModelError("the model's message holds no single JSON object") from None
    return found


def check_legal(action, legal):
    """The action itself, if it is one of `legal` or has the type of an open one."""
    open_types = [entry["type"] for entry in legal if entry.get("open")]
    if action in legal and not action.get("open"):
        return action
    if action.get("type") in open_types and "open" not in action:
        return action
    raise ModelError(f"the model's action is not legal: {json.dumps(action)[:200]}")


def _key(path):
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(MAX_KEY_BYTES).strip()
    except OSError as error:
        raise ModelError(f"cannot read the key file: {error.strerror}") from None


def _post(url, body, key):
    if not url.startswith(("http://", "https://")):
        raise ModelError("MODEL_URL must be an http or https address")
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            raw = response.read(MAX_ANSWER_BYTES + 1)
    except (urllib.error.URLError, OSError) as error:
        raise ModelError(f"the endpoint did not answer: {error}") from None
    if len(raw) > MAX_ANSWER_BYTES:
        raise ModelError(f"the endpoint's answer is larger than {MAX_ANSWER_BYTES} bytes")
    try:
        return json.loads(raw)
    except ValueError:
        raise ModelError("the endpoint's answer is not JSON") from None
