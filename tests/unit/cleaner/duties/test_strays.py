"""What refused writers left at the root of a published log: Delta's own files are removed, nothing
else is (S63, FORMAT.md §14).
"""

import json
import logging

import pytest

from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_orphans
from clog.storage import Log
from clog.storage.env import SeededIds

pytest.importorskip("pyroaring")
DAY_MS = 86_400_000
UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
ROWS = f"part-00000-{UUID}-c000.snappy.parquet"
VECTOR = f"deletion_vector_{UUID}.bin"
STRANGERS = (
    "part-00000-1.parquet",
    f"part-00000-{UUID}-c000.snappy.parquet.bak",
    f"part-00000-{UUID.upper()}-c000.snappy.parquet",
    f"part-00000-{UUID}-c000.csv",
    f"part-00000-{UUID}-c000/1.parquet",
    f"part-/{ROWS}",
    f"sub/{ROWS}",
    f"data/{ROWS}",
    f"data/00000-0-{UUID}-0-00001.parquet",
    f"_clog/{ROWS}",
    f"metadata/{VECTOR}",
    "deletion_vector_1.bin",
    f".{ROWS.replace('00000', '00001')}.crc",
    "notes.txt",
)


@pytest.fixture
def log(clocked_store, clock):
    """A log that was published an hour ago."""
    log = Log.create(clocked_store, 1, clock=clock, ids=SeededIds(1))
    log.append([{"key": "a", "value": "1"}])
    log.publish("delta")
    clock.advance(3_600_000)
    return log


def swept(log, clock, **more):
    return sweep_orphans(Work(log.handle, clock.now_ms()), **more).objects


def foreign(store, version, *actions):
    """A version that another writer made."""
    body = "".join(json.dumps(action) + "\n" for action in actions)
    store.create(f"_delta_log/{version:020d}.json", body.encode())


def there(store):
    return {found.path for found in store.list("")}


@pytest.mark.parametrize(
    "name",
    [
        ROWS,
        VECTOR,
        ROWS.replace(".snappy", ".zstd"),
        ROWS.replace(".snappy", ""),
        ROWS.replace("00000", "123456"),
    ],
)
def test_what_a_refused_writer_left_goes_after_a_day(log, clocked_store, clock, caplog, name):
    """S63: with the checksum beside it, and it is logged."""
    clocked_store.put(name, b"left")
    clocked_store.put(f".{name}.crc", b"sum")
    with caplog.at_level(logging.WARNING):
        assert name not in swept(log, clock)
        assert "1 files of 4 bytes that another writer of its view left" in caplog.text
        clock.advance(DAY_MS + 1)
        before = there(clocked_store)
        assert {name, f".{name}.crc"} <= {*swept(log, clock, dry_run=True)}
        assert there(clocked_store) >= before - {name}
        assert name in there(clocked_store)
        assert {name, f".{name}.crc"} <= {*swept(log, clock)}
    assert not there(clocked_store) & {name, f".{name}.crc"}
    assert "2 files of 7 bytes that refused writers of its view left" in caplog.text


def test_nothing_else_goes(log, clocked_store, clock):
    """S63: whatever its name, however old it is, whether it is beside Delta's files or
    below them.
    """
    for name in STRANGERS:
        clocked_store.put(name, b"kept")
    clocked_store.put(ROWS, b"left")
    clock.advance(30 * DAY_MS)
    log.append([{"key": "a", "value": "2"}])
    log.publish("delta")
    assert ROWS in swept(log, clock)
    assert {name for name in STRANGERS if name in there(clocked_store)} == {*STRANGERS}


@pytest.mark.parametrize("early_ms", [-1, 0, 299_999])
def test_what_stood_there_before_the_first_publication_stays(clocked_store, clock, early_ms):
    """S63: it is another writer's, by whichever of two clocks that differ by five minutes; later
    publications and a checkpoint do not move that time.
    """
    log = Log.create(clocked_store, 1, clock=clock, ids=SeededIds(1))
    log.append([{"key": "a", "value": "1"}])
    if early_ms < 0:
        clocked_store.put(ROWS, b"kept")
        clock.advance(-early_ms)
    log.publish("delta")
    if early_ms >= 0:
        clock.advance(early_ms)
        clocked_store.put(ROWS, b"kept")
    clock.advance(DAY_MS)
    clocked_store.put(VECTOR, b"left")
    clock.advance(30 * DAY_MS)
    for i in range(12):
        log.append([{"key": "a", "value": str(i)}])
        log.publish("delta")
    assert "_delta_log/00000000000000000010.checkpoint.parquet" in there(clocked_store)
    assert VECTOR in swept(log, clock)
    assert ROWS in there(clocked_store)


