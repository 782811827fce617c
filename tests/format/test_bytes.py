"""The bytes of documents, pinned: the format is never changed by accident."""

from dataclasses import replace

from clog.storage.format.commits import Commit, EditRecord, edit_to_json, encode_commit, read_commit
from clog.storage.format.documents import commit_path, snapshot_path
from clog.storage.format.manifest import read_snapshot, write_snapshot
from clog.storage.format.transactions import AppendedBy, WriterEntry
from clog.storage.store import open_store
from clog_testing.histories import append_edit, applied, fresh_manifest

COMMIT = (
    '{"clog":"commit","format":1,"bytes":1231,'
    '"xxh3_128":"d67bc2a43cca68fc5e4bca9de6f26438","encoding":"json"}\n{"version":1,'
    '"id":"b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1","time_ms":1001,"operation":"append","edit":{'
    '"add":{"objects":[{'
    '"path":"data/00000000000000000000-4c1f4c1f4c1f4c1f4c1f4c1f4c1f4c1f.parquet",'
    '"bytes":660,"footer":500,"xxh3_128":"4c1f4c1f4c1f4c1f4c1f4c1f4c1f4c1f","rows":3,'
    '"stamp":0,"dense":true,"chunks":{"p":[0,1],"rows":[2,1],"base":[0,0],"bytes":[40,'
    '20],"first_ms":[1001,1001],"max_ms":[1001,1001],"tombstones":[0,0]}}],"rolls":[]},'
    '"writers":[["w","producer",null,7,"ab",0,1]]},"parent":"a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0",'
    '"earlier":[],"head":{"log":{"log_id":"11111111111111111111111111111111",'
    '"created_ms":1000,"partitions":2,"partitioner":"murmur2","seed":"0123456789abcdef",'
    '"features":{"read":["dead-rows","undecided-records"],"write":["transactions",'
    '"superseded-rows","publications","reader-holds","foreign-positions","named-cuts",'
    '"proposals","whole-transactions"]},'
    '"schema":{"key":"binary","value":"binary"}},'
    '"config":{},"config_epoch":0,"snapshot":null,"orphan_floor":0,"oldest_readable":0,'
    '"partitions":{"start":[0,0],"end":[2,1],"base":[0,0],"bytes":[40,20],"chunks":[1,1],'
    '"first_ms":[1001,1001],"created_ms":[1001,1001],"jitter_ms":[0,0],"changed":[0,0]},'
    '"writers":[["w","producer",null,7,"ab",1]],"older_writers":null}}'
)

SNAPSHOT = (
    '{"clog":"snapshot","format":1,"bytes":1516,'
    '"xxh3_128":"d2e258a8a31f3f7b2029f45e1b35797d","encoding":"json"}\n{"version":1,'
    '"id":"00000000000000000000000000000001","time_ms":1001,"head":{"log":{'
    '"log_id":"11111111111111111111111111111111","created_ms":1000,"partitions":2,'
    '"partitioner":"murmur2","seed":"0123456789abcdef",'
    '"features":{"read":["dead-rows","undecided-records"],"write":["transactions",'
    '"superseded-rows","publications","reader-holds","foreign-positions","named-cuts",'
    '"proposals","whole-transactions"]},'
    '"schema":{"key":"binary","value":"binary"}},"config":{},"config_epoch":0,'
    '"snapshot":null,"orphan_floor":0,"oldest_readable":0,"partitions":{"start":[0,0],'
    '"end":[2,1],"base":[0,0],"bytes":[40,20],"chunks":[1,1],"first_ms":[1001,1001],'
    '"created_ms":[1001,1001],"jitter_ms":[0,0],"changed":[0,0]},"writers":[["w",'
    '"producer",null,7,"ab",1]],"older_writers":null},"manifest":{"first_dirty":[0,0],'
    '"objects":{'
    '"path":["data/00000000000000000000-4c1f4c1f4c1f4c1f4c1f4c1f4c1f4c1f.parquet"],'
    '"bytes":[660],"footer":[500],"xxh3_128":["4c1f4c1f4c1f4c1f4c1f4c1f4c1f4c1f"],'
    '"rows":[3],"stamp":[0],"dense":[true]},"segments":{"p":[0,1],"base":[0,0],"next":[2,'
    '1],"created_ms":[1001,1001],"chunks":[1,1]},"chunks":{"object":[0,0],"row":[0,2],'
    '"rows":[2,1],"base":[0,0],"next":[2,1],"bytes":[40,20],"first_ms":[1001,1001],'
    '"max_ms":[1001,1001],"tombstones":[0,0],"version":[1,1],"append_time_ms":[-1,-1],'
    '"horizon_min":[-1,-1],"horizon_max":[-1,-1],"horizon":[-1,-1],"up_to":[-1,-1]},'
    '"dead":[],"pages":[],"released":{"path":[],"bytes":[],"version":[],"time_ms":[]},'
    '"tombstones_removed":{"p":[],"version":[],"offset":[]},"uncleanable":{}}}'
)


def appended():
    """An append of three records to an empty log, by a producer; the manifest it leaves."""
    empty = fresh_manifest(2)
    writer = WriterEntry("w", "producer", None, 7, "ab", 1)
    edit = replace(
        append_edit(empty, {0: 2, 1: 1}, "4c1f" * 8), writers=(AppendedBy(writer, 0, 1),)
    )
    return edit, applied(empty, edit)


def test_the_bytes_of_a_commit():
    """FORMAT.md §2, §3; and they are read back."""
    edit, manifest = appended()
    record = EditRecord(1, "b1" * 16, 1_001, "append", {"edit": edit_to_json(edit)})
    commit = Commit(record, "a0" * 16, (), manifest.head)
    assert encode_commit(commit).decode() == COMMIT
    store = open_store("memory://the-bytes-of-a-commit")
    store.put(commit_path(1), COMMIT.encode())
    assert read_commit(store, 1) == commit


def test_the_bytes_of_a_snapshot():
    """FORMAT.md §4; and they are read back."""
    _, manifest = appended()
    store = open_store("memory://the-bytes-of-a-snapshot")
    write_snapshot(store, manifest, new_id=lambda: "never")
    assert store.get(snapshot_path(1)).decode() == SNAPSHOT
    assert read_snapshot(store, 1) == manifest
