"""com.atproto.repo.*: records and blobs."""

from typing import Any, Final

from firehose import drisl
from firehose.cid import Cid
from firehose.errors import DrislInvalid, FirehoseError
from firehose.frames import Action
from firehose.json_form import from_json
from firehose.network.accounts import Account
from firehose.network.call import Answer, Call, Method, Verb, parsed
from firehose.network.refusals import Refusal, invalid_request
from firehose.repo import CommitResult, Record, Write
from firehose.syntax import Nsid, RecordKey, parse_nsid, parse_record_key

MAX_WRITES: Final = 200  # of one applyWrites; the lexicon has none, a #commit holds as many ops
MAX_PAGE: Final = 100
DEFAULT_PAGE: Final = 50
_APPLY: Final = "com.atproto.repo.applyWrites"
_ACTIONS: Final = {f"{_APPLY}#{action}": action for action in Action}
_ABSENT: Final = object()


async def create_record(call: Call) -> Answer:
    """Add a record."""
    account = call.writer()
    write = _write(call, account, Action.CREATE, call.body, call.body.get("record"))
    return _written(account, write, call.pds.repos.write(account, [write], _swap_commit(call)))


async def put_record(call: Call) -> Answer:
    """Write a record, new or not; the record that is there already changes nothing."""
    account = call.writer()
    write = _write(call, account, Action.CREATE, call.body, call.body.get("record"), is_key_needed=True)
    current = call.pds.repos.current_cid(account, write.path)
    _check_swap_record(call, current)
    if current is not None:
        if Cid.for_dag_cbor(drisl.encode(write.record)) == current:
            return {"uri": _uri(account, write), "cid": str(current), "validationStatus": _status(call)}
        write = Write(action=Action.UPDATE, collection=write.collection, rkey=write.rkey, record=write.record)
    return _written(account, write, call.pds.repos.write(account, [write], _swap_commit(call)))


async def delete_record(call: Call) -> Answer:
    """Delete a record; one that is not there is deleted already."""
    account = call.writer()
    collection, rkey = _place(call.body)
    current = call.pds.repos.current_cid(account, f"{collection}/{rkey}")
    if current is None:
        return {}
    _check_swap_record(call, current)
    write = Write(action=Action.DELETE, collection=collection, rkey=rkey)
    return {"commit": _commit(call.pds.repos.write(account, [write], _swap_commit(call)))}


async def apply_writes(call: Call) -> Answer:
    """Several writes as one commit."""
    account = call.writer()
    asked = call.body.get("writes")
    if not isinstance(asked, list) or not 1 <= len(asked) <= MAX_WRITES:
        raise invalid_request(f"writes: expected 1 to {MAX_WRITES}")
    writes = []
    for one in asked:
        action = _ACTIONS.get(one.get("$type", "")) if isinstance(one, dict) else None
        if action is None:
            raise invalid_request(f"writes: each has a $type out of {', '.join(_ACTIONS)}")
        if action is Action.DELETE:
            collection, rkey = _place(one)
            writes.append(Write(action=action, collection=collection, rkey=rkey))
        else:
            writes.append(
                _write(call, account, action, one, one.get("value"), is_key_needed=action is Action.UPDATE)
            )
    result = call.pds.repos.write(account, writes, _swap_commit(call))
    return {"commit": _commit(result), "results": [_result(call, account, write, result) for write in writes]}


async def get_record(call: Call) -> Answer:
    """One record."""
    account = call.pds.accounts.served(call.parameter("repo").lower())
    collection, rkey = call.parameter("collection"), call.parameter("rkey")
    record = call.pds.repos.get_record(account.did, collection, rkey)
    if record is None or call.parameters.get("cid", record.cid) != record.cid:
        raise Refusal("RecordNotFound", f"could not locate at://{account.did}/{collection}/{rkey}"[:512])
    return record.to_json()


async def list_records(call: Call) -> Answer:
    """One page of a collection."""
    account = call.pds.accounts.served(call.parameter("repo").lower())
    limit = call.limit(DEFAULT_PAGE, MAX_PAGE)
    records = call.pds.repos.list_records(
        account.did,
        call.parameter("collection"),
        limit=limit,
        cursor=call.parameters.get("cursor"),
        is_reverse=call.parameters.get("reverse") == "true",
    )
    answer: dict[str, Any] = {"records": [record.to_json() for record in records]}
    if len(records) == limit:
        answer["cursor"] = records[-1].uri.rpartition("/")[2]
    return answer


