"""Passwords, kept as scrypt hashes."""

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from typing import Final

MAX_PASSWORD_BYTES: Final = 512
SALT_BYTES: Final = 16
KEY_BYTES: Final = 32
COST_N: Final = 1 << 14  # 16 MB and some 40 ms: what @atproto/pds uses (scrypt's own defaults)
COST_R: Final = 8
COST_P: Final = 1


async def hash_password(password: str, entropy: Callable[[int], bytes]) -> str:
    """Salt and hash, as text; runs in a thread because it is slow on purpose."""
    salt = entropy(SALT_BYTES)
    key = await asyncio.to_thread(_scrypt, password, salt)
    return f"{salt.hex()}:{key.hex()}"


async def is_password(password: str, stored: str) -> bool:
    """Whether `password` is the one that `stored` was made of."""
    if len(password.encode("utf-8", "surrogatepass")) > MAX_PASSWORD_BYTES:
        return False
    salt, _, key = stored.partition(":")
    candidate = await asyncio.to_thread(_scrypt, password, bytes.fromhex(salt))
    return hmac.compare_digest(candidate, bytes.fromhex(key))


def _scrypt(password: str, salt: bytes) -> bytes:
    secret = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(secret, salt=salt, n=COST_N, r=COST_R, p=COST_P, dklen=KEY_BYTES)
