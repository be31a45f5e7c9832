"""Guard and states in Redis, for holders on many nodes. Needs the extra `skylease[redis]`.

Every step is one Lua script or one command, so nobody sees half of it. Redis forgets what it had not yet
written when it is killed: run it with `appendonly yes`. What it forgets costs no file: tokens start above
what states, snapshots and sandboxes have seen (`floor`), and a sandbox's snapshots are found by its name.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from sandboxes.errors import InvalidSpec
from sandboxes.sharing.errors import GuardUnavailable, StatesUnavailable
from sandboxes.sharing.guard import Reach
from sandboxes.sharing.states import StateStore, outrun

SCHEMES: Final = ("redis", "rediss", "unix")
PREFIX: Final = "skylease:"
TIMEOUT_S: Final = 3.0
SCAN_COUNT: Final = 500

# Keys of one script share a hash tag, {…}, so that a Redis Cluster keeps them on one node.
ENTER: Final = """
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
    return tonumber(redis.call('GET', KEYS[2]))  -- asked again, since the first answer was lost
end
local token = math.max(tonumber(redis.call('GET', KEYS[2]) or '0') + 1, tonumber(ARGV[3]))
redis.call('SET', KEYS[2], string.format('%.0f', token))
return token
"""
RENEW: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
LEAVE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""
# Both give {done, the fence, the state}; as a Lua number a fence is exact up to 2^53
CLAIM: Final = """
local fence = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
if fence >= tonumber(ARGV[1]) then return {0, fence, false} end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
return {1, tonumber(ARGV[1]), redis.call('HGET', KEYS[1], 'state')}
"""
SAVE: Final = """
local fence = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
if fence ~= tonumber(ARGV[1]) then return {0, fence} end
redis.call('HSET', KEYS[1], 'state', ARGV[2])
return {1, fence}
"""
SET_ASIDE: Final = """
local fence = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
if fence ~= tonumber(ARGV[1]) then return {0, fence} end
local state = redis.call('HGET', KEYS[1], 'state')
if state then
    redis.call('HSET', KEYS[1], 'aside', state)
    redis.call('HDEL', KEYS[1], 'state')
end
return {1, fence}
"""


class RedisLatch:
    """A latch (see guard.py) in Redis: SET NX PX, and comparison before every change.

    Args:
        url: redis://, rediss:// or unix://.
        prefix: of the names of all keys.
        timeout_s: to connect, and for each answer, in seconds.
    """

    reach: Final = Reach.CLUSTER

    def __init__(self, url: str, *, prefix: str = PREFIX, timeout_s: float = TIMEOUT_S) -> None:
        self.where, self._redis = shown(url), connect(url, timeout_s)
        self._prefix = prefix

    def try_enter(self, key: str, holder: str, ttl_ms: int, floor: int) -> int | None:
        """See `Latch`."""
        with _translated(GuardUnavailable, self.where):
            names = self._name("guard", key), self._name("token", key)
            token = self._redis.eval(ENTER, 2, *names, holder, ttl_ms, floor)
            return None if token is None else int(token)

    def renew(self, key: str, holder: str, ttl_ms: int) -> bool:
        """See `Latch`."""
        with _translated(GuardUnavailable, self.where):
            return bool(self._redis.eval(RENEW, 1, self._name("guard", key), holder, ttl_ms))

    def leave(self, key: str, holder: str) -> bool:
        """See `Latch`."""
        with _translated(GuardUnavailable, self.where):
            return bool(self._redis.eval(LEAVE, 1, self._name("guard", key), holder))

    def _name(self, kind: str, key: str) -> str:
        return f"{self._prefix}{kind}:{{{key}}}"


class RedisStates(StateStore):
    """States in Redis: a hash per key, with fence, state and what was set aside.

    Args:
        url: redis://, rediss:// or unix://.
        prefix: of the names of all keys.
        timeout_s: to connect, and for each answer, in seconds.
    """

    reach = Reach.CLUSTER

    def __init__(self, url: str, *, prefix: str = PREFIX, timeout_s: float = TIMEOUT_S) -> None:
        self.where, self._redis = shown(url), connect(url, timeout_s)
        self._prefix = f"{prefix}state:"

    def fence(self, key: str) -> int:
        """See `StateStore`."""
        with _translated(StatesUnavailable, self.where):
            return int(self._redis.hget(self._name(key), "fence") or 0)

    def claim(self, key: str, token: int) -> bytes | None:
        """See `StateStore`."""
        with _translated(StatesUnavailable, self.where):
            done, fence, state = self._redis.eval(CLAIM, 1, self._name(key), token)
        if not done:
            raise outrun(key, token, int(fence))
        return None if state is None else bytes(state)

    def save(self, key: str, token: int, state: bytes) -> None:
        """See `StateStore`."""
        self._write(SAVE, key, token, state)

    def set_aside(self, key: str, token: int) -> None:
        """See `StateStore`."""
        self._write(SET_ASIDE, key, token)

    def aside(self, key: str) -> bytes | None:
        """See `StateStore`."""
        with _translated(StatesUnavailable, self.where):
            kept = self._redis.hget(self._name(key), "aside")
            return None if kept is None else bytes(kept)

    def keys(self) -> list[str]:
        """See `StateStore`."""
        with _translated(StatesUnavailable, self.where):
            found = self._redis.scan_iter(match=f"{self._prefix}{{*}}", count=SCAN_COUNT)
            names = [name.decode() for name in found if self._redis.hexists(name, "state")]
        return sorted(name[len(self._prefix) + 1 : -1] for name in names)

    def close(self) -> None:
        """See `StateStore`."""
        self._redis.close()

    def _write(self, script: str, key: str, token: int, *values: bytes) -> None:
        with _translated(StatesUnavailable, self.where):
            done, fence = self._redis.eval(script, 1, self._name(key), token, *values)
        if not done:
            raise outrun(key, token, int(fence))

    def _name(self, key: str) -> str:
        return f"{self._prefix}{{{key}}}"


def connect(url: str, timeout_s: float = TIMEOUT_S) -> Any:
    """Return a client of this Redis; nothing is sent yet.

    Credentials are in the environment: REDIS_USERNAME, REDIS_PASSWORD.

    Raises:
        InvalidSpec: the URL is none of Redis, or the extra is not installed.
    """
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise InvalidSpec("redis", "pip install 'skylease[redis]' to use it") from None
    if urlsplit(url).password:
        raise InvalidSpec("redis", "credentials do not belong into the URL: use REDIS_PASSWORD")
    if urlsplit(url).scheme not in SCHEMES:
        raise InvalidSpec("redis", f"{shown(url)!r} starts with none of redis:// rediss:// unix://")
    try:
        return redis.Redis.from_url(
            url,
            username=os.environ.get("REDIS_USERNAME"),
            password=os.environ.get("REDIS_PASSWORD"),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            # once more when the server has closed an idle connection; not after a timeout: it may be done
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        )
    except ValueError as error:
        raise InvalidSpec("redis", f"{shown(url)!r}: {error}") from None


def shown(url: str) -> str:
    """Return a URL without what is secret in it.

    >>> shown("redis://:hunter2@cache.example:6379/1")
    'redis://cache.example:6379/1'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@contextlib.contextmanager
def _translated(kind: type[GuardUnavailable] | type[StatesUnavailable], where: str) -> Iterator[None]:
    from redis.exceptions import RedisError

    try:
        yield
    except (RedisError, OSError) as error:
        raise kind(where, f"{error}" or type(error).__name__) from error
