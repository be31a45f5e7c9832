"""The town, the rooms, talk and flight, silence: with dice that fall as told."""

from typing import Any

import pytest


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


# -- town ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("standing", "gold"), [(0, 10), (-10, 12), (10, 9), (50, 8)])
def test_the_towns_mood_makes_the_price(scene: Any, standing: int, gold: int) -> None:
    scene.party("warrior")
    scene.heroes[0].standing["town"] = standing
    game = scene.play(phase="town")
    assert game.request().state["shop"]["potion"] == gold
    game.apply(0, {"type": "buy", "item": "potion"})
    hero = game.quest.heroes[0]
    assert (hero.gold, hero.items["potion"]) == (32 - gold, 2)


def test_what_is_bought_is_worn_and_swung(scene: Any, miss: Any) -> None:
    scene.party("scout").room("combat", "skeleton", hp=40)
    scene.heroes[0].gold = 200
    game = scene.play(phase="town")
    for item in ("leather", "mail", "hammer"):
        game.apply(0, {"type": "buy", "item": item})
    hero = game.quest.heroes[0]
    assert (hero.armour, hero.extra_damage, hero.weapon, hero.gold) == (2, 1, "blunt", 80)
    game.apply(0, {"type": "depart"})
    scene.dice.rolls = [40, 99, 4, 1, 40, 99, 5]
    game.apply(0, {"type": "attack", "target": 1})
    assert game.quest.room.foes[0].hp == 40 - (4 + 1 + 1) * 3 // 2
    assert hero.hp == 14


def test_the_party_leaves_when_all_are_ready_or_after_five_idle_turns(scene: Any) -> None:
    game = scene.party("scout", "mage").room("rest").play(phase="town")
    game.apply(0, {"type": "depart"})
    assert game.quest.phase == "town"
    for _ in range(5):
        assert game.quest.phase == "town"
        game.apply(1, {"type": "wait"})
    assert game.quest.phase == "exploring"


# -- rooms --------------------------------------------------------------------------------------------------


def test_a_rest_room_gives_two_and_one_and_so_does_each_rest(scene: Any) -> None:
    scene.party("mage").room("rest").room("rest").room("rest")
    scene.heroes[0].hp, scene.heroes[0].mp = 1, 1
    game = scene.play()
    game.apply(0, {"type": "advance"})
    hero = game.quest.heroes[0]
    assert (hero.hp, hero.mp) == (3, 2)
    for _ in range(2):
        game.apply(0, {"type": "rest"})
    assert (hero.hp, hero.mp) == (7, 4)
    assert "rest" not in [action["type"] for action in game.request().legal]


def test_the_party_goes_on_by_majority(scene: Any) -> None:
    game = scene.party("scout", "warrior", "mage").room("rest").room("rest").play()
    game.apply(0, {"type": "advance"})
    game.apply(1, {"type": "wait"})
    assert game.quest.place == 0
    game.apply(2, {"type": "advance"})
    assert game.quest.place == 1


@pytest.mark.parametrize(
    ("classes", "roll", "works"),
    [
        pytest.param(["scout", "mage"], 76, True, id="a-scout-in-company"),
        pytest.param(["scout", "mage"], 77, False, id="not-that-good"),
        pytest.param(["scout"], 47, False, id="a-scout-alone"),
        pytest.param(["mage"], 58, True, id="a-mage"),
    ],
)
def test_a_trap_is_disarmed_or_springs(scene: Any, classes: list[str], roll: int, works: bool) -> None:
    game = scene.party(*classes).room("trap").play()
    scene.dice.rolls = [roll] if works else [roll, 4]
    game.apply(0, {"type": "disarm"})
    hero = game.quest.heroes[0]
    assert hero.max_hp - hero.hp == (0 if works else 6)
    assert hero.xp == (25 if works else 0) + 50
    assert game.quest.room.cleared


def test_walking_through_a_trap_springs_it_on_all_who_do_not_dodge(scene: Any) -> None:
    game = scene.party("scout", "mage").room("trap").room("rest").play()
    game.apply(0, {"type": "advance"})
    scene.dice.rolls = [58, 90, 6]
    game.apply(1, {"type": "advance"})
    assert [hero.max_hp - hero.hp for hero in game.quest.heroes] == [0, 8 - 2]  # the rest room gives two back


def test_a_death_in_the_trap_is_a_death(scene: Any) -> None:
    scene.party("mage", "healer").room("trap").room("rest")
    scene.heroes[0].hp = 3
    game = scene.play()
    scene.dice.rolls = [99, 1]
    events = game.apply(0, {"type": "disarm"})
    assert {"type": "death", "player": 0, "cause": "a trap"} in events
    assert game.request().player == 1


