"""Every setting with its default, unit and meaning.

Order: defaults < file (`--config`, `SKYLEASE_CONFIG`) < environment (`SKYLEASE_SANDBOX__TIER=…`) < flags.
Defaults live here, so that an installed wheel needs no file; config/skylease.toml is rendered from them
and a test holds the two equal. Secrets never come from here.
"""

import difflib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from actors.errors import SettingsInvalid
from sandboxes.errors import InvalidSpec
from sandboxes.snapshot_policy import SnapshotPolicy, check_url
from sandboxes.tiers.registry import AUTO, TIERS

if TYPE_CHECKING:
    from sandboxes.furnishing import WorkspaceSpec

ENV_PREFIX: Final = "SKYLEASE_"
CONFIG_VARIABLE: Final = "SKYLEASE_CONFIG"
_WORKSPACES: Final = "docs/operations.md, What a workspace starts with"
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
    relay_url: str | list[str] = Field(
        "", description="subscribeRepos host, wss://…, or a list of several; empty: the PDS itself"
    )
    jetstream_url: str = Field(
        "", description="Jetstream server to hear as well, wss://…; nothing it says is signed; empty: none"
    )
    unverified: Literal["ignore", "believe"] = Field(
        "ignore",
        description="what an ending that only Jetstream tells does: ignore counts it, believe ends leases",
    )
    handle_domain: str = Field("test", description="domain of our accounts' handles: one that the PDS gives")
    host: str = Field("127.0.0.1", description="address that the embedded network listens on (one node)")
    port: int = Field(0, ge=0, le=65535, description="port of the embedded network; 0: any free one")

    @property
    def relay_urls(self) -> tuple[str, ...]:
        """The hosts to follow, each once; in a string, such as an environment variable, commas part them."""
        urls = self.relay_url.split(",") if isinstance(self.relay_url, str) else self.relay_url
        return tuple(dict.fromkeys(url.strip() for url in urls if url.strip()))


class TapSettings(Section):
    """The cluster's one subscription to the firehose, and its filtered re-broadcast."""

    port: int = Field(0, ge=0, le=65535, description="port of the tap; 0: any free one")
    window_mib: int = Field(
        1024, gt=0, description="MiB on disk of what the tap passed on, for clients that come back"
    )
    window_hours: float = Field(0.0, ge=0, description="hours that this is kept at most; 0: no limit")
    record: str = Field(
        "", description="trace that gets every raw frame: a file (.fht), else a directory; empty: none"
    )
    record_mib: int = Field(0, ge=0, description="MiB on disk of a trace in a directory; 0: no limit")
    record_hours: float = Field(0.0, ge=0, description="hours that it keeps; 0: no limit")
    verify_processes: int = Field(
        1, gt=0, le=64, description="processes that verify, the tap among them; the verdicts are the same"
    )


class LeaseSettings(Section):
    """How long an agent holds a sandbox."""

    ttl_s: int = Field(86_400, gt=0, description="seconds until a lease that nobody renews ends")
    max_ttl_s: int = Field(
        0, ge=0, description="seconds after which a lease ends even if renewed; 0: no limit"
    )
    sleep_after_s: int = Field(300, gt=0, description="idle seconds after which its sandbox sleeps")


