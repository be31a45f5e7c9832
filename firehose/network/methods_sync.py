"""com.atproto.sync.*: whole repos, and where they stand. subscribeRepos is a websocket: see app."""

from typing import Any, Final

from firehose.network.call import Answer, Bytes, Call, Method, Verb
from firehose.network.refusals import Refusal

MAX_PAGE: Final = 1000
DEFAULT_PAGE: Final = 500


async def get_repo(call: Call) -> Answer:
    """A whole repo as a CAR."""
    account = call.pds.accounts.served(call.parameter("did"))
    return Bytes(content=call.pds.repos.export(account), content_type="application/vnd.ipld.car")


async def get_blob(call: Call) -> Answer:
    """A blob's bytes."""
    account = call.pds.accounts.served(call.parameter("did"))
    content, content_type = call.pds.blobs.get(account.did, call.parameter("cid"))
    return Bytes(content=content, content_type=content_type)


async def get_latest_commit(call: Call) -> Answer:
    """Where a repo stands."""
    account = call.pds.accounts.served(call.parameter("did"))
    if account.head is None or account.rev is None:
        raise Refusal("RepoNotFound", f"{account.did} has no repo")
    return {"cid": str(account.head), "rev": account.rev}


async def get_repo_status(call: Call) -> Answer:
    """Whether a repo is served."""
    account = call.pds.accounts.get(call.parameter("did"))
    answer: dict[str, Any] = {"did": account.did, **account.describe()}
    if account.is_active and account.rev is not None:
        answer["rev"] = account.rev
    return answer


async def list_repos(call: Call) -> Answer:
    """One page of all repos."""
    limit = call.limit(DEFAULT_PAGE, MAX_PAGE)
    page = call.pds.accounts.page(call.parameters.get("cursor", ""), limit)
    answer: dict[str, Any] = {
        "repos": [
            {"did": account.did, "head": str(account.head), "rev": account.rev, **account.describe()}
            for account in page
        ]
    }
    if len(page) == limit:
        answer["cursor"] = page[-1].did
    return answer


METHODS: Final[dict[str, tuple[Verb, Method]]] = {
    "com.atproto.sync.getRepo": (Verb.QUERY, get_repo),
    "com.atproto.sync.getBlob": (Verb.QUERY, get_blob),
    "com.atproto.sync.getLatestCommit": (Verb.QUERY, get_latest_commit),
    "com.atproto.sync.getRepoStatus": (Verb.QUERY, get_repo_status),
    "com.atproto.sync.listRepos": (Verb.QUERY, list_repos),
}
