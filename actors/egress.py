"""From the settings to what a host gives its sandboxes: the hosts they reach, the secrets behind them, the
model's address. Secrets are only named here; the host's process reads them when they are needed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from actors.errors import SettingsInvalid
from actors.settings import Settings
from sandboxes import AllowedHost, Credential, Egress, InvalidSpec
from sandboxes.egress.dial import Origin
from sandboxes.egress.secrets import Secret

TLS_PORT: Final = 443
MODEL_HOST: Final = "model.skylease.internal"  # inside; where it is, and who runs it, is the node's business
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_HEADER: Final = re.compile(r"([A-Za-z0-9-]+): *([^{}]*)\{([a-z0-9_-]+)\}")  # "Authorization: Bearer {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """What sandboxes of a node may reach: `hosts` by environment type, `everywhere` for all of them;
    `origins` is what is behind names of ours, `env` what turn scripts are told.
    """

    hosts: Mapping[str, tuple[AllowedHost, ...]] = field(default_factory=dict)
    everywhere: tuple[AllowedHost, ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    def egress(self, environment_type: str) -> Egress | None:
        """The policy of a sandbox for this type of environment; None: it reaches nothing."""
        hosts = (*self.everywhere, *self.hosts.get(environment_type, ()))
        return Egress(hosts=hosts) if hosts else None


def way_out(settings: Settings) -> WayOut:
    """What the sections [egress] and [model] say.

    Raises:
        SettingsInvalid: they cannot be met; never shows what might be a secret.
    """
    credentials = {host: _credential(host, line) for host, line in settings.egress.headers.items()}
    try:
        hosts = {
            environment_type: tuple(_allowed(entry, credentials) for entry in entries)
            for environment_type, entries in settings.egress.hosts.items()
        }
    except InvalidSpec as error:
        raise SettingsInvalid("the setting egress.hosts", f"cannot be met ({error.reason})", _ENTRY) from None
    everywhere, origins, env = _model(settings, credentials)
    entries = (*everywhere, *(entry for found in hosts.values() for entry in found))
    known = {entry.host for entry in entries} | {origin.host for origin in origins.values()}
    for host in credentials:
        if host not in known:
            raise SettingsInvalid(
                f"the setting egress.headers.{host}", "has no use", "allow the host as well"
            )
    secrets = _secrets(settings, credentials, entries)
    return WayOut(hosts=hosts, everywhere=everywhere, origins=origins, secrets=secrets, env=env)


_ENTRY: Final = 'write {TYPE = ["api.example.com", "*.example.org:8443"]}'


def _allowed(entry: str, credentials: Mapping[str, Credential]) -> AllowedHost:
    host, colon, port = entry.partition(":")
    if colon and not (port.isascii() and port.isdigit()):
        raise InvalidSpec("egress.hosts", f"{entry!r} has no port behind its colon")
    ports = (int(port),) if colon else (TLS_PORT,)
    return AllowedHost(host=host, ports=ports, credential=credentials.get(host))


def _credential(host: str, line: str) -> Credential:
    match = _HEADER.fullmatch(line)
    name = f"the setting egress.headers.{host}"
    if match is None:
        raise SettingsInvalid(name, "names no secret", 'write "Authorization: Bearer {NAME}"')
    try:
        return Credential(header=match[1].lower(), prefix=match[2], secret=match[3])
    except InvalidSpec as error:
        raise SettingsInvalid(name, "cannot be sent", error.reason) from None


def _secrets(
    settings: Settings, credentials: Mapping[str, Credential], entries: tuple[AllowedHost, ...]
) -> dict[str, Secret]:
    """Each secret, bound to the hosts that get it."""
    for host, credential in credentials.items():
        if credential.secret not in settings.egress.secrets:
            line = f"names the secret {credential.secret}"
            raise SettingsInvalid(
                f"the setting egress.headers.{host}", line, "say in egress.secrets where it is"
            )
    return {
        name: Secret(
            source=source,
            hosts=frozenset(
                entry.host for entry in entries if entry.credential and entry.credential.secret == name
            ),
        )
        for name, source in settings.egress.secrets.items()
    }


def _model(
    settings: Settings, credentials: Mapping[str, Credential]
) -> tuple[tuple[AllowedHost, ...], dict[str, Origin], dict[str, str]]:
    """The model as sandboxes know it, what is behind that name, and what turn scripts are told.

    It may be anywhere, also on the node itself: the operator named it.
    """
    url, name = settings.model.url, settings.model.name
    if not url:
        return (), {}, {}
    try:
        parts = urlsplit(url)
        encrypt = parts.scheme == "https"
        origin = Origin(
            host=parts.hostname or "", port=parts.port or (443 if encrypt else 80), encrypt=encrypt
        )
    except ValueError:
        parts, origin = None, None
    if (
        parts is None
        or origin is None
        or not origin.host
        or parts.scheme not in ("http", "https")
        or not name
    ):
        remedy = "write https://host/path, and the model's name in model.name"
        raise SettingsInvalid("the setting model.url", f"is {url!r}", remedy)
    credential = credentials.get(origin.host)
    if credential is not None and not origin.encrypt and origin.host not in LOOPBACK:
        raise SettingsInvalid("the setting model.url", "would send a key unencrypted", "write https://…")
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    entry = AllowedHost(host=MODEL_HOST, credential=credential)
    return (entry,), {MODEL_HOST: origin}, {"MODEL_URL": f"http://{MODEL_HOST}{path}", "MODEL_NAME": name}