class SandboxSettings(Section):
    """What a sandbox may use, and how it is isolated."""

    tier: str = Field(
        "process",
        description="isolation: gvisor, docker, process (bubblewrap), unsafe (none), or auto (the strongest)",
    )
    memory_mib: int = Field(
        512, gt=15, description="memory limit of a sandbox in MiB, where cgroups are writable"
    )
    pids: int = Field(128, gt=7, description="processes and threads a sandbox may have")
    cpu: float = Field(1.0, gt=0, description="processors a sandbox may use, where cgroups are writable")
    disk_mib: int = Field(
        1024, gt=0, description="size of /workspace and of one file in MiB; of the former where the tier can"
    )
    slots: int = Field(64, gt=0, description="sandboxes that one node has at a time, warm slots included")
    wait_s: float = Field(
        10.0, ge=0, le=50, description="seconds to wait for one to become idle before a full node refuses"
    )
    warm_slots: int = Field(
        0, ge=0, le=64, description="sandboxes kept ready for each image that was asked for lately"
    )
    max_asleep: int = Field(
        1000,
        gt=0,
        description="sandboxes with files on the node; beyond, in the shared store only, if there is one",
    )
    nap_after_s: float = Field(10.0, ge=0, description="idle seconds until a sandbox is frozen; 0: never")
    doze_after_s: float = Field(
        60.0, ge=0, description="idle seconds until its memory is paged out, where there is swap; 0: never"
    )
    sleep_after_s: float = Field(
        1800.0, ge=0, description="idle seconds until the node puts it to sleep, lease or no lease; 0: never"
    )
    memory_high_percent: float = Field(
        90.0, ge=0, le=100, description="used memory of the node above which the idle ones give way; 0: never"
    )
    idle_deadline_s: int = Field(
        900, gt=0, description="seconds after which a sandbox that nobody talks to ends itself"
    )
    unleased_s: int = Field(
        14_400, gt=0, description="seconds after which a sandbox that nobody ever leased is destroyed"
    )
    allow_mounts: str = Field(
        "", description="host directories of which parts may be mounted into sandboxes, with : between them"
    )

    @field_validator("tier")
    @classmethod
    def _check_tier(cls, name: str) -> str:
        if name != AUTO and name not in TIERS:
            raise PydanticCustomError(
                "unknown_tier", "there is {known}", {"known": ", ".join((AUTO, *TIERS))}
            )
        return name

    @property
    def allowed_mounts(self) -> tuple[Path, ...]:
        """`allow_mounts` as paths."""
        return tuple(Path(path).expanduser().absolute() for path in self.allow_mounts.split(":") if path)


def _from_json(value: object) -> object:
    """A table that came as a string, out of an environment variable."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


Table = Annotated[dict[str, str], BeforeValidator(_from_json)]
PriceTable = Annotated[dict[str, Annotated[float, Field(ge=0)]], BeforeValidator(_from_json)]
WorkspaceTable = Annotated[dict[str, dict[str, Any]], BeforeValidator(_from_json)]
HostTable = Annotated[dict[str, tuple[str, ...]], BeforeValidator(_from_json)]


class SnapshotSettings(Section):
    """What sleeping sandboxes are kept in, and what of them."""

    url: str = Field(
        "",
        description="empty: this node; or file:/path, s3://bucket/prefix?endpoint=…, redis://host:1/0, none:",
    )
    credentials: str = Field(
        "", description="file:/path (mode 0600) with AWS_… or REDIS_… lines; empty: the node's environment"
    )
    excludes: str = Field("", description="paths in every /workspace that are left out, with : between them")
    max_mib: int = Field(0, ge=0, description="MiB in a /workspace with which it does not sleep; 0: no limit")
    keep: int = Field(3, gt=0, le=64, description="snapshots of one sandbox that stay restorable")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        try:
            return check_url(url)
        except InvalidSpec as invalid:
            raise PydanticCustomError("no_store", "{reason}", {"reason": invalid.reason}) from None

    @property
    def policy(self) -> SnapshotPolicy:
        """The same, as the sandboxes room wants it."""
        return SnapshotPolicy(
            url=self.url,
            credentials=self.credentials,
            excludes=tuple(path for path in self.excludes.split(":") if path),
            max_bytes=self.max_mib << 20,
            keep=self.keep,
        )


class SharingSettings(Section):
    """Sandboxes that outlive a command, by scope: where they are found again, and who keeps others out."""

    states: str = Field(
        "", description="where their states are stored; empty: a file of this node, or redis://host:6379/0"
    )
    guard: str = Field(
        "ledger",
        description="who keeps others out: process, ledger (all processes of a node), or redis://host:6379/0",
    )
    guard_ttl_s: float = Field(
        30.0, ge=1, le=3600, description="seconds that a holder which was killed stands in the way"
    )
    wait_s: float = Field(60.0, ge=0, description="seconds to wait for others to give a sandbox back")
    on_unreadable: Literal["fail", "fresh"] = Field(
        "fail", description="a stored state that cannot be read: fail, or fresh (an empty sandbox instead)"
    )
    require_distributed: bool = Field(
        False, description="fail at start if states, guard or snapshots are only this node's"
    )

    @field_validator("states", "guard")
    @classmethod
    def _check_where(cls, where: str, info: ValidationInfo) -> str:
        words = ("",) if info.field_name == "states" else ("process", "ledger")
        parts = urlsplit(where)
        if parts.password or parts.username:
            raise PydanticCustomError(
                "secret", "credentials do not belong here: use the variables REDIS_USERNAME, REDIS_PASSWORD"
            )
        if where not in words and parts.scheme not in ("redis", "rediss", "unix"):
            known = " or ".join((*filter(None, words), "redis://…"))
            raise PydanticCustomError("unknown_place", "there is {known}", {"known": known})
        return where


class EgressSettings(Section):
    """The hosts that sandboxes may reach through the node's proxy, and the secrets that it adds for them."""

    hosts: HostTable = Field(
        {}, description='hosts by environment type: {coding = ["pypi.org", "*.example.com:8443"]}; TLS only'
    )
    secrets: Table = Field(
        {},
        description='where secrets are on a node: {openai = "env:OPENAI_API_KEY"}, or file:/path (mode 0600)',
    )
    headers: Table = Field(
        {}, description='the header a host gets: {"api.openai.com" = "Authorization: Bearer {openai}"}'
    )