def test_treasure_is_searched_once_each(scene: Any) -> None:
    game = scene.party("scout", "mage").room("treasure").play()
    scene.dice.rolls = [46, 20, 1]
    game.apply(0, {"type": "search"})
    hero = game.quest.heroes[0]
    assert (hero.gold, hero.items["potion"], hero.xp) == (32 + 30, 2, 10)
    scene.dice.rolls = [90]
    game.apply(1, {"type": "search"})
    assert game.quest.heroes[1].gold == 32
    assert "search" not in [action["type"] for action in game.request().legal]


def test_a_puzzle_gives_way_after_five_vain_tries_with_hints_before(scene: Any) -> None:
    game = scene.party("warrior").room("puzzle").play()
    for times in range(1, 6):
        scene.dice.rolls = [90]
        events = game.apply(0, {"type": "solve"})
        assert ("hint" in kinds(events)) is (times in (3, 5))
        assert ("pushed_on" in kinds(events)) is (times == 5)
        if times in (3, 4):
            assert "try something else" in game.request().state["hint"]
    assert game.quest.room.cleared
    assert game.quest.heroes[0].xp == 50  # the room's, not the puzzle's


def test_a_solved_puzzle_is_worth_thirty(scene: Any) -> None:
    game = scene.party("warrior", "mage").room("puzzle").play()
    scene.dice.rolls = [45]
    game.apply(0, {"type": "solve"})
    assert [hero.xp for hero in game.quest.heroes] == [80, 80]


@pytest.mark.parametrize(
    ("klass", "approach", "left"),
    [("mage", "class", (14, 13)), ("warrior", "force", (12, 8)), ("healer", "mana", (16, 7))],
)
def test_ways_through_a_barrier(scene: Any, klass: str, approach: str, left: tuple[int, int]) -> None:
    game = scene.party(klass).room("barrier", klass="mage").play()
    game.apply(0, {"type": "overcome", "approach": approach})
    hero = game.quest.heroes[0]
    assert (hero.hp, hero.mp) == left
    assert game.quest.room.cleared


def test_a_barrier_crumbles_at_the_fifth_failure_of_all(scene: Any) -> None:
    game = scene.party("scout", "warrior").room("barrier", klass="mage").play()
    for attempt in range(1, 6):
        assert not game.quest.room.cleared
        scene.dice.rolls = [31]
        events = game.apply(game.quest.decider, {"type": "overcome", "approach": "check"})
        assert ("crumbles" in kinds(events)) is (attempt == 5)
    assert game.quest.room.cleared


# -- enemies, without a fight -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("standing", "roll", "works"), [(0, 45, True), (0, 46, False), (10, 55, True), (-60, 26, False)]
)
def test_talk(scene: Any, miss: Any, standing: int, roll: int, works: bool) -> None:
    scene.party("scout").room("combat", "goblin", "goblin")
    scene.heroes[0].standing["clans"] = standing
    game = scene.play()
    scene.dice.rolls = [roll] if works else [roll, *miss, *miss]
    game.apply(0, {"type": "negotiate"})
    hero = game.quest.heroes[0]
    if works:
        assert game.quest.room.cleared
        assert hero.xp == 2 * 25 * 75 // 100 + 50
        assert hero.standing["clans"] == standing + 10
    else:
        assert game.quest.phase == "combat"
        assert "negotiate" not in [action["type"] for action in game.request().legal]


@pytest.mark.parametrize(
    ("klass", "roll", "works"), [("scout", 70, True), ("mage", 50, True), ("mage", 51, False)]
)
def test_sneaking(scene: Any, miss: Any, klass: str, roll: int, works: bool) -> None:
    game = scene.party(klass).room("combat", "orc").room("rest").play()
    scene.dice.rolls = [roll] if works else [roll, *miss]
    events = game.apply(0, {"type": "sneak"})
    assert game.quest.place == int(works)
    assert ("combat" in kinds(events)) is not works
    assert game.quest.heroes[0].xp == 0


def test_only_the_weak_are_frightened(scene: Any) -> None:
    game = scene.party("scout").room("combat", "goblin", "orc").play()
    scene.dice.rolls = [45, 90, 90, 1]
    game.apply(0, {"type": "intimidate"})
    assert [foe.condition() for foe in game.quest.room.foes] == ["fled", "unhurt"]
    assert game.quest.phase == "combat"


