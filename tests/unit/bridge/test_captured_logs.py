"""Logs of a captured database, without the database: groups, cuts, and what a crash in between
leaves.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from clog.bridge.capturing.logs import ID, Filler, Home, TableLog
from clog.bridge.capturing.settings import CaptureSettings
from clog.bridge.capturing.tables import Changes, Column, SourceTable
from clog.bridge.postgres.source import Identity
from clog.bridge.postgres.types import Type, plan_from
from clog.cleaner import Cleaner
from clog.storage import (
    CommitConflictError,
    InvalidInputError,
    Log,
    ManualClock,
    SourceError,
    SourceReplacedError,
    TransactionFencedError,
    VersionExpiredError,
)
from clog.storage.cuts import cuts_of, drop_cut, name_cut
from clog.storage.env import SystemIds
from clog.storage.spi import together
from clog_testing.clocked import ClockedStore
from clog_testing.crash import Folder, memory_store
from clog_testing.delaying import DelayingStore

IDENTITY = Identity("77", 5, 1, 150_000, 10_000)
INT8, TEXT = 20, 25
TYPES = {
    INT8: Type(INT8, "int8", True, "b", 0, -1, 0, 0, ",", False),
    TEXT: Type(TEXT, "text", True, "b", 0, -1, 0, 0, ",", False),
}


class Settings(CaptureSettings):
    """Opens logs in folders of one store."""

    store = None

    def opened(self, url):
        return self._reaching(Log.open(Folder(self.store, url), clock=self.clock))

    def made(self, url, creation):
        root = Folder(self.store, url)
        return self._reaching(Log.create(root, clock=self.clock, exist_ok=True, **creation()))

    def _reaching(self, log):
        log.handle.reach = lambda url: Folder(self.store, url.partition("/log/")[2])
        return log


class Disk:
    """A database's logs."""

    def __init__(self, store, clock):
        self.store, self.clock = store, clock

    def settings(self, store=None):
        made = Settings(
            partitions=1,
            config={},
            storage_options=None,
            single_writer=False,
            clock=self.clock,
            ids=SystemIds(),
        )
        Settings.store = store or self.store
        return made

    def home(self, store=None):
        made = Home("home", IDENTITY, self.settings(store))
        made.begin()
        return made

    def table(self, name, oid=None, store=None, more=()):
        columns = (
            Column("id", 1, INT8, -1, True, True),
            Column("big", 2, TEXT, -1, False, False),
            *(Column(other, i, TEXT, -1, False, False) for i, other in enumerate(more, 3)),
        )
        table = SourceTable(
            *(oid or sum(name.encode()), "public", name, "key"),
            columns=columns,
            defaults=frozenset(),
            toasted=frozenset(["big"]),
            leaves={},
        )
        plan = plan_from(TYPES, columns, what=table.what, text=())
        made = TableLog(table, plan, name, IDENTITY, self.settings(store))
        made.begin({})
        return made


@pytest.fixture
def disk():
    clock = ManualClock(now_ms=1_000_000_000_000)
    return Disk(ClockedStore(memory_store(), clock), clock)


def changes(table, rows, unchanged=(), moved=None):
    """Changes of (id, big) with None for a tombstone's value."""
    ids, bigs = zip(*rows, strict=True)
    deleted = np.array([big is None for big in bigs])
    batch = pa.RecordBatch.from_arrays([pa.array(ids), pa.array(bigs)], schema=table.plan.schema)
    mask = np.array([i in unchanged for i in range(len(rows))])
    return Changes(
        *(table, batch, deleted & ~mask, {"big": mask} if mask.any() else {}),
        moved_from=None if moved is None else np.array(moved, np.int32),
        transactions=np.zeros(len(rows), np.int32),
    )


def take(table, rows, **more):
    """Lets a table take rows."""
    made = changes(table, rows, **more)
    table.take(made, np.zeros(len(rows), np.int64))


def put(table, rows, position, **more):
    """Lets a table take rows in a separate group."""
    take(table, rows, **more)
    table.commit(position)


def rows_of(table, **at):
    return {row["id"]: row["big"] for row in table.log.table(**at).to_arrow().to_pylist()}


