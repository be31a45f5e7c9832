"""A dungeon crawl by percentile dice for 1 to 6 players whose heroes grow and die, and campaigns of them."""

from games.rpg.campaign import Campaign
from games.rpg.game import Rpg
from games.rpg.papers import parse_hero
from games.rpg.quest import Reason
from games.rpg.view import MAX_STATE_BYTES

__all__ = ["MAX_STATE_BYTES", "Campaign", "Reason", "Rpg", "parse_hero"]
