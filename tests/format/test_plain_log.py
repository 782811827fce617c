"""What a log of one writer consists of: its files, their sizes, their fields, the requests.

Whoever adds a field, a file or a request for all logs meets this list, and says so here.
"""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clog.storage import Log, ManualClock
from clog.storage.env import SeededIds
from clog.storage.format.log_info import OF_EACH_LOG
from clog_testing.crash import memory_store
from clog_testing.faults import FaultyStore

NOW_MS = 1_700_000_000_000
CREATE = [
    *("get _clog/log", "get _clog/commits/0", "get _clog/latest"),
    *("create blocks/0", "create commits/0", "get blocks/0", "create _clog/log"),
    *("get _clog/log", "get latest", "get commits/2", "get commits/1", "get commits/0"),
]
APPENDS = [
    *("put data/0", "create commits/1", "get blocks/0"),
    *("put data/1", "create commits/2", "get blocks/0"),
    *("get commits/3", "create commits/3", "get blocks/0"),
    *("put data/3", "create commits/4", "get blocks/0", "put latest"),
]
SIZES = {
    "_clog/log": 173,
    "blocks/0": 125,
    "commits/0": 1291,
    "commits/1": 1349,
    "commits/2": 1978,
    "commits/3": 1089,
    "commits/4": 3032,
    "latest": 13,
}
BODY = {"version", "id", "parent", "time_ms", "operation", "edit", "earlier", "head"}
HEAD = {
    *("log", "config", "config_epoch", "snapshot", "orphan_floor", "oldest_readable"),
    *("partitions", "writers", "older_writers"),
}
COLUMNS = {
    "start",
    "end",
    "base",
    "bytes",
    "chunks",
    "first_ms",
    "created_ms",
    "jitter_ms",
    "changed",
}
LOG = {"log_id", "created_ms", "partitions", "partitioner", "seed", "features", "schema"}
OBJECT = {"path", "bytes", "footer", "xxh3_128", "rows", "stamp", "dense", "chunks"}
CHUNKS = {"p", "rows", "base", "bytes", "first_ms", "max_ms", "tombstones"}


def named(path):
    """A path without the log's id, zeros and the ids of objects."""
    path = path.split("/", 2)[-1] if path.count("/") > 1 and len(path.split("/")[1]) == 32 else path
    folder, _, name = path.rpartition("/")
    number = name.partition(".")[0].partition("-")[0]
    return f"{folder}/{int(number)}" if number.isdecimal() else path


@pytest.fixture
def made():
    """A log of five commits, and the requests to its store by each process."""
    store, asked = FaultyStore(memory_store()), []

    def since():
        asked.append([f"{call.operation} {named(call.path)}" for call in store.calls])
        store.calls.clear()

    log = Log.create(store, 2, clock=ManualClock(NOW_MS), ids=SeededIds(1))
    since()
    log.append([{"key": "a", "value": "1"}, {"key": "b", "value": None}], partition=[0, 1])
    log.append([{"key": "a", "value": "2"}], partition=0, producer=("w", 1))
    log.alter({"segment.ms": 1_000_000})
    log.append([{"key": "a", "value": "3"}], partition=0)
    since()
    files = {found.path: store.inner.get(found.path) for found in store.inner.list("")}
    return asked, files


def test_its_requests_are_these(made):
    """COMMIT.md §7: one by one."""
    assert made[0] == [CREATE, APPENDS]


def test_its_files_are_these_of_these_sizes(made):
    """Of documents; an object is Arrow's Parquet file, and 16 bytes, its footer's checksum."""
    _, files = made
    documents = {named(path): data for path, data in files.items() if "/data/" not in path}
    assert {name: len(data) for name, data in documents.items()} == SIZES
    objects = {path: data for path, data in files.items() if "/data/" in path}
    assert sorted(map(named, objects)) == ["data/0", "data/1", "data/3"]
    for described in objects_of(documents):
        (data,) = (data for path, data in objects.items() if path.endswith(described["path"]))
        assert len(data) == described["bytes"]
        assert int.from_bytes(data[-8:-4], "little") + 8 == described["footer"]
        group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
        columns = [group.column(i) for i in range(group.num_columns)]
        assert [column.path_in_schema for column in columns] == ["key", "value", "timestamp"]
        begin = min(column.dictionary_page_offset or column.data_page_offset for column in columns)
        pages = sum(column.total_compressed_size for column in columns)
        assert (begin, begin + pages) == (4, len(data) - described["footer"] - 16)


def test_its_documents_have_these_fields(made):
    """No field of what nobody used."""
    documents = {named(path): data for path, data in made[1].items() if "/commits/" in path}
    for n in range(5):
        body = json.loads(documents[f"commits/{n}"].partition(b"\n")[2])
        assert set(body) - {"earlier_parent"} == BODY
        head = body["head"]
        assert (set(head), set(head["log"]), set(head["partitions"])) == (HEAD, LOG, COLUMNS)
        read, write = map(list, (OF_EACH_LOG.read, OF_EACH_LOG.write))
        assert head["log"]["features"] == {"read": read, "write": write}
        assert all(len(writer) == 6 for writer in head["writers"])
    edits = [edit_of(documents, n) for n in range(5)]
    expected = [{"create", "config"}, {"add"}, {"add", "writers"}, {"config"}, {"add"}]
    assert [set(edit) for edit in edits] == expected
    for described in objects_of(documents):
        assert (set(described), set(described["chunks"])) == (OBJECT, CHUNKS)


def edit_of(documents, n):
    return json.loads(documents[f"commits/{n}"].partition(b"\n")[2])["edit"]


def objects_of(documents):
    return [o for n in (1, 2, 4) for o in edit_of(documents, n)["add"]["objects"]]
