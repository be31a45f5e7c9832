"""A Docker Engine as the docker tier needs it: every call has a deadline, every failure is one line.

Calls block; they belong into threads. The SDK is imported at the first call, because it takes a third of a
second, and whoever only looks at the tier should not pay for it.
"""

import contextlib
import io
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import docker

DEFAULT_HOST: Final = "unix:///var/run/docker.sock"
CALL_DEADLINE_S: Final = 30.0  # of one call; a start takes 0.1 s alone, and seconds on a loaded machine
REMOVE_DEADLINE_S: Final = 20.0
REMOVE_POLL_S: Final = 0.01


class EngineError(Exception):
    """The engine refused or failed; the text says how."""


class EngineDown(EngineError):
    """There is no engine to talk to; `remedy` says what to do."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.reason, self.remedy = reason, remedy

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


class NoSuchThing(EngineError):
    """The container or image does not exist."""


class NameTaken(EngineError):
    """A container has this name, or is just being created with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What the engine says of a container."""

    id: str
    name: str
    labels: dict[str, str]
    running: bool
    paused: bool
    pid: int  # of its first process in the engine's numbering, 0 when it does not run
    exit_code: int


class Engine:
    """One engine.

    Args:
        host: as in DOCKER_HOST, which is the default; without that the socket of this machine's engine.
        deadline_s: how long it may be silent in a call.
    """

    def __init__(self, host: str | None = None, *, deadline_s: float = CALL_DEADLINE_S) -> None:
        self.host = host or os.environ.get("DOCKER_HOST") or DEFAULT_HOST
        self.deadline_s = deadline_s
        self._client: docker.APIClient | None = None

    @property
    def base_url(self) -> str:
        """Where the engine is: `unix://…`, `http+docker://localhost` (a socket), `http(s)://…` or ssh."""
        with _told():
            return str(self._connected().base_url)

    def version(self) -> dict[str, Any]:
        """Return what the engine says about itself."""
        with _told():
            return dict(self._connected().version(api_version=False))

    def info(self) -> dict[str, Any]:
        """Return what the engine says about its host."""
        with _told():
            return dict(self._connected().info())

    def image(self, reference: str) -> dict[str, Any] | None:
        """Return what is known of an image, None if it is not there."""
        with contextlib.suppress(NoSuchThing), _told():
            return dict(self._connected().inspect_image(reference))
        return None

    def build(
        self, context: bytes, *, tag: str, arguments: Mapping[str, str], labels: Mapping[str, str]
    ) -> Iterator[dict[str, Any]]:
        """Build an image from a tar and yield what the builder tells: `stream`, `aux`, `error`."""
        with _told():
            yield from self._connected().build(
                fileobj=io.BytesIO(context),
                custom_context=True,
                tag=tag,
                buildargs=dict(arguments),
                labels=dict(labels),
                network_mode="host",  # as apt and pip on this host; an engine may well have no bridge
                rm=True,
                forcerm=True,
                decode=True,
            )

    def create(self, name: str, config: dict[str, Any]) -> str:
        """Create a container and return its id.

        Raises:
            NameTaken, NoSuchThing: the name is in use; there is no such image.
        """
        with _told():
            return str(self._connected().create_container_from_config(config, name)["Id"])

    def start(self, container: str) -> None:
        """Start a container."""
        with _told():
            self._connected().start(container)

    def inspect(self, container: str) -> Container | None:
        """Return what is known of a container by id or name, None if it does not exist."""
        with contextlib.suppress(NoSuchThing), _told():
            found = self._connected().inspect_container(container)
            state = found["State"]
            return Container(
                id=found["Id"],
                name=found["Name"].lstrip("/"),
                labels=dict(found["Config"]["Labels"] or {}),
                running=state["Running"],
                paused=state["Paused"],
                pid=state["Pid"],
                exit_code=state["ExitCode"],
            )
        return None

    def labels(self, *wanted: str) -> dict[str, dict[str, str]]:
        """Return container name -> labels of all containers, running or not, with these labels.

        One without a name is a removed container's shadow: Engine 20.10 lists it until it is restarted, if
        the kernel's out-of-memory killer was at work during the removal (measured).
        """
        with _told():
            found = self._connected().containers(all=True, filters={"label": list(wanted)})
            return {entry["Names"][0].lstrip("/"): dict(entry["Labels"]) for entry in found if entry["Names"]}

    def logs(self, container: str, lines: int = 20) -> str:
        """Return the newest lines of what a container's first process has written."""
        with _told():
            raw: bytes = self._connected().logs(container, tail=lines)
            return raw.decode("utf-8", "replace").strip()

    def pause(self, container: str) -> None:
        """Freeze a container."""
        with _told():
            self._connected().pause(container)

    def unpause(self, container: str) -> None:
        """Let a paused container run."""
        with _told():
            self._connected().unpause(container)

    def kill(self, container: str) -> None:
        """End a running container's processes, and wait until they have."""
        with _told():
            self._connected().kill(container)
            self._connected().wait(container, timeout=CALL_DEADLINE_S)

    def wait(self, container: str, timeout_s: float) -> None:
        """Return when a container has ended, or after so many seconds."""
        with contextlib.suppress(EngineError), _told():
            self._connected().wait(container, timeout=timeout_s)

    def remove(self, container: str) -> None:
        """Kill and remove a container, whatever state it is in; it may be gone already.

        Raises:
            EngineError: it is still there after `REMOVE_DEADLINE_S`.
        """
        deadline = time.monotonic() + REMOVE_DEADLINE_S
        while True:
            try:
                with _told():
                    self._connected().remove_container(container, force=True, v=True)
            except NoSuchThing:
                return
            except EngineDown:
                raise
            except EngineError:  # somebody else is removing it, or its file system is busy for a moment
                if time.monotonic() > deadline:
                    raise
                time.sleep(REMOVE_POLL_S)

    def attach(self, container: str) -> socket.socket:
        """Return a connection to a container's standard streams; see `docker_stream`."""
        with _told():
            params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            return _plain(self._connected().attach_socket(container, params))

    def exec(self, container: str, argv: list[str], *, user: str) -> socket.socket:
        """Start a process in a running container and return the connection to its standard streams."""
        with _told():
            client = self._connected()
            made = client.exec_create(container, argv, stdin=True, user=user, workdir="/")
            return _plain(client.exec_start(made["Id"], socket=True))

    def close(self) -> None:
        """Drop the connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> "docker.APIClient":
        if self._client is None:
            import docker
            from docker.utils import kwargs_from_env

            settings = {**kwargs_from_env(), "base_url": self.host}
            self._client = docker.APIClient(version="auto", timeout=self.deadline_s, **settings)
        return self._client


def _plain(stream: Any) -> socket.socket:
    """Return the socket beneath what the SDK hands out, with no deadline of its own."""
    plain: socket.socket = getattr(stream, "_sock", stream)
    plain.settimeout(None)
    return plain


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Raise what the SDK raises as one of our errors."""
    import requests
    from docker import errors

    try:
        yield
    except errors.NotFound as error:
        raise NoSuchThing(_explained(error)) from None
    except errors.APIError as error:
        if error.status_code == 409 and "is already in use by container" in str(error.explanation):
            raise NameTaken(_explained(error)) from None
        raise EngineError(_explained(error)) from None
    except (errors.DockerException, requests.RequestException, OSError) as error:
        raise explain_down(error) from None


