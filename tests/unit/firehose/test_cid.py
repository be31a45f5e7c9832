"""CIDs: one text, one set of bytes, and nothing else."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firehose.cid import DAG_CBOR, RAW, Cid
from firehose.errors import SyntaxInvalid

TEXT = "bafyreiclp443lavogvhj3d2ob2cxbfuscni2k5jk7bebjzg7khl3esabwq"


@given(st.binary(max_size=100), st.booleans())
def test_text_and_bytes_lead_back(block: bytes, raw: bool) -> None:
    cid = Cid.for_raw(block) if raw else Cid.for_dag_cbor(block)
    assert Cid.parse(str(cid)) == cid == Cid.from_bytes(cid.bytes)
    assert cid.codec == (RAW if raw else DAG_CBOR)
    assert cid.matches(block)
    assert not cid.matches(block + b"\0")
    assert pickle.loads(pickle.dumps(cid)) == cid


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(TEXT.upper(), id="upper-case"),
        pytest.param(TEXT[:-1], id="short"),
        pytest.param(TEXT + "a", id="long"),
        pytest.param(TEXT[:-1] + "r", id="spare-bits-set"),
        pytest.param("z" + TEXT[1:], id="another-base"),
        pytest.param("bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi", id="dag-pb"),
        pytest.param("", id="empty"),
        pytest.param(None, id="none"),
        pytest.param(TEXT[:-1] + "ı", id="not-ascii"),
    ],
)
def test_another_spelling_is_refused(text: object) -> None:
    with pytest.raises(SyntaxInvalid):
        Cid.parse(text)


def test_a_cid_never_changes() -> None:
    cid = Cid.parse(TEXT)
    with pytest.raises(AttributeError):
        cid.bytes = b""
    assert len({cid, Cid.parse(TEXT)}) == 1
    assert cid != cid.bytes
