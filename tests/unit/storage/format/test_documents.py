"""Documents: what is written is read back, and nothing else is trusted (FORMAT.md §2)."""

import json
import random
import zlib

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from clog.storage.errors import CorruptionError, InvalidInputError, UnsupportedFormatError
from clog.storage.format import documents
from clog.storage.format.documents import COMPRESS_ABOVE_BYTES, body_json, decode, encode
from clog.storage.format.manifest import PAGE_BYTES_MAX

_LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=9)
_BODIES = st.dictionaries(
    st.text(max_size=9),
    st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=3)),
    max_size=5,
)


def _document(stored: bytes, **changes: object) -> bytes:
    """A document whose envelope agrees with its body except for the changes."""
    envelope = {
        "clog": "page",
        "format": 1,
        "bytes": len(stored),
        "xxh3_128": xxhash.xxh3_128_hexdigest(stored),
        "encoding": "json",
    }
    return body_json({**envelope, **changes}) + b"\n" + stored


@given(_BODIES)
def test_a_body_comes_back(body):
    """Integers of 64 bits and any text survive."""
    assert decode("page", encode("page", body), where="x") == body


@pytest.mark.parametrize("length", [COMPRESS_ABOVE_BYTES, COMPRESS_ABOVE_BYTES + 1, 10**6])
def test_large_bodies_are_compressed(length):
    """Above 4 KiB a body is one zlib stream; it is restored either way."""
    body = {"x": "a" * (length - len(body_json({"x": ""})))}
    data = encode("page", body)
    assert (b'"json+zlib"' in data) == (length > COMPRESS_ABOVE_BYTES) == (len(data) < length)
    assert decode("page", data, where="x") == body


def test_the_bytes_of_a_document_are_pinned():
    """The envelope is one line of JSON, a line feed, the body; the checksum is XXH3-128 in hex."""
    assert encode("block", {"block": 0, "ids": {"0": "ä"}}).decode() == (
        '{"clog":"block","format":1,"bytes":28,'
        '"xxh3_128":"aa45bb3645d1d3c17a58c5c0a791ae2c","encoding":"json"}\n'
        '{"block":0,"ids":{"0":"ä"}}'
    )


