"""Every setting with its default, unit and meaning.

Order: defaults < file (`--config`, `SKYLEASE_CONFIG`) < environment (`SKYLEASE_SANDBOX__TIER=…`) < flags.
Defaults live here, so that an installed wheel needs no file; config/skylease.toml is rendered from them
and a test holds the two equal. Secrets never come from here.
"""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from actors.errors import SettingsInvalid

ENV_PREFIX: Final = "SKYLEASE_"
CONFIG_VARIABLE: Final = "SKYLEASE_CONFIG"
# Read by the command line, the images and the tests themselves; not settings.
OTHER_VARIABLES: Final = frozenset(
    {CONFIG_VARIABLE, "SKYLEASE_REQUIRE_SHARED", "SKYLEASE_NO_SKIPS", "SKYLEASE_BENCH_IMAGE"}
)


def _default_data_dir() -> str:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return f"{state}/skylease"


class Section(BaseModel):
    """A table of the settings file; a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NetworkSettings(Section):
    """Where records are posted: the embedded network, or a PDS and directory of your own."""

    pds_url: str = Field(
        "", description="PDS to use, such as https://pds.example; empty: the embedded network"
    )
    plc_url: str = Field("", description="did:plc directory of that PDS; empty: the embedded network's own")
    relay_url: str = Field("", description="subscribeRepos host, wss://…; empty: the PDS itself")
    host: str = Field("127.0.0.1", description="address that the embedded network listens on (one node)")
    port: int = Field(0, ge=0, le=65535, description="port of the embedded network; 0: any free one")


class TapSettings(Section):
    """The cluster's one subscription to the firehose, and its filtered re-broadcast."""

    port: int = Field(0, ge=0, le=65535, description="port of the tap; 0: any free one")
    record: str = Field("", description="trace file (.fht) that gets every raw frame; empty: none")


class LeaseSettings(Section):
    """How long an agent holds a sandbox."""

    ttl_s: int = Field(86_400, gt=0, description="seconds until a lease that nobody renews ends")
    max_ttl_s: int = Field(
        0, ge=0, description="seconds after which a lease ends even if renewed; 0: no limit"
    )
    sleep_after_s: int = Field(300, gt=0, description="seconds of idleness recorded in the lease")


class SandboxSettings(Section):
    """What a sandbox may use, and how it is isolated."""

    tier: Literal["process", "unsafe"] = Field(
        "process", description="isolation: process (bubblewrap), or unsafe (none at all)"
    )
    memory_mib: int = Field(
        512, gt=15, description="memory limit of a sandbox in MiB, where cgroups are writable"
    )
    pids: int = Field(128, gt=7, description="processes and threads a sandbox may have")
    cpu: float = Field(1.0, gt=0, description="processors a sandbox may use, where cgroups are writable")
    slots: int = Field(64, gt=0, description="sandboxes that one node offers")
    idle_deadline_s: int = Field(
        900, gt=0, description="seconds after which a sandbox that nobody talks to ends itself"
    )


class GameSettings(Section):
    """Limits of a game."""

    turn_timeout_s: float = Field(60.0, gt=0, description="seconds a turn script may run before it is a skip")
    action_timeout_s: float = Field(
        120.0, gt=0, description="seconds the environment waits for an action before it skips"
    )
    join_timeout_s: float = Field(
        120.0, gt=0, description="seconds the environment waits for its players to join"
    )
    catan_turn_cap: int = Field(
        1000, gt=0, description="decisions after which a Catan game ends, won by a sole leader"
    )


class BudgetSettings(Section):
    """What awake time costs, and how much of it an agent may use."""

    monthly_hours: float = Field(0.0, ge=0, description="awake hours per agent and UTC month; 0: unlimited")
    process_usd_per_hour: float = Field(0.027, ge=0, description="price of an awake hour on the process tier")


class RaySettings(Section):
    """The Ray cluster."""

    address: str = Field(
        "", description="cluster to attach to; empty: RAY_ADDRESS, a local one, else embedded"
    )
    start_timeout_s: float = Field(60.0, gt=0, description="seconds to wait for the cluster and each actor")