@pytest.mark.parametrize("count", [1, 3, 50])
def test_a_group_is_six_requests_deep_at_most(disk, count, monkeypatch):
    """H-C2: from the first of its objects until a reader finds the cut, whatever the number of
    tables; one more confirms the home's commit, before the source is informed.
    """
    far = DelayingStore(disk.store, 100)
    create, created = far.create, []

    def noted(path, data):
        create(path, data)
        if path.startswith("home/") and "/commits/" in path:
            created.append(far.now_ms)

    monkeypatch.setattr(far, "create", noted)
    home, tables = disk.home(far), [disk.table(f"t{i}", store=far) for i in range(count)]
    home.mark_loading(tables)
    for position in (100, 200, 300):
        for table in tables:
            take(table, [(position, "x")])
        before_ms = far.now_ms
        together((one.log, lambda one=one, p=position: one.commit(p)) for one in tables)
        home.cut(position, tables)
        assert created[-1] - before_ms <= 600
    assert len(name_cut(home.log.handle, None).logs) == count + 1


def test_there_is_no_cut_while_tables_are_loaded(disk):
    """S77: it is refused, and the tables are named; the first cut has all of them."""
    home, a, b = disk.home(), disk.table("a"), disk.table("b")
    with pytest.raises(CommitConflictError, match="the first ones"):
        name_cut(home.log.handle, None)
    home.mark_loading([a, b])
    put(a, [(1, "x")], 10)
    with pytest.raises(CommitConflictError, match=r"being loaded.*/a, .*/b"):
        name_cut(home.log.handle, None)
    put(b, [(1, "y")], 20)
    home.cut(20, [a, b])
    cut = name_cut(home.log.handle, "kept", 1000)
    put(a, [(1, "later")], 30)
    assert rows_of(a, at=cut) == {1: "x"}
    assert rows_of(b, at=cut) == {1: "y"}
    assert [one.name for one in cuts_of(home.log.handle)] == ["kept"]
    drop_cut(home.log.handle, "kept")


def test_what_a_crash_left_ahead_is_skipped(disk):
    """S76: killed between L2 and L3, the log is ahead of the cut, which shows what it did."""
    home, a, b = disk.home(), disk.table("a"), disk.table("b")
    put(a, [(1, "x")], 10)
    put(b, [(1, "x")], 10)
    home.cut(10, [a, b])
    put(a, [(1, "y")], 20)  # And then it is killed.
    cut = name_cut(disk.home().log.handle, None)
    assert rows_of(a, at=cut) == {1: "x"}
    again = disk.table("a"), disk.table("b")
    assert [one.position for one in again] == [20, 10]
    with pytest.raises(TransactionFencedError):
        put(b, [(2, "zombie")], 20)
    with pytest.raises(TransactionFencedError):
        home.cut(20, [a, b])
    home = disk.home()
    assert home.position == 10
    put(again[1], [(1, "y")], 20)
    home.cut(20, again)
    cut = name_cut(home.log.handle, None)
    assert [rows_of(one, at=cut) for one in again] == [{1: "y"}, {1: "y"}]


def test_a_cut_shows_its_group_though_the_next_one_is_committed(disk):
    """S74, S76: L2 of the next group runs beside L3, and a kill then leaves logs ahead of the cut
    by two groups.
    """
    home, a, b = disk.home(), disk.table("a"), disk.table("b")
    put(a, [(1, "x")], 10)
    put(b, [(1, "x")], 10)
    name = home.prepared(10, [a, b])
    put(a, [(1, "y")], 20)
    name()
    cut = name_cut(home.log.handle, None)
    assert home.position == 10
    assert [rows_of(one, at=cut) for one in (a, b)] == [{1: "x"}, {1: "x"}]
    home.prepared(20, [a, b])
    put(b, [(1, "z")], 30)  # And then it is killed.
    cut = name_cut(disk.home().log.handle, None)
    assert [rows_of(one, at=cut) for one in (a, b)] == [{1: "x"}, {1: "x"}]
    home, again = disk.home(), [disk.table("a"), disk.table("b")]
    assert [home.position, *(one.position for one in again)] == [10, 20, 30]


