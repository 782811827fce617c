"""Hostile input: whatever a store returns, readers answer with our errors, in bounded memory."""

import json
import tracemalloc
import zlib
from contextlib import suppress
from dataclasses import replace

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clog.storage import ClogError, CorruptionError, Log, ManualClock, documents, paths
from clog.storage.commits import edit_of, read_commit
from clog.storage.ids import SeededIds
from clog.storage.reader import piece_of, read_pieces
from clog.storage.snapshots import read_snapshot, unpage
from clog.storage.testing.crash import copy_of, discard, memory_store
from clog.storage.testing.model import rows_in
from clog.storage.verify import verify_log
from clog.storage.verify_rows import object_problems

SLOW = settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "a", "../../etc/passwd", "/abs", "data/x", "\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def good():
    """A log with a snapshot and a page; its newest commit is divisible by 4."""
    store = memory_store()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clog.storage.commit.SNAPSHOT_EDIT_BYTES_MIN", 10)
        patch.setattr("clog.storage.snapshots.PAGE_CHUNKS_MIN", 3)
        config = {"segment.chunks": 1}
        log = Log.create(store, 2, config, clock=ManualClock(5_000), ids=SeededIds(1))
        for i in range(12):
            log.append([{"key": "k", "value": "v", "timestamp": 1}], producer=(f"w{i % 3}", i))
    yield store
    discard(store)


def read_everything(store):
    """What a reader and a verifier make of it."""
    try:
        rows_in(Log.open(store, clock=ManualClock(5_000)).read())
    except ClogError:
        pass
    try:
        verify_log(store)
    except ClogError:
        pass


def targets(store):
    """The newest commit, its snapshot, a page."""
    tip = Log.open(store).handle.tip
    snapshot = read_snapshot(store, tip.head.snapshot.version)
    return {
        "commit": paths.commit_path(tip.version),
        "snapshot": paths.snapshot_path(snapshot.version),
        "page": snapshot.pages[0].path,
    }


def places(value, at=()):
    """The path of every value inside a document's body."""
    yield at
    if isinstance(value, dict):
        for name in value:
            yield from places(value[name], (*at, name))
    elif isinstance(value, list):
        for i in range(min(len(value), 4)):
            yield from places(value[i], (*at, i))


def changed(body, place, value, *, remove):
    """The body with the value at a place replaced or removed."""
    body = json.loads(json.dumps(body))
    if not place:
        return value
    inner = body
    for step in place[:-1]:
        inner = inner[step]
    if remove:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return body


def document(kind, body, encoding="json", **header):
    """A document whose hash and length are right, whatever is in it."""
    stored = json.dumps(body).encode()
    stored = zlib.compress(stored) if encoding == "json+zlib" else stored
    envelope = {
        "clog": kind,
        "format": 1,
        "bytes": len(stored),
        "xxh3_128": xxhash.xxh3_128_hexdigest(stored),
        "encoding": encoding,
        **header,
    }
    return json.dumps(envelope).encode() + b"\n" + stored


@pytest.mark.parametrize("kind", ["commit", "snapshot", "page"])
@given(data=st.data())
@SLOW
def test_a_document_with_one_wrong_value(good, kind, data):
    """Sealed with the right hash: of another type, out of range, out of the root, or missing."""
    store = copy_of(good)
    try:
        path = targets(good)[kind]
        body = documents.decode(kind, good.get(path), where=path)
        place = data.draw(st.sampled_from(list(places(body))), label="place")
        value = data.draw(VALUES, label="value")
        remove = data.draw(st.booleans(), label="remove")
        store.put(path, document(kind, changed(body, place, value, remove=remove)))
        read_everything(store)
    finally:
        discard(store)


@given(data=st.binary(max_size=200))
@SLOW
def test_bytes_that_are_no_document(data):
    """Nothing but CorruptionError, or that a newer clog is needed."""
    for kind in ("commit", "snapshot", "page", "edit", "gc"):
        with pytest.raises(ClogError):
            documents.decode(kind, data, where="there")


