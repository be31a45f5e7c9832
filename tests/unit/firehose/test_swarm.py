"""A seed plays a stream with every kind of trouble in it: each frame is counted, and no lie comes out."""

import random
from collections import Counter
from typing import Any

import pytest

from firehose.cid import Cid
from firehose.frames import Action, encode_account, encode_commit, encode_identity, encode_info, encode_sync
from firehose.keys import Curve, SigningKey
from firehose.repo import CommitResult, Write
from firehose.syntax import Did, Nsid, RecordKey
from firehose.verify import Policy, Verdict, Verifier

NOW_MS = 1_790_000_000_000
TIME = "2026-09-21T14:13:20Z"
NOTE = Nsid("com.example.note")
EVENTS = 150


class World:
    """Three accounts, one stream, and a server that loses, repeats, alters and invents frames."""

    def __init__(self, seed: int, author_of: Any) -> None:
        self.random = random.Random(seed)
        curves = [Curve.K256, Curve.P256, Curve.K256]
        self.authors = [
            author_of(Did(f"did:plc:swarm{number}"), self.key(curve)) for number, curve in enumerate(curves)
        ]
        self.documents = {author.did: author.document() for author in self.authors}
        self.seq = 0
        self.true: dict[tuple[str, str, str], Cid | None] = {}  # (did, rev, path) → what the account wrote
        self.lied = 0

    def key(self, curve: Curve) -> SigningKey:
        return SigningKey.from_bytes(self.random.randbytes(32), curve)

    def frames(self) -> list[bytes]:
        frames = [self.frame(author.first) for author in self.authors]
        while len(frames) < EVENTS:
            author = self.random.choice(self.authors)
            kind = self.random.choice(KINDS)
            frames += kind(self, author)
        return frames

    def next_seq(self) -> int:
        self.seq += self.random.randint(1, 3)
        return self.seq

    def write(self, author: Any) -> CommitResult:
        wishes: dict[str, Write] = {}
        for _ in range(self.random.randint(1, 4)):
            rkey = f"r{self.random.randint(0, 30)}"
            is_there = author.repo.get(f"{NOTE}/{rkey}") is not None
            action = self.random.choice([Action.UPDATE, Action.DELETE]) if is_there else Action.CREATE
            record = None if action is Action.DELETE else {"$type": NOTE, "n": self.random.random().hex()}
            wishes[rkey] = Write(action=action, collection=NOTE, rkey=RecordKey(rkey), record=record)
        result: CommitResult = author.save(author.repo.apply(list(wishes.values())))
        for op in result.ops:
            self.true[author.did, result.rev, op.path] = op.cid
        return result

    def frame(self, result: CommitResult, **changes: Any) -> bytes:
        fields: dict[str, Any] = {
            "seq": self.next_seq(),
            "repo": result.repo.did,
            "commit": result.commit,
            "rev": result.rev,
            "since": result.since,
            "time": TIME,
            "blocks": result.car,
            "ops": result.ops,
            "prev_data": result.prev_data,
        }
        return encode_commit(**fields | changes)

    # kinds of trouble, and of none

    def honest(self, author: Any) -> list[bytes]:
        return [self.frame(self.write(author)) for _ in range(self.random.randint(1, 4))]

    def lost(self, author: Any) -> list[bytes]:
        self.write(author)
        return []

    def repeated(self, author: Any) -> list[bytes]:
        frame = self.frame(self.write(author))
        return [frame, frame]

    def hidden(self, author: Any) -> list[bytes]:
        result = self.write(author)
        self.lied += 1
        return [self.frame(result, ops=result.ops[:-1])]

    def forged(self, author: Any) -> list[bytes]:
        """A byte of the archive is another one."""
        result = self.write(author)
        blocks = bytearray(result.car)
        blocks[self.random.randrange(70, len(blocks))] ^= 1 << self.random.randrange(8)
        self.lied += 1
        return [self.frame(result, blocks=bytes(blocks))]

    def noise(self, author: Any) -> list[bytes]:
        frame = self.frame(self.write(author))
        return [frame[: self.random.randrange(len(frame))], encode_info("OutdatedCursor")]

    def rotated(self, author: Any) -> list[bytes]:
        author.key = self.key(self.random.choice(list(Curve)))
        author.repo = type(author.repo).load(
            author.repo.commit, author.blocks.get, key=author.key, tids=author.tids
        )
        self.documents[author.did] = author.document()
        told = [encode_identity(seq=self.next_seq(), did=author.did, time=TIME)]
        return (told if self.random.random() < 0.5 else []) + [self.frame(self.write(author))]

    def away(self, author: Any) -> list[bytes]:
        off = encode_account(seq=self.next_seq(), did=author.did, time=TIME, active=False, status="suspended")
        between = self.frame(self.write(author))
        return [off, between, encode_account(seq=self.next_seq(), did=author.did, time=TIME, active=True)]

    def said_again(self, author: Any) -> list[bytes]:
        empty = author.save(author.repo.apply([]))
        blocks = empty.sync_car
        return [encode_sync(seq=self.next_seq(), did=author.did, rev=empty.rev, time=TIME, blocks=blocks)]


KINDS = [
    World.honest, World.honest, World.honest, World.lost, World.repeated, World.hidden, World.forged,
    World.noise, World.rotated, World.away, World.said_again,
]  # fmt: skip


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("seed", range(3))
def test_every_frame_has_one_verdict_and_no_lie_comes_out(author: Any, seed: int, policy: Policy) -> None:
    world = World(seed, type(author))
    frames = world.frames()
    verifier = Verifier(policy=policy)
    verdicts: Counter[Verdict] = Counter()
    for frame in frames:
        judgement = verifier.receive(frame, NOW_MS)
        rounds = 0
        while judgement.needs:
            rounds += 1
            assert rounds <= 2
            for need in judgement.needs:
                verifier.learn(need.did, world.documents[need.did])
            judgement = verifier.receive(frame, NOW_MS)
        assert judgement.verdict is not None
        verdicts[judgement.verdict] += 1
        for record in judgement.records:  # what comes out is what the account wrote in just that commit
            path = f"{record.collection}/{record.rkey}"
            assert world.true[record.did, record.rev, path] == record.cid
        if policy is Policy.STRICT and judgement.verdict is Verdict.DESYNC:  # somebody reads the repository
            mine = next(
                author for author in world.authors if author.did == getattr(judgement.event, "did", 0)
            )
            verifier.adopt(mine.did, rev=mine.repo.rev, data=mine.repo.data)
    # The conservation law: what came in is the sum of what was said of it.
    assert len(frames) == verifier.counters.total() == sum(verdicts.values())
    for verdict in Verdict:
        counted = sum(count for (word, _), count in verifier.counters.items() if word is verdict)
        assert counted == verdicts[verdict]
    assert verdicts[Verdict.ACCEPT] > 10
    assert verdicts[Verdict.SEQ_ERROR] > 0
    assert verdicts[Verdict.INFO] > 0
    if policy is not Policy.LENIENT:
        assert verdicts[Verdict.REJECT] > 0