class Settings(Section):
    """All of them. Built by `load_settings`."""

    data_dir: str = Field(
        default_factory=_default_data_dir,
        description="ledger, network, tap window and sandboxes of this node",
    )
    network: NetworkSettings = NetworkSettings()
    tap: TapSettings = TapSettings()
    lease: LeaseSettings = LeaseSettings()
    sandbox: SandboxSettings = SandboxSettings()
    game: GameSettings = GameSettings()
    budget: BudgetSettings = BudgetSettings()
    ray: RaySettings = RaySettings()

    @property
    def data_path(self) -> Path:
        """`data_dir` with ~ resolved."""
        return Path(self.data_dir).expanduser().absolute()


def load_settings(config: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Settings from file, environment and flags.

    Args:
        config: settings file; None: the one that SKYLEASE_CONFIG names, if any.
        flags: dotted names to values, such as {"sandbox.tier": "unsafe"}; None values are left out.

    Raises:
        SettingsInvalid: a file that cannot be read, a key that does not exist, a value out of range.
    """
    path = config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    from_file = _read_toml(path) if path else {}
    merged = from_file
    for name, value in [*_from_environment(), *(flags or {}).items()]:
        if value is not None:
            merged = _merge(merged, _nested(name, value))
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise SettingsInvalid(*_explain(error, path)) from None


def names() -> list[str]:
    """Every setting as a dotted name, in the order of the file."""
    return [name for name, _, _ in _walk(Settings())]


def render_toml(settings: Settings, *, data_dir_default: bool = False) -> str:
    """The settings as a commented TOML file: what `config show` prints and config/skylease.toml holds."""
    lines = [
        "# Every setting of skylease with its default. Order: these < this file (--config, SKYLEASE_CONFIG)",
        "# < environment (SKYLEASE_SANDBOX__TIER=…) < flags. Unknown keys are errors.",
    ]
    table = ""
    for name, value, description in _walk(settings):
        section, _, key = name.rpartition(".")
        if section != table:
            lines += ["", f"[{section}]"]
            table = section
        shown = "~/.local/state/skylease" if name == "data_dir" and data_dir_default else value
        lines += [f"# {description}", f"{key} = {_toml(shown)}"]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _walk(settings: Settings) -> Iterator[tuple[str, object, str]]:
    for key, field in type(settings).model_fields.items():
        value = getattr(settings, key)
        if isinstance(value, Section):
            for inner, inner_field in type(value).model_fields.items():
                yield f"{key}.{inner}", getattr(value, inner), inner_field.description or ""
        else:
            yield key, value, field.description or ""


def _read_toml(path: Path) -> dict[str, Any]:
    file = f"the settings file {path}"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsInvalid(file, f"cannot be read ({error.strerror})", "check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsInvalid(file, f"is not TOML ({error})", "correct that line") from None


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _nested(name: str, value: object) -> dict[str, Any]:
    for part in reversed(name.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def _from_environment() -> list[tuple[str, str]]:
    known = {ENV_PREFIX + name.upper().replace(".", "__"): name for name in names()}
    given = [variable for variable in os.environ if variable.startswith(ENV_PREFIX)]
    for variable in given:
        if variable not in known and variable not in OTHER_VARIABLES:
            nearest = _nearest(variable, set(known))
            raise SettingsInvalid(f"the variable {variable}", "is not a setting", nearest)
    return [(known[variable], os.environ[variable]) for variable in given if variable in known]


def _explain(error: ValidationError, path: Path | None) -> tuple[str, str, str]:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        where = f" in {path}" if path else ""
        return f"{name}{where}", "is not a setting", _nearest(name, {*names(), *Settings.model_fields})
    return f"the setting {name}", f"is {first['input']!r}", first["msg"]


def _nearest(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.4)
    return f"did you mean {close[0]}?" if close else "see `skylease config show` for all of them"
