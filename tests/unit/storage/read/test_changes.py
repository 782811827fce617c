"""What changed in a table between two versions, with the rows that were replaced (S79 to S82)."""

import pickle

import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.storage import InvalidInputError, Log, NotFoundError, VersionExpiredError, snapshot
from clog.storage.read import changes as changes_module
from clog.storage.read.changes import changes_batches, plan_changes
from clog_testing.counting import CountingStore
from clog_testing.crash import expire, inside

ROWS = [{"id": i, "city": "Riga", "n": i} for i in range(8)]
IDLE = {"min.cleanable.dirty.ratio": 0, "delete.retention.ms": 1000, "segment.bytes": 200}


@pytest.fixture
def orders(store, clock):
    log = Log.create(store, 1, IDLE, clock=clock, key="id", like=ROWS)
    log.append(ROWS)
    return log


def told(log, **asked):
    """What changed, in short."""
    rows = log.changes(**asked).to_pylist()
    return [(row["_change_type"], row["id"], row["n"]) for row in rows]


def cleaned(log, clock):
    """Lets tombstones expire, and the cleaner remove them."""
    for _ in range(3):
        log.roll()
        clock.advance(2000)
        Cleaner(log).run_once(force=True)


def test_a_pair_of_images_a_delete_and_an_insert(orders):
    """A key that ends as it began gives nothing, and one that came and went neither (S79)."""
    orders.append([{"id": 1, "city": "Riga", "n": 50}, {"id": 2, "city": "Oslo", "n": 2}])
    orders.append([{"id": 20, "city": "Riga", "n": 20}, {"id": 21, "city": "Riga", "n": 21}])
    orders.append([{"id": 2, "city": "Riga", "n": 2}])
    orders.delete([3, 21, 99])
    assert told(orders, since=1) == [
        *(("update_preimage", 1, 1), ("update_postimage", 1, 50)),
        *(("insert", 20, 20), ("delete", 3, 3)),
    ]
    assert told(orders, since=5) == []
    found = orders.changes(since=1, until=2).to_arrow()
    assert found.schema.names[:3] == ["id", "city", "n"]
    assert found.schema.field("_commit_timestamp").type == pa.timestamp("us", "UTC")
    assert found["_commit_version"].to_pylist() == [2] * 4


def test_each_record_changes_the_table(orders):
    """In the order of commits, each with its own version; also what is gone again (S80)."""
    orders.append([{"id": 1, "city": "Riga", "n": 50}, {"id": 1, "city": "Riga", "n": 51}])
    orders.delete([1, 99])
    orders.append([{"id": 1, "city": "Riga", "n": 52}])
    rows = orders.changes(since=1, mode="each").to_pylist()
    assert [(r["_commit_version"], r["_change_type"], r["n"]) for r in rows] == [
        (2, "update_preimage", 1),
        (2, "update_postimage", 50),
        (2, "update_preimage", 50),
        (2, "update_postimage", 51),
        (3, "delete", 51),
        (4, "insert", 52),
    ]


def test_cleaning_takes_nothing_from_the_changes(orders, clock):
    """Not even a delete whose tombstone came and was removed in between, in either mode."""
    orders.append([{"id": 1, "city": "Riga", "n": 50}])
    orders.delete([2])
    orders.append([{"id": 1, "city": "Riga", "n": 51}])
    net, each = (told(orders, since=1, until=4, mode=mode) for mode in ("net", "each"))
    cleaned(orders, clock)
    assert orders.handle.manifest().tombstones_removed
    assert sorted(told(orders, since=1)) == sorted(net)
    assert told(orders, since=1, mode="each") == each


def test_rows_that_leave_without_a_record_are_deletes(orders):
    """`delete_records`, as retention, leaves no tombstone (S79, S81)."""
    orders.append([{"id": 0, "city": "Riga", "n": 50}])
    orders.delete_records({0: 2})
    for mode in ("net", "each"):
        assert told(orders, since=2, mode=mode) == [("delete", 1, 1)]
    assert told(orders, since=1)[-1] == ("delete", 1, 1)
    assert told(orders, since=0, until=1) == [("insert", i, i) for i in range(2, 8)]  # S36


