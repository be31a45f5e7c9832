"""Which identities are ours: handles and passwords, in a file that only its owner can read."""

import json
import os
import secrets
from pathlib import Path
from typing import Final

from actors.faces import Account
from firehose import XrpcClient, XrpcError

PASSWORD_BYTES: Final = 24


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
            session = await xrpc.create_account(handle, password)
        except XrpcError as error:
            if error.name not in ("HandleNotAvailable", "InvalidRequest"):
                raise
            session = await xrpc.login(handle, password)
        return Account(handle=handle, did=session.did, password=password)

    def _load(self) -> dict[str, str]:
        if not self._path.exists():
            return {}
        loaded = json.loads(self._path.read_text(encoding="utf-8"))
        return {str(handle): str(password) for handle, password in loaded.items()}

    def _save(self, accounts: dict[str, str]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(accounts, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)
