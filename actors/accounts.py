"""Which identities are ours: handles and passwords, in a file that only its owner can read."""

import json
import os
import secrets
from pathlib import Path
from typing import Final

from actors.faces import Account
from firehose import XrpcClient, XrpcError

PASSWORD_BYTES: Final = 24
EMAIL_DOMAIN: Final = "example.com"  # a PDS wants an address; RFC 2606 says that nobody has one there


class AccountBook:
    """Accounts by handle. A password is in the file before its account exists, so a crash orphans nobody."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def account(self, xrpc: XrpcClient, handle: str) -> Account:
        """The account of this handle, created on the PDS if there is none yet.

        Raises:
            XrpcError: the PDS refuses, for example because somebody else has the handle.
        """
        known = self._load()
        password = known.get(handle)
        if password is None:
            password = secrets.token_urlsafe(PASSWORD_BYTES)
            self._save(known | {handle: password})
        try:
            email = f"{handle.replace('.', '-')}@{EMAIL_DOMAIN}"
            session = await xrpc.create_account(handle, password, email=email)
        except XrpcError as error:
            if error.name not in ("HandleNotAvailable", "InvalidRequest"):
                raise
            session = await xrpc.login(handle, password)
        self._remember(session.did, handle)
        return Account(handle=handle, did=session.did, password=password)

    def _remember(self, did: str, handle: str) -> None:
        """Note whose DID this is, beside the passwords and without any: for people who read a ledger."""
        known = known_handles(self._path)
        if known.get(did) != handle:
            _write(_handles_beside(self._path), known | {did: handle})

    def _load(self) -> dict[str, str]:
        if not self._path.exists():
            return {}
        loaded = json.loads(self._path.read_text(encoding="utf-8"))
        return {str(handle): str(password) for handle, password in loaded.items()}

    def _save(self, accounts: dict[str, str]) -> None:
        _write(self._path, accounts)


def known_handles(accounts: Path) -> dict[str, str]:
    """Handles by DID, of all identities that were ever in this account book; empty if there are none."""
    try:
        loaded = json.loads(_handles_beside(accounts).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {str(did): str(handle) for did, handle in loaded.items()}


def _handles_beside(accounts: Path) -> Path:
    return accounts.with_name("handles.json")


def _write(path: Path, values: dict[str, str]) -> None:
    """Replace a file as a whole, for its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(values, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
