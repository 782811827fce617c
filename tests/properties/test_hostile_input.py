"""Hostile input: whatever a store returns, readers respond with clog errors, in bounded memory."""

import json
import tracemalloc
import zlib
from contextlib import suppress
from dataclasses import replace

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clog.cleaner import Cleaner
from clog.storage import ClogError, CorruptionError, InvalidInputError, Log, ManualClock
from clog.storage.diagnostics.verify import object_problems, verify_log
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format.commits import edit_of, read_commit
from clog.storage.format.manifest import read_snapshot, unpage
from clog.storage.read.scan import piece_of, read_pieces
from clog.storage.store.contract import WrappingStore
from clog_testing.crash import copy_of, discard, inside, memory_store
from clog_testing.model import rows_in

SLOW = settings(
    deadline=None,
    max_examples=3 * settings().max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.sampled_from([2**31, 2**53, 2**62, 2**63 - 1, -(2**63), 2 * 10**9])
    | st.sampled_from(["", "a", "../../etc/passwd", "/abs", "data/x", "\0", "\ud800", "x" * 5000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def good():
    """A log with a snapshot and a page; its newest commit is divisible by 4."""
    store = memory_store()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 10)
        patch.setattr("clog.storage.format.manifest.PAGE_CHUNKS_MIN", 3)
        config = {"segment.chunks": 1}
        log = Log.create(store, 2, config, clock=ManualClock(5_000), ids=SeededIds(1))
        for i in range(12):
            log.append([{"key": "k", "value": "v", "timestamp": 1}], producer=(f"w{i % 3}", i))
    yield store
    discard(store)


def read_everything(store):
    """What readers, a writer, the cleaner and a verifier do with it: at most clog errors."""

    def log():
        return Log.open(store, clock=ManualClock(5_000), ids=SeededIds(9))

    for use in (
        lambda: rows_in(log().read()),
        lambda: log().table().get("k"),
        lambda: log().table().to_arrow(),
        lambda: log().table(at=11).to_arrow(),
        lambda: log().describe(),
        lambda: log().segments(0),
        lambda: log().offsets_for_times(1),
        lambda: list(log().history()),
        lambda: log().append([{"key": "k", "value": "v"}], producer=("w0", 99)),
        lambda: log().roll(),
        lambda: Cleaner(log()).run_once(force=True),
        lambda: verify_log(store),
    ):
        with suppress(ClogError, FileNotFoundError):
            use()


def targets(store):
    """The newest commit, its snapshot, a page, its block, and what names the log."""
    tip = Log.open(store).handle.tip
    snapshot = read_snapshot(inside(store), tip.head.snapshot.version)
    found = {
        "commit": documents.commit_path(tip.version),
        "snapshot": documents.snapshot_path(snapshot.version),
        "page": snapshot.pages[0].path,
        "block": documents.block_path(tip.version),
    }
    folder = documents.folder_of(tip.head.log.log_id)
    whole = {kind: f"{folder}/{path}" for kind, path in found.items()}
    return whole | {"log": documents.LOG_FILE}


def places(value, at=()):
    """The path of every value inside a document's body."""
    yield at
    if isinstance(value, dict):
        for name in value:
            yield from places(value[name], (*at, name))
    elif isinstance(value, list):
        for i in range(min(len(value), 4)):
            yield from places(value[i], (*at, i))


def value_at(body, place):
    for step in place:
        body = body[step]
    return body


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
    """A document whose hash and length are right, whatever it contains."""
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


@pytest.mark.parametrize("kind", ["commit", "snapshot", "page", "block", "log"])
@given(data=st.data())
@settings(SLOW, max_examples=settings().max_examples // 2)
def test_a_document_with_one_wrong_value(good, kind, data):
    """Sealed with the right hash: of another type, out of range, outside the root, or missing."""
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


@pytest.mark.parametrize("kind", ["commit", "snapshot", "page", "log"])
def test_an_integer_of_more_than_64_bits(good, kind):
    """Wherever one of a document's integers is: at most a clog error."""
    store = copy_of(good)
    path = targets(good)[kind]
    body = documents.decode(kind, good.get(path), where=path)
    found = [(place, value_at(body, place)) for place in places(body)]
    integers = [place for place, value in found if type(value) is int]
    assert integers
    for place in integers:
        store.put(path, document(kind, changed(body, place, 2**63, remove=False)))
        with suppress(ClogError):
            rows_in(Log.open(store).read())
    discard(store)


@given(data=st.binary(max_size=200))
@SLOW
def test_bytes_that_are_no_document(data):
    """Nothing but CorruptionError, or that a newer clog is needed."""
    for kind in ("commit", "snapshot", "page", "edit", "block", "log"):
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
    """Parquet's own footer and pages, torn and overwritten: the manifest's checksums detect it."""
    store = copy_of(good)
    try:
        path = next(o.path for o in store.list(documents.FOLDERS) if "/data/" in o.path)
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
    """Whoever can write the log can write the checksums too: then Arrow gets the forged bytes."""
    store = copy_of(good)
    try:
        manifest = Log.open(store).handle.manifest()
        p, chunk = next(iter(manifest.chunks()))
        folder = inside(store)
        content = bytearray(folder.get(chunk.object.path))
        at = data.draw(st.integers(0, len(content) - 1), label="at")
        patch = data.draw(st.binary(min_size=1, max_size=12), label="patch")
        content[at : at + len(patch)] = patch
        found = bytes(content)
        ref = replace(chunk.object, checksum=xxhash.xxh3_128_hexdigest(found))
        same = replace(chunk, object=ref)
        list(object_problems(found, ref, [(p, same)], key_seed=manifest.head.log.key_seed))
        folder.put(ref.path, found)
        with suppress(ClogError):
            list(read_pieces(folder, [piece_of(p, same, chunk.base, chunk.next)]))
    finally:
        discard(store)


def test_a_bomb_is_refused_in_bounded_memory():
    """64 KiB that inflate to 64 MiB are abandoned at 100 times their length (FORMAT.md §2)."""
    stored = zlib.compress(b"[" + b"[]," * (21 << 20) + b"[]]")
    assert 60_000 < len(stored) < 70_000
    envelope = {
        "clog": "commit",
        "format": 1,
        "bytes": len(stored),
        "xxh3_128": xxhash.xxh3_128_hexdigest(stored),
        "encoding": "json+zlib",
    }
    data = json.dumps(envelope).encode() + b"\n" + stored
    tracemalloc.start()
    with pytest.raises(CorruptionError, match="not a single zlib stream of at most 6"):
        documents.decode("commit", data, where="there")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.parametrize("partitions", [2 * 10**9, 65_537, 0, -1, 2**63, True])
def test_a_log_of_so_many_partitions(partitions):
    """The number is checked before a column of as many entries is created (FORMAT.md §3.2)."""
    store = memory_store()
    Log.create(store, 1)
    path, folder = documents.commit_path(0), inside(store)
    body = documents.decode("commit", folder.get(path), where=path)
    body["edit"]["create"]["partitions"] = body["head"]["log"]["partitions"] = partitions
    folder.put(path, document("commit", body))
    with pytest.raises(CorruptionError):
        Log.open(store)
    assert "the format: " in str(verify_log(store).findings)
    discard(store)


@pytest.mark.parametrize(
    ("text", "sound"),
    [
        (b'{"id": "\\ud800"}', False),
        (b'{"id": "\\uDFFF\\uD800"}', False),
        (b'{"id": "\xed\xa0\x80"}', False),
        (b'{"id": "\xff"}', False),
        ('{"id": "a"}'.encode("utf-16"), False),
        (b'{"id": "\\ud83d\\ude00 \\\\ud800"}', True),
    ],
)
def test_half_of_a_surrogate_pair(text, sound):
    """A text that cannot be written again is refused where it is read (FORMAT.md §2)."""
    envelope = {
        "clog": "commit",
        "format": 1,
        "bytes": len(text),
        "xxh3_128": xxhash.xxh3_128_hexdigest(text),
        "encoding": "json",
    }
    data = json.dumps(envelope).encode() + b"\n" + text
    if sound:
        assert documents.decode("commit", data, where="there") == {"id": "\U0001f600 \\ud800"}
        return
    with pytest.raises(CorruptionError, match="there is not JSON"):
        documents.decode("commit", data, where="there")


def test_a_writer_whose_id_is_no_text(good):
    """It could not be written to the log: a clog error, and nothing is appended."""
    store = copy_of(good)
    log = Log.open(store)
    with pytest.raises(InvalidInputError, match="is not \\(id, sequence\\)"):
        log.append([{"key": "k", "value": "v"}], producer=("\ud800", 1))
    discard(store)


def test_json_that_is_nested_deeply():
    """Catching a recursion error is clog's task."""
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


def test_a_field_of_later_writers_that_is_nested_deeply(good):
    """A writer keeps what it does not know in the head. Whether it is too deep to be read or, a few
    levels less, only to be written again: a clog error.
    """
    path = targets(good)["commit"]
    body = documents.decode("commit", good.get(path), where=path)
    body["head"]["later"] = "HERE"
    refused = []
    for depth in (10, *range(802, 1000, 2)):
        store = copy_of(good)
        text = json.dumps(body).replace('"HERE"', "[" * depth + "]" * depth)
        store.put(path, documents.encode_json("commit", text.encode()))
        try:
            Log.open(store).append([{"key": "k", "value": "v"}])
        except CorruptionError as e:
            refused.append(str(e))
        discard(store)
    assert len(refused) < 100


@pytest.mark.parametrize("dense", [None, False, 0])
def test_a_fresh_object_that_is_said_to_have_offsets(good, dense):
    """It has no such column: its rows have none, and that is a clog error; so is what is neither
    true nor false.
    """
    store = copy_of(good)
    tip = Log.open(store).handle.tip
    path, folder = documents.commit_path(tip.version), inside(store)
    body = documents.decode("commit", folder.get(path), where=path)
    body["edit"]["add"]["objects"][0]["dense"] = dense
    folder.put(path, document("commit", body))
    with pytest.raises(CorruptionError, match=r"says dense=False|expected true or false"):
        rows_in(Log.open(store).read())
    discard(store)


def test_the_good_log_is_good(good):
    """Otherwise the tests above would prove nothing."""
    assert verify_log(good).findings == ()
    tip = Log.open(good).handle.tip
    folder = inside(good)
    assert edit_of(folder, read_commit(folder, tip.version).record) is not None
    assert unpage(folder, read_snapshot(folder, tip.head.snapshot.version)).pages == ()


class Bounded(WrappingStore):
    """Refuses reads that would continue to the end of whatever is there."""

    def get(self, path, start=None, end=None):
        assert end is not None, path
        assert end <= (1 << 30) + 10_000, path
        return self.inner.get(path, start, end)


def test_no_file_is_read_to_an_end_that_it_may_not_have(good):
    """A file of a terabyte costs its creator nothing: no reader requests more of a document than
    its kind may have (FORMAT.md §2).
    """
    store = copy_of(good)
    log = Log.open(Bounded(store), clock=ManualClock(5_000), ids=SeededIds(9))
    log.append([{"key": "k", "value": "v"}], producer=("w1", 100))
    log.roll()
    Cleaner(log).run_once(force=True)
    assert log.table().get("k") == b"v"
    assert len(list(log.history())) == log.version + 1
    assert log.table(at=11).to_arrow().num_rows == 1
    discard(store)
