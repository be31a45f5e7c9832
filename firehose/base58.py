"""Base58 as Bitcoin writes it: what multibase strings with the prefix `z` hold."""

from typing import Final

ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
MAX_CHARS: Final = 256  # the algorithm is quadratic, and a key has fewer than 100
_VALUES: Final = {letter: value for value, letter in enumerate(ALPHABET)}


def base58_encode(data: bytes) -> str:
    """The base58 text of `data`; each leading zero byte becomes a `1`."""
    zeros = len(data) - len(data.lstrip(b"\0"))
    number = int.from_bytes(data)
    letters = []
    while number:
        number, value = divmod(number, 58)
        letters.append(ALPHABET[value])
    return "1" * zeros + "".join(reversed(letters))


def base58_decode(text: str) -> bytes:
    """The bytes in a base58 text.

    Raises: ValueError: a letter is not of the alphabet, or the text is longer than `MAX_CHARS`.
    """
    if len(text) > MAX_CHARS:
        raise ValueError(f"{len(text)} letters of base58 are too many")
    number = 0
    for letter in text:
        if letter not in _VALUES:
            raise ValueError(f"{letter!r} is no letter of base58")
        number = number * 58 + _VALUES[letter]
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8)
