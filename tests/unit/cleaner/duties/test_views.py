"""Files of published views: what no version names is removed, what others put beside it stays."""

import os
import time

import pytest

from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_orphans
from clog.storage import Log, ManualClock
from clog.storage.format import documents
from clog.storage.store.contract import temporary_name

pytest.importorskip("pyroaring")
pytest.importorskip("fastavro")
DAY_MS = 86_400_000
_ID = "c" * 32
OURS = {
    "delta": ["deletion_vector_" + "-".join((_ID[:8], *[_ID[:4]] * 3, _ID[:12])) + ".bin"],
    "iceberg": [_ID + end for end in ("-data.avro", "-deletes.avro", "-list.avro", ".puffin")],
}
STRANGE = [
    *(".keep", ".env", "notes.txt", "note.avro", f"{_ID}.avro", f"{_ID}-data.avro.bak", _ID),
    *("deletion_vector_1.bin", f".{_ID}-list.avro", f"kept/{_ID}-list.avro"),
    f"deletion_vector_{_ID}.bin",
]


@pytest.fixture
def store(clocked_store):
    return clocked_store


@pytest.mark.parametrize("name", OURS)
def test_strangers_files_among_those_of_a_view_stay(make_log, put, store, clock, name):
    """COMMIT.md §5: names that clog makes, in full; those that it makes for another format, too."""
    log = make_log()
    put(log, "a=1 b=1 a=2")
    log.publish(name)
    (other,) = OURS.keys() - {name}
    folder = documents.view_folder(name, 0)
    strange = [folder + path for path in (*STRANGE, *OURS[other])]
    for path in (*strange, *(folder + path for path in OURS[name])):
        log.handle.store.put(path, b"x")
    clock.advance(3 * DAY_MS)
    put(log, "a=3")
    log.publish(name)
    done = sweep_orphans(Work(log.handle, clock.now_ms()))
    swept = {path for path in done.objects if path.startswith(documents.VIEWS)}
    assert swept == {folder + path for path in OURS[name]}
    left = {found.path for found in log.handle.store.list(documents.VIEWS)}
    assert left >= set(strange)


@pytest.mark.parametrize(("name", "folder"), [("delta", "_delta_log"), ("iceberg", "metadata")])
def test_what_a_publisher_that_died_left_beside_a_view_is_swept(tmp_path, name, folder):
    """Otherwise an erasure would wait for it forever; what is being written stays."""
    clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
    log = Log.create(tmp_path / "log", partitions=1, clock=clock)
    log.append([{"key": "a", "value": "1"}])
    log.publish(name)
    beside = tmp_path / "log" / folder
    left, young = (beside / temporary_name(".probe", digit * 32) for digit in "ab")
    for path in (left, young):
        path.touch()
    clock.advance(3 * DAY_MS)
    os.utime(young, times=(clock.now_ms() / 1000,) * 2)
    assert f"{folder}/{left.name}" in sweep_orphans(Work(log.handle, clock.now_ms())).objects
    assert not left.exists()
    assert young.exists()
