"""An adventure as it stands: the state that the rules read and the moves change."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from games.rpg.classes import Skill, Stat
from games.rpg.dice import Dice
from games.rpg.dungeon import Room, RoomKind
from games.rpg.enemies import Enemy
from games.rpg.fighter import Effect
from games.rpg.hero import Hero
from games.rpg.messages import MAX_PER_ROUND, Message
from games.rpg.settings import Settings
from games.rules import Death, GameEvent

ROOM_XP: Final = 50
KEPT_MESSAGES: Final = 12


class Phase(StrEnum):
    """What is going on."""

    TOWN = "town"  # before the dungeon
    EXPLORING = "exploring"
    COMBAT = "combat"
    OVER = "over"


class Reason(StrEnum):
    """How an adventure ends."""

    VICTORY = "victory"
    WIPE = "wipe"
    ABANDONED = "abandoned"
    TURN_CAP = "turn_cap"


@dataclass(slots=True, kw_only=True)
class Quest:
    """Everything about one adventure. Moves change it in place, after they were found legal.

    `queue` is who still acts in this round: players from 0, enemies as their negative id.
    """

    settings: Settings
    heroes: list[Hero]
    rooms: list[Room]
    phase: Phase = Phase.TOWN
    place: int = 0  # index of the room
    queue: list[int] = field(default_factory=list)
    begun: bool = False  # the first in the queue has had its effects counted down
    round: int = 0
    turn: int = 1  # number of the decision that is being played
    away: set[int] = field(default_factory=set)  # players who are not here yet
    ready: set[int] = field(default_factory=set)  # who wants to go on, in town or in this room
    quitting: set[int] = field(default_factory=set)  # who wants to give up
    idle: int = 0  # turns in a row in which nobody did anything in town
    silent: int = 0  # skips in a row, of all players
    said: dict[int, int] = field(default_factory=dict)  # messages in this round
    messages: list[tuple[int, Message]] = field(default_factory=list)
    repeats: dict[int, tuple[str, int]] = field(default_factory=dict)  # a player's same fruitless action
    fled: set[int] = field(default_factory=set)  # rooms whose lesson was learned by running
    deaths: list[Death] = field(default_factory=list)
    events: list[GameEvent] = field(default_factory=list)  # of the decision that is being played
    reason: Reason | None = None

    @property
    def room(self) -> Room:
        """Where the party is."""
        return self.rooms[self.place]

    @property
    def decider(self) -> int:
        """The player whose decision is next."""
        return self.queue[0]

    def living(self) -> list[int]:
        """The players who are here and whose heroes live, in party order: the quickest first."""
        alive = [
            player for player, hero in enumerate(self.heroes) if not hero.dead and player not in self.away
        ]
        return sorted(alive, key=lambda player: (-self.heroes[player].dex, player))

    def survivors(self) -> list[Hero]:
        """The heroes who are here and live, in party order."""
        return [self.heroes[player] for player in self.living()]

    def enemy(self, identity: int) -> Enemy | None:
        """The enemy with this id, if it is still here."""
        return next((foe for foe in self.room.here() if foe.id == identity), None)

    def tell(self, kind: str, /, **facts: object) -> None:
        """Something happened."""
        self.events.append({"type": kind} | facts)

    def messages_left(self, player: int) -> int:
        """How many messages this player may still send in this round."""
        return MAX_PER_ROUND - self.said.get(player, 0)

    def say(self, player: int, message: Message) -> None:
        """Deliver a message; one for a single player is not told to all."""
        self.said[player] = self.said.get(player, 0) + 1
        self.messages = [*self.messages, (player, message)][-KEPT_MESSAGES:]
        text = {} if message.player is not None else {"text": message.text}
        self.tell("message", player=player, to=message.to, **text)

    def new_round(self) -> None:
        """Everybody who acts in this phase gets in line."""
        self.round += 1
        self.said = {}
        self.begun = False
        living = self.living()
        match self.phase:
            case Phase.TOWN:
                self.queue = [player for player in living if player not in self.ready]
            case Phase.COMBAT:
                sides = [(-self.heroes[player].dex, 0, player) for player in living]
                sides += [(-foe.breed.dex, foe.id, -foe.id) for foe in self.room.here()]
                self.queue = [who for _, _, who in sorted(sides)]
            case _:
                self.queue = [player for player in living if player not in self.ready]

    def restart_round(self) -> None:
        """The line dissolves: where the party is or what it does has changed."""
        self.queue, self.begun = [], False

    def hurt(self, player: int, damage: int, cause: str) -> None:
        """Take hit points from a hero after its armour; at 0 it dies."""
        hero = self.heroes[player]
        damage = max(0, damage - hero.armour)
        self.harm(player, damage, cause)

    def harm(self, player: int, damage: int, cause: str) -> None:
        """Take hit points from a hero, armour or not; at 0 it dies, and that is an event of its own."""
        hero = self.heroes[player]
        if hero.dead:
            return
        hero.hp = max(0, hero.hp - damage)
        self.tell("hurt", player=player, damage=damage, hp=hero.hp, cause=cause)
        if hero.hp:
            return
        hero.die(cause)
        self.ready.discard(player)
        self.quitting.discard(player)
        self.deaths.append(Death(player=player, cause=cause, turn=self.turn))
        self.tell("death", player=player, cause=cause)

    def reward(self, player: int, xp: int, dice: Dice) -> None:
        """Give experience to one living hero."""
        hero = self.heroes[player]
        if not hero.dead and xp > 0 and hero.learn(xp, dice):
            self.tell("level", player=player, level=hero.level)

    def reward_all(self, xp: int, why: str, dice: Dice) -> None:
        """Give the same experience to every living hero."""
        self.tell("experience", each=xp, why=why)
        for player in self.living():
            self.reward(player, xp, dice)

    def check(self, player: int, skill: Skill, bonus: int, dice: Dice) -> bool:
        """Roll d100 against a hero's skill plus `bonus`; a success makes the skill grow."""
        hero = self.heroes[player]
        if dice.roll(100) > hero.skills[skill] + bonus:
            return False
        hero.grow(skill)
        return True

    def clear_room(self, dice: Dice) -> None:
        """Nothing stands in the way any more; the first time that is worth experience."""
        if not self.room.cleared:
            self.room.cleared = True
            self.tell("cleared", room=self.place + 1)
            self.reward_all(ROOM_XP, "room", dice)

    def end_combat(self) -> None:
        """Back to exploring; what lasts for a fight ends with it."""
        self.phase = Phase.EXPLORING
        for fighter in (*self.heroes, *self.room.foes):
            fighter.effects = {}
        self.ready, self.repeats = set(), {}
        self.restart_round()

    def begin_combat(self, *, ambush: bool = False) -> None:
        """Everybody here fights, the quickest first; out of an ambush the enemies have a round before."""
        self.phase = Phase.COMBAT
        self.ready, self.repeats = set(), {}
        self.restart_round()
        foes = sorted(self.room.here(), key=lambda foe: (-foe.breed.dex, foe.id))
        self.queue = [-foe.id for foe in foes] if ambush else []
        self.tell("combat", room=self.place + 1, foes=[foe.kind.value for foe in foes], ambush=ambush)

    def is_hidden(self, player: int) -> bool:
        """Whether no enemy sees this hero."""
        return self.heroes[player].has(Effect.HIDDEN)

    def spell_bonus(self, player: int) -> int:
        """What a caster's mind adds to a spell."""
        return self.heroes[player].stats[Stat.INT] // 20

    def bars_the_way(self) -> str | None:
        """Why the party cannot go on, or None."""
        room = self.room
        if room.has_living_boss:
            return "the boss lives: nobody leaves past it"
        if room.here():
            return "enemies hold this room: fight, sneak or talk"
        if room.kind is RoomKind.PUZZLE and not room.cleared:
            return "the puzzle bars the way"
        if room.kind is RoomKind.BARRIER and not room.cleared:
            return "the barrier bars the way"
        return None