def test_erased_rows_are_deletes(orders, clock):
    """With and without tombstones."""
    orders.erase([1])
    orders.erase([2], notify=False)
    cleaned(orders, clock)
    for mode in ("net", "each"):
        assert sorted(told(orders, since=1, mode=mode)) == [("delete", 1, 1), ("delete", 2, 2)]


def test_a_visible_transaction_is_whole_at_its_end(orders):
    """Its records are changes of the version that shows them, whatever came in between."""
    work = orders.transaction("load", visible=True)
    work.append([{"id": 1, "city": "Riga", "n": 50}])
    orders.append([{"id": 2, "city": "Riga", "n": 60}])
    assert told(orders, since=1) == []
    work.append([{"id": 1, "city": "Riga", "n": 51}])
    end = work.commit().version
    assert told(orders, since=1)[1::2] == [
        ("update_postimage", 2, 60),
        ("update_postimage", 1, 51),
    ]
    rows = orders.changes(since=1, mode="each").to_pylist()
    assert {row["_commit_version"] for row in rows} == {end}


def test_both_sides_are_in_the_later_schema(orders):
    """What was read as an integer is no change when it is read as a wider one."""
    orders.evolve(add={"value.note": pa.string()}, widen={})
    orders.append(
        [{"id": 1, "city": "Riga", "n": 1}, {"id": 2, "city": "Riga", "n": 2, "note": "!"}]
    )
    rows = orders.changes(since=1).to_pylist()
    assert [(row["id"], row["note"]) for row in rows] == [(2, None), (2, "!")]


def test_versions_cuts_and_times(orders, clock):
    home = snapshot(orders.handle.standing.root, "before", clock=clock)
    then = clock.now_ms()
    clock.advance(10)
    orders.append([{"id": 1, "city": "Riga", "n": 50}])
    wanted = told(orders, since=1)
    assert len(wanted) == 2
    assert told(orders, since=home) == wanted
    assert told(orders, since_time_ms=then, until_time_ms=then + 1000) == wanted
    assert told(orders, since=home, until=home) == []


def test_with_the_highest_order_an_earlier_record_may_stay(make_log):
    """A record that loses changes nothing; a tombstone that wins is a delete, also where a mask
    hides it (S56)."""
    log = make_log(config={**IDLE, "compaction.strategy": "timestamp", "table.masks": "true"})

    def put(value, time_ms):
        log.append([{"key": "k", "value": value, "timestamp": time_ms}])

    put("a", 500)
    put("b", 400)
    for mode in ("net", "each"):
        assert log.changes(since=1, mode=mode).to_pylist() == []
    put(None, 600)
    log.roll()
    Cleaner(log).run_once(force=True)
    for mode in ("net", "each"):
        ((kind, value),) = [
            (row["_change_type"], row["value"])
            for row in log.changes(since=2, mode=mode).to_pylist()
        ]
        assert (kind, value) == ("delete", b"a")


def test_parts_share_the_changes(orders, store, clock, monkeypatch):
    """No pair of images is parted; each is read from plain data, in groups of any size."""
    for n in range(6):
        orders.append([{"id": i, "city": "Oslo", "n": n} for i in range(n, n + 3)])
    orders.delete_records({0: 1})
    handle = orders.handle
    (split,) = plan_changes(handle.manifest_at(1), handle.manifest())

    def read(part):
        return [row for b in changes_batches(inside(store), part) for row in b.to_pylist()]

    whole = read(split)
    parts = split.parts([(piece,) for piece in split.news.own])
    assert len(parts) > 2
    monkeypatch.setattr(changes_module, "GROUP_ROWS", 1)
    for some in (parts, pickle.loads(pickle.dumps(parts))):
        rows = [read(part) for part in some]
        assert sorted(str(row) for mine in rows for row in mine) == sorted(map(str, whole))
        for mine in rows:
            kinds = [row["_change_type"] for row in mine]
            assert kinds.count("update_preimage") == kinds.count("update_postimage")


