"""Which endings end which leases."""

from dataclasses import replace
from typing import Any

import pytest

from leases import Ending, Lease, LeaseStatus, Verdict, default_conditions, judge, lease_id_of
from leases.conditions import sum_up

ALICE, BOB, GM = "did:plc:alice", "did:plc:bob", "did:plc:gm"
FINISHED = Ending(condition="game.finished", environment_id="catan-7", author_did=GM)
LEASE = Lease(
    id=lease_id_of(ALICE, "catan-7"),
    agent_did=ALICE,
    environment_id="catan-7",
    environment_type="catan",
    authority_did=GM,
    tier="process",
    image=None,
    leased_at=0,
    last_activity=0,
    expires_at=1,
    max_expires_at=None,
    ttl_ms=1,
    sleep_after_ms=1,
    expiry_conditions=("game.finished",),
    status=LeaseStatus.ACTIVE,
    epoch=1,
    sandbox_id="alice-catan-7",
    node_id=None,
    last_turn=None,
    ended_at=None,
    ended_by=None,
)


@pytest.mark.parametrize(
    ("ending", "lease", "verdict"),
    [
        pytest.param({}, {}, Verdict.ENDS, id="authority-ends-active"),
        pytest.param({}, {"status": LeaseStatus.SLEEPING}, Verdict.ENDS, id="authority-ends-sleeping"),
        pytest.param({"subject_did": ALICE}, {}, Verdict.ENDS, id="its-own-subject"),
        pytest.param({"author_did": BOB}, {}, Verdict.NOT_AUTHORITY, id="a-player-ends-nothing"),
        pytest.param({"author_did": ALICE}, {}, Verdict.NOT_AUTHORITY, id="nor-its-own-game"),
        pytest.param(
            {"author_did": BOB, "condition": "x"}, {}, Verdict.NOT_AUTHORITY, id="a-stranger-learns-nothing"
        ),
        pytest.param({"subject_did": BOB}, {}, Verdict.OTHER_LEASE, id="another-agents-death"),
        pytest.param({"environment_id": "catan-8"}, {}, Verdict.OTHER_LEASE, id="another-game"),
        pytest.param({"condition": "agent.death"}, {}, Verdict.NOT_A_CONDITION, id="catan-has-no-deaths"),
        pytest.param({}, {"status": LeaseStatus.EXPIRED}, Verdict.NOT_LIVE, id="said-twice"),
        pytest.param({}, {"status": LeaseStatus.DESTROYED}, Verdict.NOT_LIVE, id="said-after-all-was-gone"),
    ],
)
def test_judge(ending: dict[str, Any], lease: dict[str, Any], verdict: Verdict) -> None:
    assert judge(replace(FINISHED, **ending), replace(LEASE, **lease)) is verdict


@pytest.mark.parametrize(
    ("environment_type", "conditions"),
    [
        ("rpg", ("agent.death", "game.finished", "campaign.ended")),
        ("catan", ("game.finished",)),
        ("coding", ("task.complete", "pr.merged")),
        ("anything-else", ("game.finished",)),
    ],
)
def test_conditions_of_a_type(environment_type: str, conditions: tuple[str, ...]) -> None:
    assert default_conditions(environment_type) == conditions


def test_an_ending_is_counted_under_its_strongest_verdict() -> None:
    assert sum_up([]) is Verdict.OTHER_LEASE
    assert sum_up([Verdict.OTHER_LEASE, Verdict.NOT_LIVE, Verdict.NOT_AUTHORITY]) is Verdict.NOT_AUTHORITY
    assert sum_up([Verdict.NOT_AUTHORITY, Verdict.ENDS]) is Verdict.ENDS