def _explained(error: Any) -> str:
    text = str(error.explanation or error)
    with contextlib.suppress(ValueError, TypeError, KeyError):
        text = str(json.loads(text)["message"])
    return " ".join(text.split())[:500]


def explain_down(error: BaseException) -> EngineDown:
    """Say what keeps us from the engine."""
    causes: list[BaseException] = []
    queue: list[Any] = [error]
    while queue:
        cause = queue.pop()
        if isinstance(cause, BaseException) and cause not in causes:
            causes.append(cause)
            queue += [cause.__cause__, cause.__context__, *cause.args]
    if any(isinstance(cause, PermissionError) for cause in causes):
        return EngineDown(
            "permission denied on the Docker socket",
            "become a member of the group docker (log in again after that), or run as root",
        )
    if any(isinstance(cause, TimeoutError) or "timed out" in str(cause).lower() for cause in causes):
        return EngineDown(
            f"the Docker Engine did not answer within {CALL_DEADLINE_S:g} s", "look at the log of dockerd"
        )
    if any(isinstance(cause, FileNotFoundError | ConnectionError) for cause in causes):
        return EngineDown(
            "no Docker Engine answers", "start it (systemctl start docker), or set DOCKER_HOST to where it is"
        )
    return EngineDown(" ".join(str(error).split())[:300], "see `docker version`")
