"""Names of sandboxes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes import InvalidSpec, check_name, is_slot_name, runtime_name
from sandboxes.names import HASH_CHARS, MAX_NAME_CHARS
from sandboxes.slot import check_free_name


def test_a_name_is_a_slug_and_a_hash_of_the_whole_key() -> None:
    assert runtime_name("did:plc:alice234567", "catan-7") == "alice234567-catan-7-8fd2596643ef313a"


@given(did=st.text(max_size=200), environment=st.text(max_size=200))
def test_every_key_gives_a_name_that_fits_everywhere(did: str, environment: str) -> None:
    name = runtime_name(did, environment)
    assert check_name(name) == name
    assert len(name) <= MAX_NAME_CHARS
    assert len(name.rpartition("-")[2]) == HASH_CHARS >= 16


def test_no_sandbox_has_the_name_of_a_slot() -> None:
    assert not is_slot_name(runtime_name("did:web:slot", "\N{SNOWMAN}"))
    assert is_slot_name("slot-0123456789abcdef")
    for name in ("slot-0123456789abcdeg", "slot-0123456789abcde", "slot-0123456789abcdef0", "slot", "a"):
        assert not is_slot_name(name)
        assert check_free_name(name) == name
    for name in ("slot-0123456789abcdef", "", "../x", ".slots", "slot-0123456789abcdef\n"):
        with pytest.raises(InvalidSpec):
            check_free_name(name)


def test_keys_that_differ_only_beyond_the_slug_differ() -> None:
    names = {runtime_name("did:plc:abcdefghijklmnopqrstuvwx", f"{'long-' * 20}{n}") for n in range(100)}
    assert len(names) == 100


def test_the_border_between_agent_and_environment_counts() -> None:
    assert runtime_name("did:web:a.example", "b") != runtime_name("did:web:a", "example-b")


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a/b", "..", ".lock", "a" * 49, "a\n", "ä"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidSpec):
        check_name(name)
