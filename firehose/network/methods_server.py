"""com.atproto.server.* and com.atproto.identity.*: accounts, sessions, handles."""

from typing import Any, Final
from urllib.parse import urlsplit

from firehose.network.accounts import Account, AccountStatus, check_handle, check_text
from firehose.network.call import Answer, Call, Method, Verb
from firehose.network.passwords import MAX_PASSWORD_BYTES, is_password
from firehose.network.refusals import Refusal, invalid_request
from firehose.network.tokens import TokenPair

MAX_EMAIL_CHARS: Final = 320
MAX_IDENTIFIER_CHARS: Final = 2048


async def create_account(call: Call) -> Answer:
    """A new account and its first session."""
    handle = check_handle(call.body.get("handle"))
    password = check_text(call.body.get("password"), "password", MAX_PASSWORD_BYTES)
    email = call.body.get("email")
    if email is not None:
        email = check_text(email, "email", MAX_EMAIL_CHARS)
    if call.body.get("did") is not None:
        raise Refusal("UnsupportedDidMethod", "bringing a DID along is not supported here")
    account = await call.pds.create_account(handle, password, email)
    return _session(call, account, call.pds.tokens.issue(account.did))


async def create_session(call: Call) -> Answer:
    """A new session for handle or DID and password."""
    identifier = check_text(call.body.get("identifier"), "identifier", MAX_IDENTIFIER_CHARS)
    password = check_text(call.body.get("password"), "password", MAX_PASSWORD_BYTES)
    account = call.pds.accounts.find(identifier.lower())
    if account is None or not await is_password(password, account.password_hash):
        raise Refusal("AuthenticationRequired", "wrong identifier or password", 401)
    if account.status is AccountStatus.TAKENDOWN:
        raise Refusal("AccountTakedown", "the account has been taken down", 401)
    return _session(call, account, call.pds.tokens.issue(account.did))


async def refresh_session(call: Call) -> Answer:
    """A new session for a refresh token."""
    did, pair = call.pds.tokens.refresh(call.authorization)
    return _session(call, call.pds.accounts.get(did), pair)


async def delete_session(call: Call) -> Answer:
    """End the session of a refresh token."""
    call.pds.tokens.revoke(call.authorization)
    return {}


async def get_session(call: Call) -> Answer:
    """Whose access token this is."""
    account = call.caller()
    return {"did": account.did, "handle": account.handle, **_email(account), **account.describe()}


async def describe_server(call: Call) -> Answer:
    """What this server is."""
    host = urlsplit(call.pds.url).netloc.replace(":", "%3A")
    return {
        "did": f"did:web:{host}",
        "availableUserDomains": [".test"],
        "inviteCodeRequired": False,
        "phoneVerificationRequired": False,
        "links": {},
        "contact": {},
    }


async def deactivate_account(call: Call) -> Answer:
    """Stop serving the caller's repo until it activates itself again."""
    call.pds.set_status(call.caller(), AccountStatus.DEACTIVATED)
    return {}


async def activate_account(call: Call) -> Answer:
    """Serve the caller's repo again."""
    account = call.caller()
    if account.status is AccountStatus.TAKENDOWN:
        raise Refusal("AccountTakedown", "the account has been taken down", 401)
    call.pds.set_status(account, AccountStatus.ACTIVE)
    return {}


async def resolve_handle(call: Call) -> Answer:
    """The DID of a handle."""
    account = call.pds.accounts.find(check_handle(call.parameter("handle")))
    if account is None:
        raise Refusal("HandleNotFound", "nobody has this handle here")
    return {"did": account.did}


async def update_handle(call: Call) -> Answer:
    """Change the caller's handle."""
    account, handle = call.pds.check_active(call.caller()), check_handle(call.body.get("handle"))
    if handle == account.handle:
        raise invalid_request(f"the handle is {handle} already")
    call.pds.set_handle(account, handle)
    return {}


def _session(call: Call, account: Account, pair: TokenPair) -> dict[str, Any]:
    return {
        "did": account.did,
        "handle": account.handle,
        "didDoc": call.pds.plc.document(account.did),
        "accessJwt": pair.access,
        "refreshJwt": pair.refresh,
        **_email(account),
        **account.describe(),
    }


def _email(account: Account) -> dict[str, str]:
    return {} if account.email is None else {"email": account.email}


METHODS: Final[dict[str, tuple[Verb, Method]]] = {
    "com.atproto.server.createAccount": (Verb.PROCEDURE, create_account),
    "com.atproto.server.createSession": (Verb.PROCEDURE, create_session),
    "com.atproto.server.refreshSession": (Verb.PROCEDURE, refresh_session),
    "com.atproto.server.deleteSession": (Verb.PROCEDURE, delete_session),
    "com.atproto.server.getSession": (Verb.QUERY, get_session),
    "com.atproto.server.describeServer": (Verb.QUERY, describe_server),
    "com.atproto.server.deactivateAccount": (Verb.PROCEDURE, deactivate_account),
    "com.atproto.server.activateAccount": (Verb.PROCEDURE, activate_account),
    "com.atproto.identity.resolveHandle": (Verb.QUERY, resolve_handle),
    "com.atproto.identity.updateHandle": (Verb.PROCEDURE, update_handle),
}