@pytest.mark.parametrize("size", [3, 300])
def test_every_flipped_bit_is_found(size):
    """Of the envelope and of the body, compressed or not."""
    data = encode("page", {"rows": [n * n * 7919 % 10**9 for n in range(size * 2)]})
    for at in range(min(len(data), 900)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises((CorruptionError, UnsupportedFormatError)):
                decode("page", bytes(damaged), where="x")


def test_another_kind_is_refused():
    """A page is not taken for a commit; the message says where and what."""
    with pytest.raises(CorruptionError, match="kind='page' format=1, expected kind='commit'"):
        decode("commit", encode("page", {}), where="here")


def test_a_newer_format_is_refused_before_its_body_is_parsed():
    """FORMAT.md §2: its number alone decides; the remedy is an upgrade."""
    with pytest.raises(
        UnsupportedFormatError, match="format 2, but this clog reads up to 1; upgrade"
    ):
        decode("commit", _document(b"\xff not json", clog="new", format=2), where="x")


@pytest.mark.parametrize("number", [0, -1, True, 1.0, "1", None])
def test_a_format_that_is_no_positive_integer_is_corruption(number):
    """JSON's true and 1.0 are not 1."""
    with pytest.raises(CorruptionError):
        decode("page", _document(b"{}", format=number), where="x")


@pytest.mark.parametrize(
    "stored",
    [b"", b"[]", b"7", b"null", b"{", b'{"a":}', b"\xff\xfe", b'{"a":' + b"9" * 5000 + b"}"],
)
def test_a_body_that_is_no_json_object_is_corruption(stored):
    """Even if its checksum agrees."""
    with pytest.raises(CorruptionError):
        decode("page", _document(stored), where="x")


def test_what_is_written_can_be_read(monkeypatch):
    """A body that would inflate beyond what readers allow is stored uncompressed; one that is
    longer than its kind may be is refused (FORMAT.md §2).
    """
    body = {"a": "x" * (documents.RATIOS[0][0] + 1)}
    data = encode("page", body)
    assert b'"encoding":"json"}' in data[:200]
    assert decode("page", data, where="x") == body
    monkeypatch.setitem(documents.BODY_BYTES_MAX, "page", 10_000)
    with pytest.raises(InvalidInputError, match="is more than the 10000 allowed"):
        encode("page", body)
    with pytest.raises(CorruptionError, match="more than a page may have"):
        decode("page", data, where="x")


def test_a_large_body_inflates_less(monkeypatch):
    """A page of any size inflates to 100 times what is stored; a body of more than 256 MiB, as a
    snapshot's, to 20 times (FORMAT.md §2). Measured in KiB here.
    """
    assert [bytes_free >> 20 for bytes_free, _ in documents.RATIOS] == [4, 256]
    small = tuple((bytes_free >> 10, ratio) for bytes_free, ratio in documents.RATIOS)
    monkeypatch.setattr(documents, "RATIOS", small)
    for zeros, noise, is_packed in (
        *((230 << 10, 1000, False), (230 << 10, 5000, True)),
        *((300 << 10, 8000, False), (300 << 10, 20000, True)),
    ):
        body = {"a": "0" * zeros, "b": random.Random(1).randbytes(noise).hex()}
        data = encode("snapshot", body)
        assert (b'"encoding":"json+zlib"' in data[:200]) is is_packed
        assert decode("snapshot", data, where="x") == body
        stored = zlib.compress(body_json(body), 6)
        packed = _document(stored, clog="snapshot", encoding="json+zlib")
        if is_packed:
            assert decode("snapshot", packed, where="x") == body
        else:
            with pytest.raises(CorruptionError, match="when inflated"):
                decode("snapshot", packed, where="x")


def test_a_page_is_no_longer_than_a_commit():
    """Writers cut pages at 512 KiB as stored, which inflate to 50 MiB."""
    assert documents.BODY_BYTES_MAX["page"] == documents.BODY_BYTES_MAX["commit"]
    assert PAGE_BYTES_MAX * documents.RATIOS[0][1] < documents.BODY_BYTES_MAX["page"]


@pytest.mark.parametrize(
    "stored",
    [b"{}", zlib.compress(b"{}")[:-1], zlib.compress(b"{}") + b"more", zlib.compress(b"{}") * 2],
)
def test_a_body_is_one_zlib_stream(stored):
    """No stream, a truncated one, one with something after it."""
    with pytest.raises(CorruptionError):
        decode("page", _document(stored, encoding="json+zlib"), where="x")


@pytest.mark.parametrize("encoding", ["gzip", "", None, 7])
def test_an_unknown_encoding_is_refused(encoding):
    """Nothing is guessed."""
    with pytest.raises(CorruptionError, match="encoding"):
        decode("page", _document(b"{}", encoding=encoding), where="x")


def test_a_document_that_is_longer_than_its_name_says(store):
    """What refers to it has its size: one byte more is found, whatever the envelope says."""
    data = encode("page", {"rows": []})
    store.put("pages/x", data)
    assert documents.get(store, "page", "pages/x", len(data)) == {"rows": []}
    store.put("pages/x", data + b" ")
    with pytest.raises(CorruptionError, match=f"has more than {len(data)} bytes"):
        documents.get(store, "page", "pages/x", len(data))


@pytest.mark.parametrize("value", [7, None, True, ["a"]])
def test_a_text_among_many_that_is_none_is_refused(value):
    """As where it stands alone."""
    texts = documents.seq(documents.TEXT)
    assert texts.read(["a", "b"]) == ("a", "b")
    with pytest.raises(TypeError, match="expected text"):
        texts.read(["a", value])


def test_unknown_fields_of_the_envelope_are_ignored():
    """FORMAT.md §2: what must not be ignored is announced elsewhere."""
    assert json.loads(b"{}") == decode("page", _document(b"{}", colour="red"), where="x")


def test_errors_tell_no_data():
    """The message has the place and the numbers, never the body."""
    with pytest.raises(CorruptionError) as caught:
        decode("page", _document(b'{"secret', bytes=8), where="x")
    assert "secret" not in str(caught.value)
