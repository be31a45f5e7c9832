"""What the network's methods work on: one PDS with its directory and its stream."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from firehose.frames import encode_account, encode_identity
from firehose.keys import SigningKey
from firehose.network.accounts import Account, Accounts, AccountStatus
from firehose.network.blobs import Blobs
from firehose.network.directory import PlcDirectory
from firehose.network.passwords import hash_password
from firehose.network.refusals import Refusal, forbidden
from firehose.network.repos import Repos, rfc3339
from firehose.network.sequencer import Batch, Sequencer
from firehose.network.store import Store
from firehose.network.tokens import Tokens
from firehose.plc import build_operation, genesis_did
from firehose.tid import TidClock

Validate = Callable[
    [str, dict[str, Any]], None
]  # (collection, record); raises if the record breaks its schema

SECRET_BYTES: Final = 32


@dataclass(slots=True, kw_only=True)
class Pds:
    """The parts, made once per start by `open_pds`."""

    url: str
    store: Store
    accounts: Accounts
    tokens: Tokens
    blobs: Blobs
    sequencer: Sequencer
    repos: Repos
    plc: PlcDirectory
    rotation_key: SigningKey
    clock: Callable[[], int]
    entropy: Callable[[int], bytes]
    validate: Validate | None
    calls: dict[str, int] = field(default_factory=dict)  # by method, for stats

    async def create_account(self, handle: str, password: str, email: str | None) -> Account:
        """A new account: its key, its DID, its first commit, and the four events that a real PDS emits.

        Raises:
            Refusal: HandleNotAvailable.
        """
        if self.accounts.find(handle) is not None:
            raise Refusal("HandleNotAvailable", f"the handle {handle} is taken")
        password_hash = await hash_password(password, self.entropy)
        signing_key = SigningKey.generate(entropy=self.entropy)
        operation = build_operation(
            signing_key=signing_key.did_key,
            handle=handle,
            endpoint=self.url,
            rotation_key=self.rotation_key,
        )
        did = genesis_did(operation)
        account = Account(
            did=did,
            handle=handle,
            email=email,
            password_hash=password_hash,
            secret=signing_key.to_bytes(),
            status=AccountStatus.ACTIVE,
            head=None,
            rev=None,
        )
        try:
            with self.sequencer.transaction() as batch:
                self.plc.submit(did, operation)
                self.accounts.insert(account)
                self.announce_identity(account, batch)
                self.announce_status(account, batch)
                self.repos.create(account, batch)
                self.repos.announce(self.accounts.get(did), batch)
        except BaseException:
            self.plc.forget(did)
            self.repos.forget(did)
            raise
        return self.accounts.get(did)

    def set_status(self, account: Account, status: AccountStatus) -> None:
        """Activate or deactivate an account; the same status again emits nothing."""
        if account.status is status:
            return
        try:
            with self.sequencer.transaction() as batch:
                self.accounts.set_status(account.did, status)
                changed = self.accounts.get(account.did)
                self.announce_status(changed, batch)
                if changed.is_active:  # in the order of a real PDS
                    self.announce_identity(changed, batch)
                    self.repos.announce(changed, batch)
        except BaseException:
            self.accounts.forget(account.did)
            raise

    def set_handle(self, account: Account, handle: str) -> None:
        """Change a handle, in the directory too.

        Raises:
            Refusal: HandleNotAvailable.
        """
        self._update_identity(account, handle)

    def move_here(self) -> int:
        """Point every document at the present url where it still says an earlier one; how many did."""
        moved, after = 0, ""
        while page := self.accounts.page(after, 500):
            for account in page:
                state = self.plc.state(account.did)
                if state is not None and state.endpoint != self.url:
                    self._update_identity(account, account.handle)
                    moved += 1
            after = page[-1].did
        return moved

    def announce_identity(self, account: Account, batch: Batch) -> None:
        """An #identity event in the caller's transaction."""
        time = rfc3339(self.clock())
        batch.add(
            account.did,
            lambda seq: encode_identity(seq=seq, did=account.did, time=time, handle=account.handle),
        )

    def announce_status(self, account: Account, batch: Batch) -> None:
        """An #account event in the caller's transaction."""
        time, said = rfc3339(self.clock()), account.describe()
        batch.add(
            account.did,
            lambda seq: encode_account(
                seq=seq, did=account.did, time=time, active=said["active"], status=said.get("status")
            ),
        )

    def check_active(self, account: Account) -> Account:
        """The account, if it may write.

        Raises:
            Refusal: it is deactivated or taken down.
        """
        if not account.is_active:
            raise forbidden(f"{account.did} is {account.status}")
        return account

    def _update_identity(self, account: Account, handle: str) -> None:
        """Sign and store a did:plc operation with the present handle and url, and say so."""
        state = self.plc.state(account.did)
        assert state is not None, "an account of ours without a DID of ours"
        operation = build_operation(
            signing_key=account.signing_key.did_key,
            handle=handle,
            endpoint=self.url,
            rotation_key=self.rotation_key,
            prev=state.head,
        )
        try:
            with self.sequencer.transaction() as batch:
                self.plc.submit(account.did, operation)
                if handle != account.handle:
                    self.accounts.set_handle(account.did, handle)
                self.announce_identity(self.accounts.get(account.did), batch)
        except BaseException:
            self.plc.forget(account.did)
            self.accounts.forget(account.did)
            raise


def open_pds(
    store: Store,
    url: str,
    *,
    clock: Callable[[], int],
    entropy: Callable[[int], bytes],
    validate: Validate | None,
) -> Pds:
    """Put the parts together over an open store; its secrets are made the first time, and kept."""
    with store.transaction():
        if store.meta("jwt_secret") is None:
            store.set_meta("jwt_secret", entropy(SECRET_BYTES))
            store.set_meta("rotation_key", SigningKey.generate(entropy=entropy).to_bytes())
    accounts = Accounts(store, clock=clock)
    sequencer = Sequencer(store, clock=clock)
    tids = TidClock(lambda: clock() * 1000)
    return Pds(
        url=url,
        store=store,
        accounts=accounts,
        tokens=Tokens(store, store.meta("jwt_secret") or b"", clock=clock, entropy=entropy),
        blobs=Blobs(store, clock=clock),
        sequencer=sequencer,
        repos=Repos(store, accounts, sequencer, clock=clock, tids=tids),
        plc=PlcDirectory(store, clock=clock),
        rotation_key=SigningKey.from_bytes(store.meta("rotation_key") or b""),
        clock=clock,
        entropy=entropy,
        validate=validate,
    )
