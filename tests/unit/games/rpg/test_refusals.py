"""What is refused, by name, and that a refusal changes nothing."""

import copy
from typing import Any

import pytest

from games import IllegalAction, SettingsInvalid
from games.rpg import Rpg

FORM = [
    pytest.param("attack", "JSON object", id="no-object"),
    pytest.param({}, "no such action", id="no-type"),
    pytest.param({"type": "win"}, "no such action", id="unknown"),
    pytest.param({"type": ["attack"]}, "no such action", id="type-is-a-list"),
    pytest.param({"type": "attack"}, "needs 'target'", id="no-target"),
    pytest.param({"type": "attack", "target": "1"}, "whole number", id="target-is-text"),
    pytest.param({"type": "attack", "target": True}, "whole number", id="target-is-a-boolean"),
    pytest.param({"type": "attack", "target": 1, "damage": 99}, "has no 'damage'", id="one-field-more"),
    pytest.param({"type": "cast", "target": 1}, "needs 'spell'", id="no-spell"),
    pytest.param({"type": "wait", "messages": "hi"}, "'messages'", id="messages-no-list"),
    pytest.param({"type": "wait", "messages": [{"to": "@party"}]}, "'to' and 'text'", id="message-no-text"),
    pytest.param(
        {"type": "wait", "messages": [{"to": "all", "text": "x"}]}, "goes to", id="message-to-nobody"
    ),
    pytest.param(
        {"type": "wait", "messages": [{"to": "@7", "text": "x"}]}, "goes to", id="message-to-no-seat"
    ),
    pytest.param(
        {"type": "wait", "messages": [{"to": "@3", "text": "x"}]}, "no player @3", id="not-in-party"
    ),
    pytest.param(
        {"type": "wait", "messages": [{"to": "@dm", "text": "x" * 501}]}, "500", id="message-too-long"
    ),
    pytest.param(
        {"type": "wait", "messages": [{"to": "@dm", "text": "x"}] * 3}, "at most 2", id="three-messages"
    ),
]
EXPLORING = [  # scout first, before a goblin and an orc
    pytest.param({"type": "buy", "item": "potion"}, "not for exploring", id="no-shop-here"),
    pytest.param({"type": "flee"}, "not for exploring", id="no-fight-to-flee"),
    pytest.param({"type": "advance"}, "enemies hold this room", id="past-enemies"),
    pytest.param({"type": "rest"}, "not safe", id="rest-among-enemies"),
    pytest.param({"type": "search"}, "nothing to search", id="search"),
    pytest.param({"type": "disarm"}, "no armed trap", id="no-trap"),
    pytest.param({"type": "solve"}, "no puzzle", id="no-puzzle"),
    pytest.param({"type": "overcome", "approach": "check"}, "no barrier", id="no-barrier"),
    pytest.param({"type": "attack", "target": 9}, "no enemy 9", id="no-such-enemy"),
    pytest.param({"type": "attack", "target": -1}, "no enemy -1", id="negative-enemy"),
    pytest.param({"type": "cast", "spell": "wish"}, "no such spell", id="no-such-spell"),
    pytest.param({"type": "cast", "spell": "fireball"}, "a scout does not cast", id="wrong-class-spell"),
    pytest.param({"type": "mend", "target": 0}, "for a healer", id="wrong-class-mend"),
    pytest.param({"type": "resurrect", "target": 1}, "for a healer", id="wrong-class-resurrect"),
    pytest.param({"type": "drink", "item": "draught"}, "no draught", id="nothing-to-drink"),
    pytest.param({"type": "drink", "item": "potion"}, "need no potion", id="not-thirsty"),
    pytest.param({"type": "drink", "item": "mail"}, "can be drunk", id="mail-is-no-drink"),
]


def refused(game: Rpg, player: Any, action: Any, word: str) -> None:
    before, story = copy.deepcopy(game.quest), game.story
    with pytest.raises(IllegalAction) as caught:
        game.apply(player, action)
    assert word in caught.value.reason
    assert game.quest == before
    assert (game.story, game.log) == (story, [])


@pytest.mark.parametrize(("action", "word"), FORM)
def test_the_form_of_an_action(scene: Any, action: Any, word: str) -> None:
    refused(scene.party("scout").room("rest").play(), 0, action, word)


@pytest.mark.parametrize(("action", "word"), EXPLORING)
def test_what_cannot_be_done_before_enemies(scene: Any, action: Any, word: str) -> None:
    refused(scene.party("scout", "mage").room("combat", "goblin", "orc").play(), 0, action, word)


@pytest.mark.parametrize(("player", "word"), [(1, "player 0's decision"), (7, "player 0"), ("0", "player 0")])
def test_out_of_turn(scene: Any, player: Any, word: str) -> None:
    refused(scene.party("scout", "mage").room("rest").play(), player, {"type": "wait"}, word)


@pytest.mark.parametrize(
    ("klass", "mp", "action", "word"),
    [
        ("mage", 7, {"type": "storm"}, "storm needs 8 magic points, you have 7"),
        ("mage", 1, {"type": "cast", "spell": "ice_lance", "target": 1}, "needs 2 magic points"),
        ("healer", 4, {"type": "mend", "target": 1}, "mend needs 5 magic points"),
        ("healer", 3, {"type": "resurrect", "target": 1}, "resurrect needs 4 magic points"),
    ],
)
def test_too_little_magic(scene: Any, klass: str, mp: int, action: Any, word: str) -> None:
    scene.party(klass, "warrior").room("combat", "orc")
    scene.heroes[0].mp, scene.heroes[1].hp = mp, 3
    scene.heroes[0].stats["dex"] = 90
    refused(scene.play(phase="combat"), 0, action, word)