@given(
    header=st.dictionaries(
        st.sampled_from(["clog", "format", "bytes", "xxh3_128", "encoding"]), VALUES
    )
)
@SLOW
def test_a_wrong_header(header):
    """Of any type and value."""
    data = document("commit", {"version": 1}, **header)
    try:
        assert documents.decode("commit", data, where="there") == {"version": 1}
    except ClogError:
        pass


@given(data=st.data())
@SLOW
def test_a_data_object_of_other_bytes(good, data):
    """Parquet's own footer and pages, torn and written over: the manifest's checksums tell."""
    store = copy_of(good)
    try:
        path = next(o.path for o in store.list(paths.DATA))
        content = bytearray(store.get(path))
        at = data.draw(st.integers(0, len(content) - 1), label="at")
        patch = data.draw(st.binary(min_size=1, max_size=40), label="patch")
        content[at : at + len(patch)] = patch
        store.put(path, bytes(content[: len(store.get(path))]))
        read_everything(store)
    finally:
        discard(store)


@given(data=st.data())
@SLOW
def test_a_data_object_that_its_manifest_agrees_with(good, data):
    """Who can write the log can write the checksums, too: then Arrow sees what he wrote."""
    store = copy_of(good)
    try:
        manifest = Log.open(store).handle.manifest()
        p, chunk = next(iter(manifest.chunks()))
        content = bytearray(store.get(chunk.object.path))
        at = data.draw(st.integers(0, len(content) - 1), label="at")
        patch = data.draw(st.binary(min_size=1, max_size=12), label="patch")
        content[at : at + len(patch)] = patch
        found = bytes(content)
        ref = replace(chunk.object, checksum=xxhash.xxh3_128_hexdigest(found))
        same = replace(chunk, object=ref)
        list(object_problems(found, ref, [(p, same)], key_seed=manifest.head.log.key_seed))
        store.put(ref.path, found)
        with suppress(ClogError):
            list(read_pieces(store, [piece_of(p, same, chunk.base, chunk.next)]))
    finally:
        discard(store)


def test_a_bomb_is_refused_in_bounded_memory():
    """A body that inflates to more than the limit is given up at the limit."""
    bomb = b" " * (1 << 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clog.storage.documents.BODY_BYTES_MAX", 1 << 16)
        stored = zlib.compress(bomb * 64)
        envelope = {
            "clog": "commit",
            "format": 1,
            "bytes": len(stored),
            "xxh3_128": xxhash.xxh3_128_hexdigest(stored),
            "encoding": "json+zlib",
        }
        data = json.dumps(envelope).encode() + b"\n" + stored
        tracemalloc.start()
        with pytest.raises(CorruptionError):
            documents.decode("commit", data, where="there")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4 << 20


def test_json_that_is_nested_deeply():
    """A recursion error is ours to catch."""
    stored = b'{"a":' * 100_000
    envelope = {
        "clog": "commit",
        "format": 1,
        "bytes": len(stored),
        "xxh3_128": xxhash.xxh3_128_hexdigest(stored),
        "encoding": "json",
    }
    with pytest.raises(CorruptionError):
        documents.decode("commit", json.dumps(envelope).encode() + b"\n" + stored, where="there")


@pytest.mark.parametrize("dense", [None, False, 0])
def test_a_fresh_object_that_is_said_to_have_offsets(good, dense):
    """It has no such column: its rows have none, and that is an error of ours."""
    store = copy_of(good)
    tip = Log.open(store).handle.tip
    path = paths.commit_path(tip.version)
    body = documents.decode("commit", store.get(path), where=path)
    body["edit"]["add"]["objects"][0]["dense"] = dense
    store.put(path, document("commit", body))
    with pytest.raises(CorruptionError, match="without offsets"):
        rows_in(Log.open(store).read())
    discard(store)


def test_the_good_log_is_good(good):
    """Else the tests above would prove nothing."""
    assert verify_log(good).findings == ()
    tip = Log.open(good).handle.tip
    assert edit_of(good, read_commit(good, tip.version).record) is not None
    assert unpage(good, read_snapshot(good, tip.head.snapshot.version)).pages == ()