def test_who_was_taken_over_finds_it_out_in_the_home(disk):
    """Before it takes over one more log, which would stop the running capture."""
    home = disk.home()
    home.check()
    newer = disk.home()
    with pytest.raises(TransactionFencedError):
        home.check()
    newer.check()


def test_another_database_is_refused_before_it_takes_the_id_up(disk):
    """A capture of the database that these logs have continues."""
    home, a = disk.home(), disk.table("a")
    put(a, [(1, "x")], 10)
    home.cut(10, [a])
    other = Home("home", replace(IDENTITY, database=6), disk.settings())
    with pytest.raises(SourceReplacedError, match="capture into a new URL"):
        other.read()
    put(a, [(1, "y")], 20)
    home.cut(20, [a])


def test_a_truncate_deletes_what_the_log_ever_had(disk):
    """H-C19: each key once per batch, including deleted ones; nothing but these."""
    a = disk.table("a")
    put(a, [(1, "x"), (2, "x"), (1, "y")], 10)
    put(a, [(2, None), (3, "z")], 20)
    a.truncate(0)
    a.commit(30)
    assert rows_of(a) == {}
    tombstones = [row for row in a.log.read(start=5).to_pylist() if row["value"] is None]
    assert sorted({row["key"] for row in tombstones}) == [1, 2, 3]
    assert len(tombstones) <= 5


def test_a_table_that_was_quiet_for_days_is_in_a_cut(disk):
    """S74: the version that the cut names has expired; a later one shows the same."""
    home, a, b = disk.home(), disk.table("a"), disk.table("b")
    for i in range(3):
        put(a, [(1, f"x{i}")], 10 + i)
    put(b, [(1, "x")], 12)
    home.cut(12, [a, b])
    version = a.log.handle.tip.version
    a.log.roll()
    for _ in range(3):
        disk.clock.advance(3 * 86_400_000)
        Cleaner([a.log]).run_once()
    with pytest.raises(VersionExpiredError):
        a.log.table(at=version)
    cut = name_cut(home.log.handle, None)
    assert rows_of(a, at=cut) == {1: "x2"}
    kept = name_cut(home.log.handle, "kept")
    assert rows_of(a, at=kept) == {1: "x2"}


def test_a_log_is_bound_to_its_table(disk):
    """H-C24: one of another oid is not taken for it."""
    put(disk.table("a", oid=7), [(1, "x")], 10)
    with pytest.raises(SourceReplacedError, match="created again"):
        disk.table("a", oid=8)


def test_a_table_may_have_columns_named_as_those_of_records(disk):
    """Its rows are appended as records, and deleted by tombstones."""
    columns = (Column("key", 1, INT8, -1, True, True), Column("value", 2, TEXT, -1, False, False))
    table = replace(disk.table("settings").table, columns=columns, toasted=frozenset())
    plan = plan_from(TYPES, columns, what=table.what, text=())
    made = TableLog(table, plan, "named", IDENTITY, disk.settings())
    made.begin({})
    for position, rows in enumerate([[(1, "x"), (2, "y")], [(1, None)], [(2, "z"), (3, "new")]]):
        put(made, rows, position)
    rows = sorted(made.log.table().to_pylist(), key=str)
    assert rows == [{"key": 2, "value": "z"}, {"key": 3, "value": "new"}]


def test_columns_that_differ_in_case_alone_are_left_out_by_the_user(disk):
    """S61: a database may have them, a log has not: neither a new one nor one of a table that gets
    such a column, or whose column is renamed so. The error says which two, and how to leave one
    out.
    """
    said = r"'big' and 'Big'.*--mask public\.\w+\.COLUMN=drop"
    with pytest.raises(InvalidInputError, match=f"cannot become a log: .*{said}"):
        disk.table("both", more=["Big"])
    put(disk.table("one"), [(1, "a")], 10)
    for more in (["Big"], ["other", "Big"]):
        with pytest.raises(InvalidInputError, match=f"cannot follow: .*{said}"):
            disk.table("one", more=more).evolve()
    assert rows_of(disk.table("one")) == {1: "a"}


