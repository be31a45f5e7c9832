"""Bounds that hold whatever players do: a thousand campaigns of players who do anything."""

import random
from typing import Any

import pytest

from games.rpg import Campaign, Rpg
from games.rpg.classes import MAX_LEVEL, XP_OF_LEVEL
from games.rpg.goods import MAX_GOLD, MAX_OF_EACH
from games.rpg.legal import check_move
from games.rpg.moves import move_to_json, parse_move
from games.rpg.quest import Phase

CAMPAIGNS = 1000
SHARDS = 10  # so that a failure names a part, and the rest still runs


def check_bounds(game: Rpg) -> None:
    quest = game.quest
    for hero in quest.heroes:
        assert 0 <= hero.hp <= hero.max_hp
        assert 0 <= hero.mp <= hero.max_mp
        assert 0 <= hero.gold <= MAX_GOLD
        assert 1 <= hero.level <= MAX_LEVEL
        assert hero.xp >= (0 if hero.raised else XP_OF_LEVEL[hero.level - 1] // 2)
        assert all(1 <= skill <= 100 for skill in hero.skills.values())
        assert all(-100 <= standing <= 100 for standing in hero.standing.values())
        assert all(1 <= count <= MAX_OF_EACH for count in hero.items.values())
        assert hero.dead is (hero.hp == 0) or hero.raised
        assert not (hero.dead and (hero.items or hero.gold or hero.effects))
    for foe in quest.room.foes:
        assert 0 <= foe.hp <= foe.max_hp
    if quest.phase is not Phase.OVER:
        assert not quest.heroes[quest.decider].dead
        assert not quest.away & {*quest.queue, quest.decider}
        assert len(set(quest.queue)) == len(quest.queue)
    if quest.phase is Phase.COMBAT and len(quest.queue) > 1:
        dex = {-foe.id: foe.breed.dex for foe in quest.room.foes}
        dex |= {player: hero.dex for player, hero in enumerate(quest.heroes)}
        order = [dex[who] for who in quest.queue]
        assert order == sorted(order, reverse=True)


def wander(game: Rpg, rng: random.Random) -> None:
    """Play without looking: any legal move, sometimes none, giving up seldom."""
    while game.outcome() is None:
        if game.away and rng.random() < 0.1:
            game.arrive(game.away[0])
            check_bounds(game)
        request_xp = [hero.xp for hero in game.quest.heroes]
        player = game.quest.decider
        moves = game.choices
        assert len(moves) > 1
        move = rng.choice([one for one in moves if one.act != "abandon" or rng.random() < 0.05] or moves)
        if rng.random() < 0.03:
            game.skip(player, "asleep")
        else:
            game.apply(player, move_to_json(move))
        check_bounds(game)
        grown = zip(game.quest.heroes, request_xp, strict=True)
        assert all(hero.xp >= before or hero.raised for hero, before in grown)  # only the raised lose any


@pytest.mark.parametrize("shard", range(SHARDS))
def test_bounds_hold_through_a_thousand_random_campaigns(shard: int) -> None:
    reasons = set()
    for seed in range(shard, CAMPAIGNS, SHARDS):
        rng = random.Random(seed)
        players = 1 + rng.randrange(4)
        adventures = 2 if rng.randrange(4) == 0 else 1
        settings = {"turn_cap": 8 * players}
        campaign = Campaign(players=players, seed=seed, adventures=adventures, settings=settings)
        while campaign.reason is None:
            game = campaign.next_game()
            if players > 1 and seed % 7 == 0:
                game.leave_behind(rng.randrange(players))
            wander(game, rng)
            campaign = campaign.after(game)
            assert len({death.player for death in game.deaths()}) == len(game.deaths())
            assert [event["type"] for event in game.story].count("finished") == 1
            if campaign.reason == "victory":
                assert not game.quest.rooms[-1].has_living_boss
        reasons.add(campaign.reason)
    assert reasons >= {"wipe", "turn_cap"}


def test_what_is_legal_is_accepted_and_reads_back(any_action: Any) -> None:
    for seed in range(12):
        game, rng = Rpg.new(1 + seed % 4, seed, {}), random.Random(seed)
        while (request := game.request()) is not None:
            for entry in request.legal or []:
                move = parse_move(entry)
                assert move_to_json(move) == entry
                check_move(game.quest, request.player, move)
            game.apply(request.player, any_action(request, rng))
