"""Dungeons as they are dealt, and who musters for them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from games import IllegalAction, SettingsInvalid
from games.rpg import Rpg
from games.rpg.classes import BORN, SPREAD, STATS
from games.rpg.dice import SeededDice
from games.rpg.dungeon import RoomKind, danger, deal_dungeon
from games.rpg.enemies import BREEDS, Kind
from games.rpg.factions import mood
from games.rpg.moves import Act


@pytest.mark.parametrize(("heroes", "enemies"), [(1, 2), (2, 3), (3, 3), (4, 4), (6, 6)])
def test_one_alone_faces_twice_the_danger_and_two_half_as_much_again(heroes: int, enemies: int) -> None:
    assert danger(heroes) == enemies


@pytest.mark.parametrize("rooms", [4, 12])
def test_every_dungeon_has_a_fight_and_ends_with_the_boss(rooms: int) -> None:
    kinds: set[RoomKind] = set()
    ambushes = 0
    for seed in range(60):
        dungeon = deal_dungeon(rooms, 3, 1, SeededDice(seed, "dungeon"))
        assert len(dungeon) == len({room.name for room in dungeon}) == rooms
        assert [room.kind for room in dungeon].count(RoomKind.BOSS) == 1
        assert dungeon[-1].has_living_boss
        fights = [room for room in dungeon if room.kind is RoomKind.COMBAT]
        assert fights
        for room in fights:
            assert 2 <= len(room.foes) <= 3
            assert len({foe.kind for foe in room.foes}) == 1
        ambushes += sum(room.is_ambush for room in fights)
        kinds |= {room.kind for room in dungeon}
    assert kinds == set(RoomKind)
    assert ambushes


def test_a_better_party_meets_better_enemies() -> None:
    def boss(level: int, heroes: int) -> Any:
        return deal_dungeon(4, heroes, level, SeededDice(1, "dungeon"))[-1].foes[0]

    assert boss(5, 3).hp > boss(1, 3).hp > BREEDS[Kind.BOSS].hp // 2
    assert boss(5, 3).attack > boss(1, 3).attack
    assert boss(1, 6).hp > boss(1, 3).hp


def test_a_party_has_every_class_before_any_twice_and_stats_near_its_own() -> None:
    for seed in range(30):
        heroes = Rpg.new(6, seed, {}).quest.heroes
        assert len({hero.klass for hero in heroes[:4]}) == 4
        assert len({hero.id for hero in heroes}) == 6
        for hero in heroes:
            for stat, born in zip(STATS, BORN[hero.klass], strict=True):
                assert abs(hero.stats[stat] - born) <= SPREAD


@pytest.mark.parametrize(
    ("standing", "word"),
    [
        (-100, "hostile"),
        (-51, "hostile"),
        (-50, "unfriendly"),
        (-10, "unfriendly"),
        (-9, "neutral"),
        (9, "neutral"),
        (10, "friendly"),
        (49, "friendly"),
        (50, "allied"),
        (100, "allied"),
    ],
)
def test_moods(standing: int, word: str) -> None:
    assert mood(standing) == word


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=20)
    | st.sampled_from([act.value for act in Act]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["type", "target", "item", "spell", "approach", "messages", "to", "text"])
ACTIONS = JSON | st.dictionaries(FIELDS, JSON | st.integers(-2, 3), max_size=4)


@settings(max_examples=300, deadline=None)
@given(ACTIONS)
def test_whatever_is_sent_is_an_action_or_refused(value: Any) -> None:
    game = Rpg.new(2, 1, {})
    player, log = game.quest.decider, game.log_sha256()
    refusal = None
    try:
        game.apply(player, value)
    except IllegalAction as error:
        refusal = error.reason
    assert (game.log_sha256() == log) is (refusal is not None)
    assert refusal is None or 0 < len(refusal) < 400


@settings(max_examples=150, deadline=None)
@given(JSON | st.dictionaries(st.sampled_from(["id", "class", "hp", "items", "ancestors", "dead"]), JSON))
def test_whatever_comes_as_a_character_is_one_or_refused(value: Any) -> None:
    character = Rpg.new(1, 0, {}).characters()[0]
    broken = character | value if isinstance(value, dict) else value
    refusal = None
    try:
        assert Rpg.new(1, 0, {"characters": [broken]}).request() is not None
    except SettingsInvalid as error:
        refusal = str(error)
    assert refusal is None or "characters" in refusal
