"""Egress: the hosts that a sandbox may reach, through a proxy on the node. With no policy it reaches none.

Light: the policy and where things are. What the node runs is in `sandboxes.egress.gateway`.
"""

from sandboxes.egress.place import (
    EGRESS_DIRECTORY,
    EGRESS_PORT,
    INSIDE_DIRECTORY,
    Inside,
    load_egress,
    prepare,
    seen_inside,
)
from sandboxes.egress.policy import AllowedHost, Credential, Egress, parse_host

__all__ = [
    "EGRESS_DIRECTORY",
    "EGRESS_PORT",
    "INSIDE_DIRECTORY",
    "AllowedHost",
    "Credential",
    "Egress",
    "Inside",
    "load_egress",
    "parse_host",
    "prepare",
    "seen_inside",
]
