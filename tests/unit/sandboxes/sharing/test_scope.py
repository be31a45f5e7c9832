"""Whose sandbox is meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes import check_name
from sandboxes.sharing import Caller, Scope, ScopeKeyMissing, UnknownScope, key_of, parse_scope, sandbox_name

ANN = Caller(session_id="s1", user_id="ann", agent_id="did:plc:a")


@pytest.mark.parametrize(
    ("scope", "key"),
    [
        (Scope.SESSION, "session/s1"),
        (Scope.USER, "user/did%3Aplc%3Aa/ann"),
        (Scope.AGENT, "agent/did%3Aplc%3Aa"),
        (Scope.GLOBAL, "global"),
    ],
)
def test_key_of_each_scope(scope: Scope, key: str) -> None:
    assert key_of(scope, ANN) == key


def test_nobodys_session_has_no_key() -> None:
    assert key_of(Scope.SESSION, Caller()) is None
    assert key_of(Scope.SESSION, Caller(session_id=" \n")) is None


@pytest.mark.parametrize(
    ("scope", "caller", "part"),
    [
        (Scope.USER, Caller(agent_id="a"), "user_id"),
        (Scope.USER, Caller(user_id="u"), "agent_id"),
        (Scope.USER, Caller(agent_id="a", user_id="  "), "user_id"),
        (Scope.AGENT, Caller(session_id="s"), "agent_id"),
        (Scope.AGENT, Caller(agent_id="a\0b"), "agent_id"),
        (Scope.SESSION, Caller(session_id="s" * 3000), "session_id"),
    ],
)
def test_a_missing_or_impossible_part_is_named(scope: Scope, caller: Caller, part: str) -> None:
    with pytest.raises(ScopeKeyMissing, match=part):
        key_of(scope, caller)


@pytest.mark.parametrize("word", ["", "SESSION ", "everyone", "global\0", "Session"])
def test_an_unknown_scope_is_an_error_that_names_those_there_are(word: str) -> None:
    with pytest.raises(UnknownScope, match="session, user, agent, global"):
        parse_scope(word)


PART = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=30).filter(
    lambda text: text.isprintable() and text == text.strip() and text
)


@given(PART, PART, PART, PART)
def test_two_callers_never_share_a_key_or_a_name(agent: str, user: str, agent2: str, user2: str) -> None:
    one, other = Caller(agent_id=agent, user_id=user), Caller(agent_id=agent2, user_id=user2)
    keys = {key for scope in (Scope.USER, Scope.AGENT) for who in (one, other) if (key := key_of(scope, who))}
    assert len(keys) == len({(agent, user), (agent2, user2)}) + len({agent, agent2})
    assert len({check_name(sandbox_name(key)) for key in keys}) == len(keys)