async def describe_repo(call: Call) -> Answer:
    """Whose repo it is and what it holds."""
    account = call.pds.accounts.served(call.parameter("repo").lower())
    return {
        "handle": account.handle,
        "did": account.did,
        "didDoc": call.pds.plc.document(account.did),
        "collections": call.pds.repos.collections(account.did),
        "handleIsCorrect": True,
    }


async def upload_blob(call: Call) -> Answer:
    """Bytes for a record to refer to."""
    account = call.pds.check_active(call.caller())
    return {"blob": call.pds.blobs.upload(account.did, call.raw_body, call.content_type)}


def _write(
    call: Call,
    account: Account,
    action: Action,
    place: dict[str, Any],
    record: Any,
    *,
    is_key_needed: bool = False,
) -> Write:
    """A checked write of a record: its place, its form, its schema, its blobs."""
    if place.get("rkey") is None and not is_key_needed:
        place = {**place, "rkey": call.pds.repos.next_key()}
    collection, rkey = _place(place)
    if not isinstance(record, dict):
        raise invalid_request("record: expected an object")
    if record.setdefault("$type", collection) != collection:
        raise invalid_request(f"record: its $type is not {collection}")
    try:
        value: Record = from_json(record)
    except DrislInvalid as error:
        raise invalid_request(f"record: {error}") from None
    _check_schema(call, collection, value)
    call.pds.blobs.check_references(account.did, value)
    return Write(action=action, collection=collection, rkey=rkey, record=value)


def _check_schema(call: Call, collection: str, record: Record) -> None:
    if call.pds.validate is None or call.body.get("validate") is False:
        return
    try:
        call.pds.validate(collection, record)
    except (FirehoseError, ValueError) as error:
        raise invalid_request(f"record: not a valid {collection}: {error}") from None


def _place(body: dict[str, Any]) -> tuple[Nsid, RecordKey]:
    return parsed(parse_nsid, body.get("collection")), parsed(parse_record_key, body.get("rkey"))


def _check_swap_record(call: Call, current: Cid | None) -> None:
    wanted = call.body.get("swapRecord", _ABSENT)  # null means: only if there is no record
    if wanted is not _ABSENT and wanted != (None if current is None else str(current)):
        raise Refusal("InvalidSwap", f"the present record is {current}")


def _swap_commit(call: Call) -> str | None:
    wanted = call.body.get("swapCommit")
    if wanted is not None and not isinstance(wanted, str):
        raise invalid_request("swapCommit: expected a CID")
    return wanted


def _status(call: Call) -> str:
    return "unknown" if call.pds.validate is None or call.body.get("validate") is False else "valid"


def _uri(account: Account, write: Write) -> str:
    return f"at://{account.did}/{write.path}"


def _commit(result: CommitResult) -> dict[str, str]:
    return {"cid": str(result.commit), "rev": result.rev}


def _written(account: Account, write: Write, result: CommitResult) -> Answer:
    return {
        "uri": _uri(account, write),
        "cid": str(result.records[write.path][0]),
        "commit": _commit(result),
    }


def _result(call: Call, account: Account, write: Write, result: CommitResult) -> dict[str, Any]:
    answer: dict[str, Any] = {"$type": f"{_APPLY}#{write.action}Result"}
    if write.action is Action.DELETE:
        return answer
    cid = str(result.records[write.path][0])
    return {**answer, "uri": _uri(account, write), "cid": cid, "validationStatus": _status(call)}


METHODS: Final[dict[str, tuple[Verb, Method]]] = {
    "com.atproto.repo.createRecord": (Verb.PROCEDURE, create_record),
    "com.atproto.repo.putRecord": (Verb.PROCEDURE, put_record),
    "com.atproto.repo.deleteRecord": (Verb.PROCEDURE, delete_record),
    "com.atproto.repo.applyWrites": (Verb.PROCEDURE, apply_writes),
    "com.atproto.repo.getRecord": (Verb.QUERY, get_record),
    "com.atproto.repo.listRecords": (Verb.QUERY, list_records),
    "com.atproto.repo.describeRepo": (Verb.QUERY, describe_repo),
    "com.atproto.repo.uploadBlob": (Verb.PROCEDURE, upload_blob),
}
