"""What the supervisor says on the firehose: every beginning and every ending of a lease, once."""

from typing import Any, Final

from actors import records
from firehose import XrpcClient
from leases import LeaseEvent, Ledger

PUBLISH_BATCH: Final = 100


async def publish(ledger: Ledger, xrpc: XrpcClient) -> None:
    """Say what happened to leases; the key makes a repetition the same record."""
    for event in ledger.unpublished(PUBLISH_BATCH):
        collection, record = _told(ledger, event)
        key = records.lease_key(event.environment_id, event.agent_did, event.epoch)
        ref = await xrpc.put_record(collection, key, record)
        ledger.mark_published(event.id, ref.uri)


def _told(ledger: Ledger, event: LeaseEvent) -> tuple[str, dict[str, Any]]:
    lease = ledger.get(event.lease_id)
    if event.is_acquired:
        return records.LEASE_ACQUIRED, records.lease_acquired(
            environment_id=lease.environment_id,
            agent_did=lease.agent_did,
            epoch=event.epoch,
            environment_type=lease.environment_type,
            authority_did=lease.authority_did,
            conditions=lease.expiry_conditions,
            tier=lease.tier,
            ttl_ms=lease.ttl_ms,
            now_ms=event.at,
        )
    return records.LEASE_ENDED, records.lease_ended(
        environment_id=lease.environment_id,
        agent_did=lease.agent_did,
        epoch=event.epoch,
        condition=event.condition or event.cause,
        event=event.event,
        now_ms=event.at,
    )
