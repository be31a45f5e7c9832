"""Sub-agents in their parent's sandbox: the same files, a session of their own.

Light: a guest needs the invitation only, no store and no guard.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sandboxes.errors import SandboxError
from sandboxes.sandbox import Sandbox, connect_sandbox
from sandboxes.sharing.stay import stay


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """A parent's sandbox, handed down: plain data that may be pickled."""

    directory: Path
    name: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """The parent's sandbox and the guest's session in it: give it to `exec` and `start_process`."""

    sandbox: Sandbox
    session: str


@asynccontextmanager
async def visit(
    invitation: Invitation, *, env: Mapping[str, str] | None = None, cwd: str | None = None
) -> AsyncIterator[Guest]:
    """Work in the parent's sandbox during a block. It is not put away meanwhile, nor by the end of the block.

    Args:
        env: of the session.
        cwd: of the session.

    Raises:
        SandboxGone: it has been put away, or is about to be.
        StaleEpoch: another holder has it by now.
    """
    with stay(invitation.directory, invitation.name):
        async with connect_sandbox(invitation.directory, epoch=invitation.epoch) as sandbox:
            session = await sandbox.create_session(env=env, cwd=cwd)
            try:
                yield Guest(sandbox=sandbox, session=session)
            finally:
                with suppress(SandboxError):  # gone with its sandbox
                    await sandbox.delete_session(session)