def test_flight_leads_one_room_back_and_teaches_once(scene: Any, miss: Any) -> None:
    scene.party("scout", "mage").room("rest").room("combat", "orc")
    game = scene.play()
    for player in (0, 1):
        game.apply(player, {"type": "advance"})
    for turn in range(2):
        scene.dice.rolls = [90, 90, 1]
        game.apply(0, {"type": "attack", "target": 1})
        scene.dice.rolls = [50]
        game.apply(0, {"type": "flee"})
        assert (game.quest.place, game.quest.phase) == (0, "exploring")
        assert [hero.xp for hero in game.quest.heroes] == [10, 10], turn
        for player in (0, 1):
            game.apply(player, {"type": "advance"})
        assert game.quest.room.here()


def test_an_ambush_gives_the_enemies_a_round_of_their_own(scene: Any) -> None:
    scene.party("scout").room("rest").room("combat", "orc", ambush=True)
    game = scene.play()
    scene.dice.rolls = [40, 99, 3]  # though the scout is quicker
    game.apply(0, {"type": "advance"})
    assert game.quest.heroes[0].hp == 14 - 3
    assert game.request().player == 0


def test_a_fight_in_which_nothing_works_is_moved_on_at_seven(scene: Any, miss: Any) -> None:
    game = scene.party("scout").room("combat", "orc", hp=60).play(phase="combat")
    for times in range(1, 8):
        scene.dice.rolls = [90, 90, 1, *([5] if times == 7 else []), *miss]
        game.apply(0, {"type": "attack", "target": 1})
    assert game.quest.room.foes[0].hp == 55


# -- messages, endings --------------------------------------------------------------------------------------


def test_a_whisper_is_for_one_and_hostile_text_is_made_plain(scene: Any) -> None:
    game = scene.party("scout", "warrior", "mage").room("rest").room("rest").play()
    words = [{"to": "@2", "text": "\x1b[31mpst\x00\n"}, {"to": "@dm", "text": "<script>*hi*\ud800"}]
    events = game.apply(0, {"type": "wait", "messages": words})
    assert {"type": "message", "player": 0, "to": "@2"} in events
    assert [one["text"] for one in game.request().state["messages"]] == ["<script>*hi* "]
    game.apply(1, {"type": "wait"})
    assert [one["text"] for one in game.request().state["messages"]] == [" [31mpst  ", "<script>*hi* "]
    text = game.chronicle(["Ann", "# Bob\n", "[Cid](x)"])
    assert "\\<script\\>\\*hi\\*" in text
    assert "pst" not in text
    assert "\n# Bob" not in text
    assert "\\[Cid\\]\\(x\\)" in text


@pytest.mark.parametrize("act", ["abandon", "skip"])
def test_giving_up_and_silence_end_it_once(scene: Any, act: str) -> None:
    scene.settings["silent_rounds"] = 1
    game = scene.party("scout", "mage").room("combat", "orc").play()
    events = game.apply(0, {"type": "abandon"}) if act == "abandon" else game.skip(0, "asleep")
    assert game.outcome() is None
    events = game.apply(1, {"type": "abandon"}) if act == "abandon" else game.skip(1, "asleep")
    assert kinds(events).count("finished") == 1
    assert game.outcome().reason == "abandoned"
    assert game.request() is None


def test_who_changes_their_mind_goes_on(scene: Any) -> None:
    game = scene.party("scout", "mage").room("combat", "orc").play()
    game.apply(0, {"type": "abandon"})
    game.apply(1, {"type": "wait"})
    game.apply(0, {"type": "wait"})
    game.apply(1, {"type": "abandon"})
    assert game.outcome() is None


def test_the_silent_follow_and_take_cover(scene: Any, miss: Any) -> None:
    game = scene.party("scout").room("puzzle").room("combat", "orc").play()
    scene.dice.rolls = [1]
    assert kinds(game.skip(0, "late"))[:2] == ["skipped", "solve"]
    game.apply(0, {"type": "advance"})
    scene.dice.rolls = [90, 90, 1, *miss]
    game.apply(0, {"type": "attack", "target": 1})
    scene.dice.rolls = [*miss]
    assert kinds(game.skip(0, "late"))[:2] == ["skipped", "defend"]


def test_victory_lies_behind_the_last_room_once_the_boss_is_dead(scene: Any) -> None:
    game = scene.party("warrior").room("boss", "warlord", hp=1).play()
    scene.dice.rolls = [40, 99, 6, 1]  # the last: which skill the second level betters
    game.apply(0, {"type": "attack", "target": 1})
    assert game.outcome() is None
    scene.dice.rolls = [1]
    game.apply(0, {"type": "advance"})
    assert game.outcome().reason == "victory"
    hero = game.quest.heroes[0]
    assert hero.xp == 100 + 50 + 200
    assert (hero.gold, hero.standing["town"], hero.standing["horde"]) == (32 + 25, 1 + 10, -3)
