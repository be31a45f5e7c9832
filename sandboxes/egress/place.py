"""Where the parts of egress are: what a tier puts on disk, shows inside and tells the runner.

DIRECTORY/egress.json        the policy, so that whoever runs the node next can serve it again
DIRECTORY/egress/            appears inside, read-only, as /run/skylease/egress: nobody inside can replace it
DIRECTORY/egress/proxy.sock  the node's proxy listens here; it is made anew whenever the proxy starts

A tier calls `prepare` when it creates a sandbox, mounts `source` at `target`, and merges `boot` into the
runner's boot object and `env` into the environment (beneath the spec's own).
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sandboxes.egress.policy import Egress
from sandboxes.errors import InvalidSpec

EGRESS_DIRECTORY: Final = "egress"
PROXY_SOCKET: Final = "proxy.sock"
POLICY_FILE: Final = "egress.json"
INSIDE_DIRECTORY: Final = "/run/skylease/egress"
EGRESS_PORT: Final = 3128  # inside, on 127.0.0.1; Squid's, as everybody expects
NO_PROXY: Final = "localhost,127.0.0.1,::1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What a tier adds to a sandbox that may reach something."""

    source: Path  # directory on the node
    target: str = INSIDE_DIRECTORY
    boot: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


def prepare(directory: Path, egress: Egress | None) -> Inside | None:
    """Put the policy and the socket's directory into a sandbox's directory; None: it has no egress."""
    inside = seen_inside(directory, egress)
    if egress is None or inside is None:
        return None
    source = inside.source
    source.mkdir(mode=0o755)
    os.chmod(source, 0o755)  # whatever the umask: the sandbox's uid must get through
    with open(os.open(directory / POLICY_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(egress.to_json(), file)
    return inside


def seen_inside(directory: Path, egress: Egress | None, target: str = INSIDE_DIRECTORY) -> Inside | None:
    """Return what `prepare` does, of a directory that is prepared; `target`: where it is to appear."""
    if egress is None:
        return None
    address = f"http://127.0.0.1:{EGRESS_PORT}"
    env = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), address)
    env.update(NO_PROXY=NO_PROXY, no_proxy=NO_PROXY)
    boot = {"egress": {"socket": f"{target}/{PROXY_SOCKET}", "port": EGRESS_PORT}}
    return Inside(source=directory / EGRESS_DIRECTORY, target=target, boot=boot, env=env)


def load_egress(directory: Path) -> Egress | None:
    """Return the policy of the sandbox in a directory; None if it has none.

    Raises:
        InvalidSpec: its file is damaged.
    """
    try:
        return Egress.from_json(json.loads((directory / POLICY_FILE).read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidSpec("egress", f"{directory / POLICY_FILE} is damaged ({error})") from None
