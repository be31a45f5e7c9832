"""The board as a picture and as text."""

import re
from xml.etree import ElementTree

import pytest

from games.catan import Catan

SVG = "{http://www.w3.org/2000/svg}"
NAMES = ["alice", "bob", "carol", "dave"]


@pytest.fixture(scope="module")
def game() -> Catan:
    game = Catan.new(4, 7, {"stalemate_rounds": 2})
    while (request := game.request()) is not None:
        game.skip(request.player, "")
    return game


def words(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_the_picture_shows_numbers_ports_names_and_points(game: Catan) -> None:
    shown = words(game.render_svg(NAMES))
    numbers = [str(number) for number in game.table.board.numbers if number is not None]
    assert [word for word in shown if word.isdigit()][: len(numbers)] == numbers
    assert (shown.count("3:1"), shown.count("2:1")) == (4, 5)
    assert set(NAMES) <= set(shown)


def test_the_picture_has_every_piece_once(game: Catan) -> None:
    root = ElementTree.fromstring(game.render_svg(NAMES))
    uses = [element.get("href") for element in root.iter(f"{SVG}use")]
    assert uses.count("#settlement") == len(game.table.buildings) + 4  # and one per row of the legend
    assert uses.count("#robber") == 1 + 4
    assert sum(uses.count(f"#{kind}") for kind in ("wood", "brick", "sheep", "wheat", "ore", "desert")) == 19


def test_names_are_strangers_words(game: Catan) -> None:
    hostile = ['</text><script>alert("x")</script>', "a" * 500, "\x1b[2J\u0007bell", ""]
    svg, text = game.render_svg(hostile), game.render_text(hostile)
    assert ElementTree.fromstring(svg).find(f".//{SVG}script") is None
    assert "a" * 30 not in svg
    assert "\x07" not in text
    assert "\x1b[2J" not in text


def test_too_few_names_are_filled_in(game: Catan) -> None:
    assert "player 4" in game.render_text(["alice"])


def test_the_text_board_fits_a_terminal_and_shows_every_hex(game: Catan) -> None:
    plain = re.sub(r"\x1b\[\d*m", "", game.render_text(NAMES))
    lines = plain.split("\n")
    assert max(map(len, lines)) <= 60
    assert len(lines) == 17 + 1 + 4
    assert plain.count("*") == 1
    assert len(re.findall(r"(wood|brick|sheep|wheat|ore) \d+|desert", plain)) == 19
    assert plain.count("o") - sum(word.count("o") for word in re.findall(r"[a-z]{2,}", plain)) == 8
