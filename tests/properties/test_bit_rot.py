"""Bit rot: a flipped bit in any object is found by `verify`, and no reader believes it.

A small log with all there can be: data, cleaned data, commits, edits of their own, snapshots, pages
of segments and of writers, a closed block. Each object has bits flipped, in its first and last
bytes and by steps between.
"""

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.commit_blocks import close_blocks
from clog.storage import ClogError, Log, ManualClock
from clog.storage.diagnostics.verify import verify_log
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format.commits import Edit, read_commit
from clog.storage.format.manifest import read_snapshot
from clog.storage.format.writers import WriterPages
from clog_testing.crash import discard, inside, memory_store
from clog_testing.model import rows_in

START_MS = 1_000_000
DAY_MS = 86_400_000
EDGE_BYTES = 6
STEPS = 12
SOME, ALL = slice(None, None, 10), slice(None)


@pytest.fixture(scope="module", autouse=True)
def small_limits():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clog.storage.format.documents.BLOCK_VERSIONS", 8)
        patch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 10)
        patch.setattr("clog.storage.format.manifest.PAGE_CHUNKS_MIN", 3)
        patch.setattr("clog.storage.format.writers.WRITERS_MAX", 4)
        patch.setattr("clog.storage.format.writers.PAGE_BYTES_MAX", 300)
        yield


@pytest.fixture(scope="module")
def rotten(small_limits):
    """The store, its rows, and the objects that the log needs."""
    store, clock = memory_store(), ManualClock(START_MS)
    log = Log.create(store, 1, {"segment.chunks": 1}, clock=clock, ids=SeededIds(1))
    for i in range(20):
        log.append([{"key": f"k{i % 3}", "value": f"v{i}" * 9, "timestamp": i}])
    Cleaner(log).run_once(force=True)
    for i in range(16):
        log.append([{"key": f"w{i}", "value": "x", "timestamp": i}], producer=(f"w{i}", 0))
    oldest = log.handle.tip.version - 3
    log.handle.commit(lambda _tip, _ms: Edit(oldest_readable=oldest), operation="sweep")
    while log.handle.tip.version % 4 != 2:
        log.append([{"key": "z", "value": "y", "timestamp": 1}])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clog.storage.format.commits.INLINE_EDIT_BYTES_MAX", 10)
        log.append([{"key": "z", "value": "large", "timestamp": 1}])
    clock.advance(2 * DAY_MS)
    close_blocks(Work(log.handle, clock.now_ms()))
    assert verify_log(store).findings == ()
    yield store, rows_in(log.read()), needed(store, log)
    discard(store)


def needed(store, log):
    """Paths from the root of everything that a readable version needs, by kind."""
    manifest = log.handle.manifest()
    snapshot = log.handle.tip.head.snapshot
    kinds = {
        "data": sorted({c.object.path for _, c in manifest.chunks()}),
        "commits": [o.path for o in inside(store).list(documents.COMMITS)],
        "snapshots": [documents.snapshot_path(snapshot.version)],
        "pages": list(WriterPages(inside(store)).paths(log.handle.tip.head.older_writers)),
        "blocks": [o.path for o in inside(store).list(documents.BLOCKS)],
    }
    kinds["pages"] += [page.path for page in read_snapshot(inside(store), snapshot.version).pages]
    kinds["edits"] = [
        record.stored["edit_at"]["path"]
        for version in range(documents.version_of(kinds["commits"][0]), manifest.version + 1)
        for record in [read_commit(inside(store), version).record]
        if "edit_at" in record.stored
    ]
    folder = documents.folder_of(log.handle.standing.log_id)
    found = {kind: [f"{folder}/{path}" for path in some] for kind, some in kinds.items()}
    assert len(found["pages"]) > 4
    return found | {"log": [documents.LOG_FILE]}


def places(size_bytes):
    """Offsets of bytes to flip."""
    step = max(1, size_bytes // STEPS)
    edges = {*range(EDGE_BYTES), *range(size_bytes - EDGE_BYTES, size_bytes)}
    return sorted((edges | {*range(0, size_bytes, step)}) & {*range(size_bytes)})


def flipped(store, path):
    """Flips a bit of the object at each place in turn; it is restored afterwards."""
    data = store.get(path)
    try:
        for at in places(len(data)):
            store.put(path, data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
            yield at
    finally:
        store.put(path, data)


@pytest.fixture(params=[SOME, pytest.param(ALL, marks=pytest.mark.nightly)], ids=["some", "all"])
def chosen(request, rotten):
    """Objects of each kind: every tenth, or all."""
    return {kind: found[request.param] for kind, found in rotten[2].items()}


@pytest.mark.parametrize("kind", ["data", "commits", "snapshots", "pages", "blocks", "edits"])
def test_verify_finds_every_flipped_bit(rotten, chosen, kind):
    """By its object, or by what contradicts it."""
    store = rotten[0]
    assert chosen[kind]
    for path in chosen[kind]:
        for at in flipped(store, path):
            assert verify_log(store).findings, f"byte {at} of {path}"


@pytest.mark.parametrize(
    "kind", ["data", "commits", "snapshots", "pages", "blocks", "edits", "log"]
)
def test_no_reader_believes_a_flipped_bit(rotten, chosen, kind):
    """It reads what was written, if it did not need the object, or raises a clog error."""
    store, rows, _ = rotten
    believed = refused = 0
    for path in chosen[kind]:
        for at in flipped(store, path):
            try:
                read = rows_in(Log.open(store, clock=ManualClock(START_MS)).read())
            except ClogError:
                refused += 1
            else:
                believed += 1
                assert read == rows, f"byte {at} of {path}"
    if kind in ("data", "snapshots", "log"):
        assert refused > believed


def test_a_truncated_object_is_found(rotten, chosen):
    """At any length, including none."""
    store, rows, _ = rotten
    for path in [p for kind in ("data", "commits", "snapshots") for p in chosen[kind]]:
        data = store.get(path)
        for length in {0, 1, len(data) // 2, len(data) - 1}:
            store.put(path, data[:length])
            assert verify_log(store).findings, f"{length} of {path}"
            try:
                assert rows_in(Log.open(store, clock=ManualClock(START_MS)).read()) == rows
            except ClogError:
                pass
        store.put(path, data)
