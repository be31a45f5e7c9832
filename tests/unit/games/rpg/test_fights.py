"""Blows, spells, effects and the ways of enemies, with dice that fall as told."""

from typing import Any

import pytest

from games.rpg.blows import clash
from games.rpg.classes import Klass, Skill, Stat, born_skills
from games.rpg.fighter import Effect
from games.rpg.hero import Hero


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


@pytest.mark.parametrize(
    ("klass", "skills", "hp", "mp"),
    [
        ("warrior", (63, 47, 43, 45), 15, 8),
        ("scout", (50, 58, 45, 46), 14, 8),
        ("mage", (45, 45, 61, 58), 14, 13),
        ("healer", (48, 45, 49, 58), 16, 13),
    ],
)
def test_what_a_class_is_born_with(scene: Any, klass: str, skills: tuple[int, ...], hp: int, mp: int) -> None:
    hero: Hero = scene.party(klass).heroes[0]
    assert tuple(hero.skills[skill] for skill in Skill) == skills
    assert (hero.hp, hero.max_hp, hero.mp, hero.gold, hero.level) == (hp, hp, mp, 32, 1)


def test_skills_stay_within_1_and_100() -> None:
    assert max(born_skills(dict.fromkeys(Stat, 400)).values()) == 100


@pytest.mark.parametrize(
    ("attack", "dodge", "hits"),
    [
        pytest.param(60, 40, True, id="only-the-attack-succeeds"),
        pytest.param(20, 25, True, id="the-larger-margin-wins"),
        pytest.param(20, 10, True, id="margin-40-beats-20"),
        pytest.param(50, 10, False, id="margin-10-loses-to-20"),
        pytest.param(40, 10, False, id="a-tie-is-the-defenders"),
        pytest.param(70, 90, False, id="both-fail"),
        pytest.param(70, 10, False, id="only-the-dodge-succeeds"),
    ],
)
def test_opposed_rolls(scene: Any, attack: int, dodge: int, hits: bool) -> None:
    scene.dice.rolls = [attack, dodge]
    assert clash(60, 30, scene.dice).hits is hits


@pytest.mark.parametrize(
    ("roll", "damage", "skill"),
    [
        pytest.param(50, 4 + 3, 64, id="a-blow"),
        pytest.param(12, 2 * (4 + 3), 64, id="a-critical-doubles"),
        pytest.param(13, 4 + 3, 64, id="just-no-critical"),
    ],
)
def test_a_blow_wounds_and_teaches(scene: Any, miss: Any, roll: int, damage: int, skill: int) -> None:
    game = scene.party("warrior").room("combat", "goblin", hp=40).play()
    scene.dice.rolls = [roll, 99, 4, *miss]
    events = game.apply(0, {"type": "attack", "target": 1})
    assert game.quest.room.foes[0].hp == 40 - damage
    assert game.quest.heroes[0].skills[Skill.ATTACK] == skill
    assert kinds(events)[:2] == ["wound", "combat"]
    assert scene.dice.rolls == []


def test_a_fumble_hurts_the_attacker_by_half(scene: Any, miss: Any) -> None:
    game = scene.party("warrior").room("combat", "goblin").play()
    scene.dice.rolls = [96, 99, 5, *miss]
    events = game.apply(0, {"type": "attack", "target": 1})
    assert kinds(events)[:2] == ["fumble", "hurt"]
    assert game.quest.heroes[0].hp == 15 - (5 + 3) // 2
    assert game.quest.room.foes[0].hp == 20