def test_a_log_in_which_another_record_wins_is_refused(disk):
    """S56: the source's clock may be behind the clock of the loader."""
    put(disk.table("a"), [(1, "x")], 10)
    Log.open(Folder(disk.store, "a"), clock=disk.clock).alter({"compaction.strategy": "timestamp"})
    with pytest.raises(InvalidInputError, match=r"has a compaction\.strategy other"):
        disk.table("a")


def test_positions_say_which_history(disk):
    """The timeline is the mark."""
    a = disk.table("a")
    put(a, [(1, "x")], 10)
    assert a.log.positions(ID, marks=True) == {f"{IDENTITY.name}/{a.table.oid}": {0: (10, "1")}}


def test_unchanged_values_come_from_where_they_were(disk):
    """H-C3, H-C23: from the log, an earlier group, the same changes, through a swap of keys."""
    a = disk.table("a")
    put(a, [(1, "one"), (2, "two")], 10)
    put(a, [(1, None)], 11, unchanged=[0])
    take(a, [(3, "three")])
    swap = [(1, None), (9, None), (2, None), (1, None), (9, None), (2, None), (3, None)]
    moved = [-1, 0, -1, 2, -1, 4, -1]
    put(a, swap, 12, unchanged=[1, 3, 5, 6], moved=moved)
    assert rows_of(a) == {1: "two", 2: "one", 3: "three"}


def test_a_value_that_is_nowhere_is_never_null(disk):
    """H-C3: neither in the log, nor if the row was deleted before in the same changes."""
    a = disk.table("a")
    with pytest.raises(SourceError, match=r"public\.a\.big"):
        put(a, [(1, None)], 10, unchanged=[0])
    b = disk.table("b")
    put(b, [(1, "x")], 10)
    with pytest.raises(SourceError, match="did not send"):
        put(b, [(1, None), (1, None)], 11, unchanged=[1])


def test_what_a_group_has_is_found_again_on_disk(monkeypatch):
    """H-C3 in a transaction larger than memory: the newest rows, whether kept or written out."""
    monkeypatch.setattr("clog.bridge.capturing.logs.KEPT_BYTES", 200)
    filler = Filler("t", ["v"], lambda _: (pa.array([], pa.binary()), batch([])))

    def batch(values):
        return pa.RecordBatch.from_arrays([pa.array(values, pa.string())], ["v"])

    def fill(keys, values, missing=()):
        mask = np.array([i in missing for i in range(len(keys))])
        return (
            filler.filled(
                *(pa.array(keys, pa.binary()), batch(values), np.zeros(len(keys), bool)),
                *({"v": mask} if missing else {}, None),
            )
            .column("v")
            .to_pylist()
        )

    for round_ in range(5):
        keys = [f"k{i}".encode() for i in range(20)]
        fill(keys, [f"{round_}.{i}" for i in range(20)])
    fill([b"other"], ["o"])
    assert fill([b"k7", b"other", b"k0"], [None, None, "new"], {0, 1}) == ["4.7", "o", "new"]
    filler.end_group()
    with pytest.raises(SourceError):
        fill([b"k7"], [None], {0})


def test_truncate_leaves_what_comes_after_it(disk):
    """H-C19: tombstones for what the log has; of the group's own rows the earlier ones
    are dropped.
    """
    a = disk.table("a")
    put(a, [(i, "x") for i in range(100)], 10)
    take(a, [(200, "gone")])
    a.truncate(0)
    put(a, [(5, "y")], 11)
    assert rows_of(a) == {5: "y"}
    assert sum(a.log.end_offsets().values()) == 201


@pytest.mark.parametrize("is_known", [False, True])
def test_a_log_that_is_evolved_by_hand_takes_the_rows_that_wait(disk, is_known):
    """A column that was added has nulls in rows taken before and after, whether or not the capture
    knows of it when it writes them.
    """
    table = disk.table("t")
    take(table, [(1, "x")])
    note = {"value.note": pa.string()}
    Log.open(Folder(disk.store, "t"), clock=disk.clock).evolve(add=note)
    if is_known:
        table.log.handle.refresh()
    take(table, [(2, "y")])
    table.commit(10)
    put(table, [(3, "z")], 20)
    assert rows_of(table) == {1: "x", 2: "y", 3: "z"}
    assert table.log.table().to_arrow().column("note").null_count == 3
