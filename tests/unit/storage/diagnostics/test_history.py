"""The history of a log: what each commit did."""

from clog.storage import Log, ManualClock


def test_history_tells_each_commit_in_order(tmp_path):
    clock = ManualClock(5000)
    log = Log.create(str(tmp_path / "log"), partitions=2, clock=clock)
    log.append([{"key": "a", "value": "1"}, {"key": "b", "value": None}], producer=("p", 1))
    clock.advance(10)
    log.alter({"retention.ms": "1000"})
    log.delete_records({0: -1, 1: -1})
    told = list(log.history())
    assert [c.operation for c in told] == ["create", "append", "alter", "delete-records"]
    assert [c.version for c in told] == [0, 1, 2, 3]
    append = told[1]
    assert (append.records, append.tombstones, append.writers) == (2, 1, ("p",))
    assert append.size_bytes == (12 + 2) + (12 + 1)
    assert append.object_bytes > 0
    assert [c.time_ms for c in told] == [5000, 5000, 5010, 5010]
    assert [c.version for c in log.history(start=2)] == [2, 3]