@pytest.mark.parametrize(
    ("klass", "foe", "dealt"),
    [
        pytest.param("scout", "skeleton", (6 + 1) // 2, id="bones-mock-piercing"),
        pytest.param("mage", "skeleton", (6 + 1) * 3 // 2, id="bones-break-under-blunt"),
        pytest.param("warrior", "skeleton", 6 + 3, id="slashing-as-usual"),
        pytest.param("warrior", "orc", 6 + 3 - 1, id="an-orc-wears-armour"),
    ],
)
def test_weapons_and_hides(scene: Any, miss: Any, klass: str, foe: str, dealt: int) -> None:
    game = scene.party(klass).room("combat", foe, hp=40).play()
    pick = [1] if foe == "skeleton" else []
    scene.dice.rolls = [40, 99, 6, *pick, *miss] + ([*pick, *miss] if klass == "warrior" else [])
    game.apply(0, {"type": "attack", "target": 1})
    assert game.quest.room.foes[0].hp == 40 - dealt


SPELLS = [
    pytest.param("mage", {"spell": "fireball"}, [3, 4], 3, (11, 11), id="fireball-burns-all"),
    pytest.param("mage", {"spell": "ice_lance", "target": 2}, [3, 4], 2, (0, 15), id="ice-lance"),
    pytest.param("mage", {"spell": "lightning", "target": 1}, [3, 4, 1], 4, (14, 0), id="lightning"),
    pytest.param("healer", {"spell": "smite", "target": 1}, [3, 4], 2, (11, 0), id="smite"),
]


@pytest.mark.parametrize(("klass", "spell", "dice", "mp", "damage"), SPELLS)
def test_spells(
    scene: Any, miss: Any, klass: str, spell: dict[str, Any], dice: list[int], mp: int, damage: Any
) -> None:
    game = scene.party(klass).room("combat", "goblin", "goblin", hp=50).play()
    stunned = spell["spell"] == "lightning"
    scene.dice.rolls = [40, *dice, *miss] + ([] if stunned else [*miss])
    game.apply(0, {"type": "cast", **spell})
    assert tuple(50 - foe.hp for foe in game.quest.room.foes) == damage
    hero = game.quest.heroes[0]
    assert hero.max_mp - hero.mp == mp
    assert scene.dice.rolls == []  # a stunned goblin has not rolled


def test_a_spell_that_fails_costs_as_much_and_at_96_hurts(scene: Any, miss: Any) -> None:
    game = scene.party("mage").room("combat", "goblin", hp=50).play()
    scene.dice.rolls = [96, 1, 1, *miss]
    game.apply(0, {"type": "cast", "spell": "ice_lance", "target": 1})
    hero = game.quest.heroes[0]
    assert (hero.mp, hero.hp, game.quest.room.foes[0].hp) == (11, 14 - (1 + 1 + 4 + 4) // 2, 50)


def test_a_shield_takes_three_off_every_wound_and_runs_out(scene: Any) -> None:
    game = scene.party("healer").room("combat", "orc", hp=60).play(phase="combat")
    scene.dice.rolls = [10, 10, 99, 6]  # the cast; then the orc: attack, dodge, damage (10 is a critical: 12)
    game.apply(0, {"type": "cast", "spell": "shield", "target": 0})
    hero = game.quest.heroes[0]
    assert hero.hp == 16 - (12 - 3)
    for _ in range(3):
        assert hero.armour == 3
        scene.dice.rolls = [90, 90, 1]
        game.apply(0, {"type": "defend"})
    assert hero.armour == 0


def test_defending_makes_dodging_easier_until_the_next_turn(scene: Any) -> None:
    game = scene.party("warrior").room("combat", "orc").play(phase="combat")
    scene.dice.rolls = [40, 50, 6]  # 50 fails against a dodge of 47, not against 67; margin 10 against 17
    game.apply(0, {"type": "defend"})
    assert game.quest.heroes[0].hp == 15
    assert not game.quest.heroes[0].has(Effect.GUARDING)


def test_the_hidden_are_not_struck_and_strike_better(scene: Any, miss: Any) -> None:
    game = scene.party("scout").room("combat", "orc").play(phase="combat")
    scene.dice.rolls = [70]  # 50 and 20 for a scout; then the orc finds nobody
    assert "foe_searches" in kinds(game.apply(0, {"type": "hide"}))
    assert game.request().state["party"][0]["effects"] == ["hidden"]
    scene.dice.rolls = [70, 99, 3, *miss]  # 70 is more than the skill of 50, and at most that and 20
    game.apply(0, {"type": "attack", "target": 1})
    assert game.quest.room.foes[0].hp == 20 - (3 + 1 - 1)
    assert not game.quest.heroes[0].has(Effect.HIDDEN)


def test_goblins_hunt_the_mage_and_a_taunt_draws_them_off(scene: Any) -> None:
    scene.party("warrior", "mage").room("combat", "goblin")
    scene.dice.rolls = [40, 99, 2]  # the goblin is quicker than both
    game = scene.play(phase="combat")
    assert game.quest.heroes[1].hp == 14 - 2
    game.apply(0, {"type": "taunt"})
    scene.dice.rolls = [40, 99, 2]
    game.apply(1, {"type": "defend"})
    assert [hero.hp for hero in game.quest.heroes] == [15 - 2, 14 - 2]


def test_a_goblin_runs_below_a_third_and_that_ends_the_fight(scene: Any) -> None:
    game = scene.party("scout").room("combat", "goblin", hp=20).play()
    game.quest.room.foes[0].hp = 5
    game.quest.room.foes[0].max_hp = 20
    scene.dice.rolls = [90, 90, 1, 90, 90, 1]
    game.apply(0, {"type": "attack", "target": 1})
    events = game.apply(0, {"type": "attack", "target": 1})
    assert "foe_fled" in kinds(events)
    assert game.quest.phase == "exploring"
    assert game.quest.room.cleared


def test_a_hurt_orc_rages_harder_and_wilder(scene: Any) -> None:
    game = scene.party("warrior").room("combat", "orc").play(phase="combat")
    game.quest.room.foes[0].hp = 9
    scene.dice.rolls = [45, 99, 1]  # would hit with 50, not with 40
    game.apply(0, {"type": "defend"})
    assert game.quest.heroes[0].hp == 15
    scene.dice.rolls = [39, 99, 1]
    game.apply(0, {"type": "defend"})
    assert game.quest.heroes[0].hp == 15 - 11


def test_the_boss_hunts_the_healer_then_sweeps_through_all(scene: Any) -> None:
    scene.party("warrior", "healer").room("boss", "warlord", hp=100)
    scene.dice.rolls = [40, 99, 1]
    game = scene.play(phase="combat")
    assert [hero.hp for hero in game.quest.heroes] == [15, 15]
    game.quest.room.foes[0].hp = 50
    game.apply(0, {"type": "defend"})
    scene.dice.rolls = [40, 99, 1, 40, 99, 2]
    events = game.apply(1, {"type": "defend"})
    assert "boss_sweep" in kinds(events)
    assert [hero.hp for hero in game.quest.heroes] == [15 - 1, 15 - 2]


def test_a_bosss_critical_stuns_and_a_stunned_hero_loses_a_turn(scene: Any) -> None:
    scene.party("warrior").room("boss", "warlord", hp=100)
    scene.dice.rolls = [1, 5, 99, 1, 1, 90, 90, 1]
    game = scene.play(phase="combat")
    assert "loses_turn" in kinds(game.story)
    assert game.quest.round == 2


def test_poison_takes_a_hit_point_a_turn_and_can_kill(scene: Any) -> None:
    game = scene.party("scout").room("combat", "skeleton").play(phase="combat")
    scene.dice.rolls = [1, 5, 99, 5]  # whom; a critical: 10
    game.apply(0, {"type": "defend"})
    assert game.quest.heroes[0].hp == 14 - 10 - 1
    game.quest.heroes[0].hp = 1
    scene.dice.rolls = [1, *(90, 90, 1)]
    events = game.apply(0, {"type": "defend"})
    assert {"type": "death", "player": 0, "cause": "poison"} in events
    assert game.outcome().reason == "wipe"


def test_group_moves(scene: Any) -> None:
    game = scene.party("healer", "mage").room("combat", "orc", "orc", hp=60).play(phase="combat")
    game.quest.heroes[1].hp = 1
    scene.dice.rolls = [4]
    game.apply(0, {"type": "mend", "target": 1})
    assert (game.quest.heroes[1].hp, game.quest.heroes[0].mp) == (14, 13 - 5)
    scene.dice.rolls = [1, 8, *(90, 90, 1) * 2]
    game.apply(1, {"type": "storm"})
    assert [60 - foe.hp for foe in game.quest.room.foes] == [9, 16]
    assert game.quest.heroes[1].mp == 13 - 8


def test_experience_of_a_kill_is_shared_and_remembered(scene: Any) -> None:
    game = scene.party("scout", "mage").room("combat", "orc", hp=2).play()
    scene.dice.rolls = [40, 99, 6]
    events = game.apply(0, {"type": "attack", "target": 1})
    assert "kill" in kinds(events)
    assert [hero.xp for hero in game.quest.heroes] == [12 + 50] * 2
    assert [hero.standing["horde"] for hero in game.quest.heroes] == [-3, -3]


def test_a_level_gives_points_and_a_skill(scene: Any) -> None:
    hero: Hero = scene.party("warrior").heroes[0]
    scene.dice.rolls = [1, 2]
    assert hero.learn(310, scene.dice) == 2
    assert (hero.level, hero.max_hp, hero.max_mp) == (3, 15 + 7 + 8, 8 + 5 + 6)
    assert (hero.skills[Skill.ATTACK], hero.skills[Skill.DODGE]) == (63 + 5, 47 + 5)
    assert hero.klass is Klass.WARRIOR


def test_a_death_is_an_event_and_the_dead_are_not_asked(scene: Any) -> None:
    scene.party("mage", "warrior").room("combat", "goblin")
    scene.heroes[0].hp = 2
    scene.dice.rolls = [40, 99, 6]
    game = scene.play(phase="combat")
    assert [(one.player, one.cause, one.turn) for one in game.deaths()] == [(0, "a goblin", 1)]
    assert {"type": "death", "player": 0, "cause": "a goblin", "turn": 1} in game.story
    dead = game.characters()[0]
    assert (dead["dead"], dead["hp"], dead["gold"], dead["items"]) == (True, 0, 0, {})
    assert game.request().player == 1
    assert game.farewell(0)["notice"] == "death"
    assert game.outcome() is None
    with pytest.raises(ValueError, match="alive"):
        game.farewell(1)


@pytest.mark.parametrize(("roll", "raised"), [(29, True), (30, False)])
def test_the_dead_are_called_back_once_for_the_next_adventure(scene: Any, roll: int, raised: bool) -> None:
    game = scene.party("healer", "mage").room("rest").play()
    game.quest.harm(1, 99, "a test")
    game.quest.heroes[1].xp = 90
    scene.dice.rolls = [roll]
    game.apply(0, {"type": "resurrect", "target": 1})
    called = game.characters()[1]
    assert (called["raised"], called["dead"], called["xp"]) == (raised, True, 45 if raised else 90)
    assert called["skills"]["attack"] == (45 - 10 if raised else 45)
    assert called["hp"] == int(raised)
    assert not any(action["type"] == "resurrect" for action in game.request().legal)