def test_costs_follow_what_changed(make_log, store):
    """A thousand keys, ten of which changed: their former rows are looked up in one object (S82).
    The manifest of the older version costs its commit, the snapshot's and the edits'."""
    counting = CountingStore(store)
    log = make_log(on=counting)
    log.append([{"key": f"{i}", "value": "x" * 50} for i in range(20_000)])
    log.append([{"key": f"{i}", "value": "y"} for i in range(10)])
    list(log.changes(since=1))
    with counting.count() as counts:
        assert sum(batch.num_rows for batch in log.changes(since=1)) == 20
    assert counts["get"] + counts["get_ranges"] <= 8
    assert not counts["list"]
    counting.reset()
    sum(batch.num_rows for batch in log.changes(since=1))
    assert counting.bytes_in < 100_000


def test_keys_that_are_close_together(orders, monkeypatch):
    """In large objects without indexes statistics find the former rows: the same ones."""
    rows = [{"id": i, "city": "Oslo", "n": -i} for i in (*range(3), 7, 300)]
    orders.append([{"id": 300, "city": "Riga", "n": 300}])
    orders.append(rows)
    wanted = told(orders, since=2)
    assert len(wanted) == 10
    monkeypatch.setattr(changes_module, "UNINDEXED_ROWS", 0)
    for most in (1, 2, 16):
        monkeypatch.setattr(changes_module, "RANGES_MAX", most)
        for room in (0, 1000):
            monkeypatch.setattr(changes_module, "NEAR", room)
            assert told(orders, since=2) == wanted
    orders.append([{"id": 300, "city": "Riga", "n": 300}])
    assert len(told(orders, since=3)) == 2


def test_what_cannot_be_asked(orders, clock):
    """The sentence for the arguments of `latest`, and for what is missing."""
    for given in ((0,), ({0: 5},), ({0: 5}, 0)):
        with pytest.raises(InvalidInputError, match=r"log\.latest\(\{0: 12\}\)"):
            orders.changes(*given)
    with pytest.raises(InvalidInputError, match="changes need a beginning"):
        orders.changes(until=1)
    with pytest.raises(InvalidInputError, match="since=1 is after until=0"):
        orders.changes(since=1, until=0)
    with pytest.raises(InvalidInputError, match="since=1 and since_time_ms=5 both"):
        orders.changes(since=1, since_time_ms=5)
    with pytest.raises(InvalidInputError, match="mode='all'; allowed: net, each"):
        orders.changes(since=1, mode="all")
    with pytest.raises(NotFoundError, match="does not exist yet"):
        orders.changes(since=7)


def test_a_column_of_the_same_name(store):
    rows = [{"id": 1, "_change_type": "x"}]
    log = Log.create(store, 1, key="id", like=rows)
    with pytest.raises(InvalidInputError, match=r"column _change_type of .* rename it"):
        log.changes(since=0)


def test_an_expired_version_says_how_it_is_kept(orders, clock):
    """In numbers, by each door to an older version."""
    orders.append(ROWS)
    expire(orders)
    wanted = r"1 d after .*file\.delete\.delay\.ms=86400000.*reader\.hold\.max\.ms=0"
    for ask in (orders.changes, lambda since: orders.table(at=since)):
        with pytest.raises(VersionExpiredError, match=wanted):
            ask(since=0)


def test_the_winner_is_one_that_is_shown():
    """S79: where the strategy changed in between, and the record that had won was deleted since,
    the tables at both versions show the other one.
    """
    config = {"compaction.strategy": "timestamp"}
    log = Log.create("memory://changes-of-winners", 1, config, key="id", like=[{"id": 1, "n": 1}])
    later, sooner = ({"key": 1, "value": {"n": n}, "timestamp": 1000 * n} for n in (2, 1))
    since = log.append([later, sooner]).version
    log.alter({"compaction.strategy": "offset"})
    log.delete_records({0: 1})
    until = since + 1
    assert log.table(at=since).to_pylist() == log.table(at=until).to_pylist() == [{"id": 1, "n": 1}]
    assert log.changes(since=since, until=until).to_pylist() == []