def said(store):
    """What clog's first version says about itself."""
    lines = store.get("_delta_log/00000000000000000000.json").splitlines()
    return next(json.loads(line) for line in lines if b"commitInfo" in line)


def added(where):
    """Rows and a vector that a version adds."""
    vector = {"storageType": "p", "pathOrInlineDv": f"/x/{VECTOR}", "sizeInBytes": 1}
    return {"path": where + ROWS, "size": 4, "deletionVector": vector, "partitionValues": {}}


@pytest.mark.parametrize("where", ["", "file:///elsewhere/"])
def test_what_a_version_names_stays(log, clocked_store, clock, where):
    """S63: wherever it claims to be, and whoever made it."""
    other = ROWS.replace("00000", "00001")
    for name in (ROWS, other, VECTOR):
        clocked_store.put(name, b"rows")
    clock.advance(2 * DAY_MS)
    foreign(clocked_store, 1, said(clocked_store), {"add": added(where)})
    assert other in swept(log, clock)
    assert {ROWS, VECTOR} <= there(clocked_store)


def test_nothing_goes_before_clog_has_published_again(log, clocked_store, clock):
    """S63: another writer committed all the same: its files stay until none of its versions is
    left.
    """
    for name in (ROWS, VECTOR):
        clocked_store.put(name, b"rows")
    clock.advance(2 * DAY_MS)
    foreign(clocked_store, 1, {"commitInfo": {"operation": "WRITE"}}, {"add": added("")})
    swept(log, clock)
    assert {ROWS, VECTOR} <= there(clocked_store)
    assert log.publish("delta").table_version == 2
    assert {ROWS, VECTOR} <= {*swept(log, clock)}
    assert log.table().to_arrow().num_rows == 1


def test_nothing_goes_while_others_may_write(log, clocked_store, clock):
    """S63: a writer that dropped clog's feature from the protocol may have named what nobody knows
    yet.
    """
    clocked_store.put(ROWS, b"rows")
    clock.advance(2 * DAY_MS)
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": []}
    protocol["writerFeatures"] = ["deletionVectors"]
    foreign(clocked_store, 1, said(clocked_store), {"protocol": protocol})
    swept(log, clock)
    assert ROWS in there(clocked_store)


@pytest.mark.parametrize("broken", ["view", "metadata"])
def test_where_the_view_cannot_be_read_nothing_goes(log, clocked_store, clock, caplog, broken):
    """S63: nor if the table there is not clog's."""
    clocked_store.put(ROWS, b"rows")
    clock.advance(2 * DAY_MS)
    path = "_delta_log/00000000000000000000.json"
    if broken == "view":
        clocked_store.put(path, b"{")
    else:
        clocked_store.delete(path)
        foreign(clocked_store, 0, {"metaData": {"id": "x", "configuration": {}}})
    with caplog.at_level(logging.WARNING):
        swept(log, clock)
    assert ROWS in there(clocked_store)
    assert "1 files of 4 bytes that another writer" in caplog.text


def test_of_another_logs_view_nothing_goes(clocked_store, clock):
    """S47, S63: a view that was there before is replaced first; then its own time counts."""
    first = Log.create(clocked_store, 1, clock=clock, ids=SeededIds(1))
    first.append([{"key": "a", "value": "1"}])
    first.publish("delta")
    clock.advance(3_600_000)
    clocked_store.put(ROWS, b"left")
    for found in list(clocked_store.list("_clog/")):
        clocked_store.delete(found.path)
    clock.advance(3_600_000)
    log = Log.create(clocked_store, 1, clock=clock, ids=SeededIds(2))
    log.append([{"key": "a", "value": "1"}])
    log.publish("iceberg")
    clock.advance(2 * DAY_MS)
    swept(log, clock)
    log.publish("delta")
    swept(log, clock)
    assert ROWS in there(clocked_store)


def test_a_log_that_was_never_published_lists_nothing(clocked_store, clock):
    """S63: its root is not that of a table."""
    log = Log.create(clocked_store, 1, clock=clock, ids=SeededIds(1))
    clocked_store.put(ROWS, b"kept")
    clock.advance(2 * DAY_MS)
    swept(log, clock)
    assert ROWS in there(clocked_store)