@pytest.mark.parametrize(("klass", "act"), [("warrior", "taunt"), ("mage", "storm"), ("healer", "mend")])
def test_group_moves_need_a_party(scene: Any, klass: str, act: str) -> None:
    game = scene.party(klass).room("combat", "orc").play(phase="combat")
    target = {"target": 0} if act == "mend" else {}
    refused(game, 0, {"type": act} | target, "needs a party")


@pytest.mark.parametrize(
    ("act", "phase"), [("advance", "exploring"), ("sneak", "exploring"), ("flee", "combat")]
)
def test_nobody_leaves_past_a_living_boss(scene: Any, act: str, phase: str) -> None:
    scene.party("scout").room("rest").room("boss", "warlord")
    game = scene.play()
    game.apply(0, {"type": "advance"})
    if phase == "combat":
        scene.dice.rolls = [90, 90, 1, 1, 90, 90, 1]
        game.apply(0, {"type": "attack", "target": 1})
    before = copy.deepcopy(game.quest)
    with pytest.raises(IllegalAction, match="boss"):
        game.apply(0, {"type": act})
    assert game.quest == before
    assert game.outcome() is None
    assert act not in [action["type"] for action in game.request().legal]


def test_neither_the_dead_nor_the_warlord_bargain(scene: Any) -> None:
    refused(scene.party("scout").room("combat", "skeleton").play(), 0, {"type": "negotiate"}, "bargain")


@pytest.mark.parametrize(
    ("kind", "word"),
    [("puzzle", "the puzzle bars the way"), ("barrier", "the barrier bars the way")],
)
def test_nobody_leaves_through_what_is_closed(scene: Any, kind: str, word: str) -> None:
    refused(scene.party("scout").room(kind, klass="mage").play(), 0, {"type": "advance"}, word)


@pytest.mark.parametrize(
    ("klass", "approach", "word"),
    [
        ("scout", "class", "opens to a mage, not to a scout"),
        ("scout", "force", "force is for a warrior"),
        ("mage", "prayer", "the ways through"),
    ],
)
def test_the_wrong_way_through_a_barrier(scene: Any, klass: str, approach: str, word: str) -> None:
    game = scene.party(klass).room("barrier", klass="mage").play()
    refused(game, 0, {"type": "overcome", "approach": approach}, word)


def test_mana_and_force_must_be_there_to_be_spent(scene: Any) -> None:
    scene.party("warrior").room("barrier", klass="mage")
    scene.heroes[0].hp, scene.heroes[0].mp = 3, 3
    game = scene.play()
    refused(game, 0, {"type": "overcome", "approach": "force"}, "a fifth of your hit points")
    refused(game, 0, {"type": "overcome", "approach": "mana"}, "needs 4 magic points, you have 3")


@pytest.mark.parametrize(
    ("item", "gold", "standing", "word"),
    [
        ("mail", 32, 0, "mail costs 60 gold, you have 32"),
        ("keen_edge", 32, -10, "keen_edge costs 37 gold"),
        ("potion", 32, -60, "sells you nothing"),
        ("crown", 32, 0, "the shop has"),
        ("potion", 0, 0, "potion costs 10"),
    ],
)
def test_what_the_shop_refuses(scene: Any, item: str, gold: int, standing: int, word: str) -> None:
    scene.party("warrior")
    scene.heroes[0].gold, scene.heroes[0].standing["town"] = gold, standing
    refused(scene.play(phase="town"), 0, {"type": "buy", "item": item}, word)


def test_two_messages_in_a_round_and_no_more(scene: Any) -> None:
    game = scene.party("scout", "mage").room("combat", "goblin").play()
    message = {"to": "@party", "text": "wait"}
    game.apply(0, {"type": "wait", "messages": [message, message]})
    assert game.request().state["messages"] == [{"from": 0, **message}] * 2
    before = copy.deepcopy(game.quest)
    game.quest.said[1] = 1
    with pytest.raises(IllegalAction, match="only 1 messages are left"):
        game.apply(1, {"type": "wait", "messages": [message, message]})
    game.quest.said = before.said
    assert game.quest == before


@pytest.mark.parametrize(
    ("players", "settings", "word"),
    [
        (0, {}, "players"),
        (7, {}, "players"),
        (True, {}, "players"),
        (3, {"level": 8}, "level"),
        (3, {"rooms": 3}, "rooms"),
        (3, {"turn_cap": 10.5}, "turn_cap"),
        (3, {"adventure": 2}, "adventure"),
        (3, {"characters": []}, "characters"),
        (2, {"characters": [None, {}]}, r"characters\[1\]"),
    ],
)
def test_a_setting_that_cannot_be_is_named(players: Any, settings: dict[str, Any], word: str) -> None:
    with pytest.raises(SettingsInvalid, match=word):
        Rpg.new(players, 0, settings)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"hp": 10_000}, r"characters\[0\].hp"),
        ({"hp": 0}, "hp"),
        ({"xp": -1}, "xp"),
        ({"class": "king"}, "class"),
        ({"skills": {"attack": 101}}, "skills"),
        ({"items": {"potion": 10}}, "items"),
        ({"items": {"crown": 1}}, "items"),
        ({"standing": {}}, "standing"),
        ({"raised": True}, "dead"),
        ({"ancestors": [{}]}, "ancestors"),
        ({"id": "\x1b[31m"}, "id"),
        ({"wings": 2}, "wings"),
        ({"max_hp": 1}, "more points"),
    ],
)
def test_a_character_that_cannot_be_is_named(change: dict[str, Any], word: str) -> None:
    character = Rpg.new(1, 0, {}).characters()[0]
    with pytest.raises(SettingsInvalid, match=word):
        Rpg.new(1, 0, {"characters": [character | change]})
