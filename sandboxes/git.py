"""Checking out a repository, by the git that is inside the sandbox and over the network that it has."""

import contextlib
import re
import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from sandboxes.errors import (
    BranchNotFound,
    FileAlreadyExists,
    GitDenied,
    GitError,
    GitMissing,
    InvalidSpec,
    NoSpace,
    RepositoryNotFound,
    RepositoryUnreachable,
    SandboxError,
)
from sandboxes.results import ExecResult
from sandboxes.workspace import Workspace

CLONE_DEADLINE_S: Final = 600.0
SCHEMES: Final = frozenset({"https", "http", "git", "ssh", "file"})
_BRANCH: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+@=-]{0,254}")
_SAID: Final[tuple[tuple[str, type[GitError]], ...]] = (  # what git says in the locale C, first match wins
    (r"Remote branch .* not found", BranchNotFound),
    (r"Authentication failed|could not read (Username|Password)|Permission denied|error: 40[13]", GitDenied),
    (
        r"not found|not exist|not appear to be a git|not exported|error: 404|not a git repo",
        RepositoryNotFound,
    ),
    (r"resolve host|unable to (access|connect|look up)|Connection|unreachable", RepositoryUnreachable),
)
# Local repositories may belong to somebody else (a mount); git would refuse them, also in its own helper
# process, which reads configuration files but not `-c`.
_ENVIRONMENT: Final = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "LC_ALL": "C"}
_CONFIG: Final = b"[safe]\n\tdirectory = *\n[include]\n\tpath = ~/.gitconfig\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A repository that was checked out."""

    path: str  # inside
    commit: str  # its full id; empty when the repository has none yet
    branch: str | None  # None: a tag, HEAD is detached


class Repositories(Workspace):
    """Adds `git_checkout` to what can run commands and has files."""

    @abstractmethod
    async def exec(
        self,
        argv: Sequence[str] | str,
        stdin: bytes = b"",
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> ExecResult: ...

    async def git_checkout(
        self,
        repository: str,
        *,
        branch: str | None = None,
        target: str | None = None,
        depth: int | None = None,
        timeout: float = CLONE_DEADLINE_S,
    ) -> Checkout:
        """Clone a repository; it appears at its target at once and whole, or not at all.

        Args:
            repository: URL (https, http, git, ssh, file) or absolute path inside. Credentials in it are used
                for the clone and kept nowhere.
            branch: branch or tag; default what the repository's HEAD says.
            target: directory, absent or empty; default the repository's name beneath /workspace.
            depth: number of commits to fetch; default all.
            timeout: seconds for all of it.

        Raises:
            RepositoryNotFound, BranchNotFound, GitDenied, RepositoryUnreachable, GitMissing: what they say.
            GitError: git failed otherwise.
            FileAlreadyExists: the target is not empty.
            NoSpace: it does not fit.
            InvalidSpec: an argument cannot be.
            SandboxTimeoutError: it took too long; nothing of it is left.
        """
        source, shown = _check_source(repository, local_as_url=depth is not None)
        if branch is not None and (not _BRANCH.fullmatch(branch) or ".." in branch):
            raise InvalidSpec("branch", f"{branch!r} is not the name of a branch or tag")
        if depth is not None and depth < 1:
            raise InvalidSpec("depth", f"{depth} is not a number of commits")
        target = target or _name_of(shown)
        if await self.exists(target) and await self.list_files(target):
            raise FileAlreadyExists(target, "there is something already")
        parent, _, name = _absolute(target).rstrip("/").rpartition("/")
        clone = _Clone(sandbox=self, parent=parent, mark=secrets.token_hex(6))
        argv = ["clone", "--quiet", *(["--branch", branch] if branch else [])]
        argv += [f"--depth={depth}"] if depth is not None else []
        await self.mkdir(parent)
        await self.write_file(clone.config, _CONFIG)
        try:
            done = await clone.git(*argv, "--", source, clone.fresh, timeout=timeout)
            if done.exit_code != 0:
                raise _explain(done, shown, branch or "HEAD", target, secret=source)
            if shown != repository:
                await clone.say("-C", clone.fresh, "remote", "set-url", "origin", shown)
            found = await clone.say("-C", clone.fresh, "symbolic-ref", "--short", "--quiet", "HEAD")
            commit = await clone.say("-C", clone.fresh, "rev-parse", "--verify", "--quiet", "HEAD")
            await self.rename(f"{parent}/{clone.fresh}", f"{parent}/{name}")
            return Checkout(path=f"{parent}/{name}", commit=commit, branch=found or None)
        finally:
            await self._discard(clone.config, f"{parent}/{clone.fresh}")

    async def _discard(self, *paths: str) -> None:
        for path in paths:
            with contextlib.suppress(SandboxError):  # it is in its place, or dies with the sandbox
                await self.delete(path, recursive=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clone:
    """One run of git, beside the directory that it is for."""

    sandbox: Repositories
    parent: str
    mark: str

    @property
    def fresh(self) -> str:
        return f".skylease-clone-{self.mark}"

    @property
    def config(self) -> str:
        return f"/tmp/.skylease-git-{self.mark}"

    async def git(self, *words: str, timeout: float = 60.0) -> ExecResult:
        # the shell knows where /tmp really is, also in a tier that has no file system of its own
        line = 'export GIT_CONFIG_GLOBAL="$TMPDIR/$0"; exec git "$@"'
        argv = ["sh", "-c", line, self.config.removeprefix("/tmp/"), *words]
        return await self.sandbox.exec(argv, timeout=timeout, env=_ENVIRONMENT, cwd=self.parent)

    async def say(self, *words: str) -> str:
        done = await self.git(*words)
        return done.text.strip() if done.exit_code == 0 else ""


def _explain(done: ExecResult, shown: str, branch: str, target: str, *, secret: str) -> SandboxError:
    """Return the error that a failed clone is, without the credentials of its URL."""
    said = " ".join(done.stderr_text.replace(secret, shown).split())[-400:]
    if done.exit_code == 127:
        return GitMissing(shown, "there is no git inside: add it to the image")
    if re.search(r"No space left|Disk quota|File too large", said):
        return NoSpace(target, "the repository does not fit")
    kind = next((kind for words, kind in _SAID if re.search(words, said, re.IGNORECASE)), GitError)
    return kind(shown, f"{branch}: {said}" if kind is BranchNotFound else said or f"git: {done.exit_code}")


def _check_source(repository: str, *, local_as_url: bool) -> tuple[str, str]:
    """Return the repository as git must get it, and as it may be shown: without credentials."""
    if "\0" in repository or any(char.isspace() for char in repository):
        raise InvalidSpec("repository", "it holds white space or NUL")
    if repository.startswith("/"):
        return (f"file://{repository}" if local_as_url else repository), repository
    parts = urlsplit(repository)
    if parts.scheme not in SCHEMES or not (parts.hostname or parts.scheme == "file"):
        known = ", ".join(sorted(SCHEMES))
        raise InvalidSpec("repository", f"it must be an absolute path inside, or a URL ({known})")
    if parts.username is None or parts.scheme == "ssh":
        return repository, repository
    host = parts.netloc.rpartition("@")[2]
    return repository, urlunsplit((parts.scheme, host, parts.path, parts.query, parts.fragment))


def _name_of(repository: str) -> str:
    name = repository.rstrip("/").rpartition("/")[2].removesuffix(".git")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", name):
        raise InvalidSpec("target", f"no directory can be named after {repository}: name one")
    return name


def _absolute(path: str) -> str:
    return path if path.startswith("/") else f"/workspace/{path}"