class ModelSettings(Section):
    """The model that decides for the players, in place of their scripts."""

    url: str = Field("", description="chat completions endpoint, wherever it is; empty: the scripts decide")
    name: str = Field("", description="name of the model there; its key goes in [egress]")


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
    usd_per_hour: PriceTable = Field(
        {}, description="price of an awake hour by tier, such as {docker = 0.05}; others cost 0.027"
    )
    at_limit: Literal["sleep", "end"] = Field(
        "sleep",
        description="what leases do whose agent has used its hours: sleep until the next month, or end",
    )


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
    workspace: WorkspaceTable = Field(
        {},
        description='entries by environment type: {coding = {"notes.md" = {type = "file", content = "…"}}}',
    )
    network: NetworkSettings = NetworkSettings()
    tap: TapSettings = TapSettings()
    lease: LeaseSettings = LeaseSettings()
    sandbox: SandboxSettings = SandboxSettings()
    snapshots: SnapshotSettings = SnapshotSettings()
    sharing: SharingSettings = SharingSettings()
    egress: EgressSettings = EgressSettings()
    model: ModelSettings = ModelSettings()
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
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        raise SettingsInvalid(*_explain(error, path)) from None
    given_workspaces(settings)
    for name, source in settings.egress.secrets.items():
        if not source.startswith(("env:", "file:")):  # it may be the secret itself, so it is not repeated
            remedy = "write env:VARIABLE or file:/path, never the secret"
            raise SettingsInvalid(f"the setting egress.secrets.{name}", "says not where it is", remedy)
    return settings


def given_workspaces(settings: Settings) -> "dict[str, WorkspaceSpec]":
    """What the table [workspace] gives, by environment type; its sources are under `sandbox.allow_mounts`.

    Raises:
        SettingsInvalid: an entry is none.
    """
    if not settings.workspace:
        return {}
    from sandboxes.furnishing import parse_workspace  # brings all that writes them

    found = {}
    for environment_type, table in settings.workspace.items():
        where = f"workspace.{environment_type}"
        try:
            found[environment_type] = parse_workspace(
                table, where=where, base=None, allowed=settings.sandbox.allowed_mounts
            )
        except InvalidSpec as invalid:
            remedy = f"correct it ({_WORKSPACES})"
            raise SettingsInvalid(f"the setting {invalid.field}", invalid.reason, remedy) from None
    return found


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
    if isinstance(value, dict):
        pairs = ", ".join(f"{json.dumps(key)} = {_toml(inner)}" for key, inner in value.items())
        return f"{{{pairs}}}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


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


_MAY_HOLD_SECRETS: Final = (
    "egress.secrets", "egress.headers", "snapshots.", "sharing.states", "sharing.guard"
)  # fmt: skip


def _explain(error: ValidationError, path: Path | None) -> tuple[str, str, str]:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        where = f" in {path}" if path else ""
        return f"{name}{where}", "is not a setting", _nearest(name, {*names(), *Settings.model_fields})
    if name.startswith(_MAY_HOLD_SECRETS):  # it may be a secret
        return f"the setting {name}", "is not what it must be", first["msg"]
    return f"the setting {name}", f"is {first['input']!r}", first["msg"]


def _nearest(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.4)
    return f"did you mean {close[0]}?" if close else "see `skylease config show` for all of them"
