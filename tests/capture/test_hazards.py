"""What PostgreSQL does, or leaves out, that a capture must handle correctly: each on a
real server.
"""

import shutil
from functools import partial
from pathlib import Path

import pytest

from clog.bridge import PostgresSettings, capture, verify_capture
from clog.storage import (
    CommitConflictError,
    InvalidInputError,
    Log,
    SourceError,
    SourcePurgedError,
    SourceReplacedError,
    TransactionFencedError,
    snapshot,
)

pytestmark = pytest.mark.nightly
BIG = "repeat(md5({}::text), 200)"


def toast(shop, *more):
    """A table with a large value stored outside its row."""
    shop.sql(
        "create table t (id int primary key, n int, big text)",
        "alter table t alter big set storage external",
        *more,
        f"insert into t select i, 0, {BIG.format('i')} from generate_series(1, 5) i",
    )


def test_200_tables_in_one_transaction(shop):
    """H-C1: the number of tables has no lower bound; all are at one cut."""
    shop.sql(*(f"create table t{i} (id int primary key, v int)" for i in range(200)))
    shop.capture()
    shop.sql(
        "begin;" + "".join(f"insert into t{i} values (1, {i});" for i in range(200)) + "commit"
    )
    assert shop.capture().transactions == 1
    cut = snapshot(shop.url)
    assert len(cut.logs) == 201
    for i in (0, 57, 199):
        assert shop.rows(f"public.t{i}", cut) == [{"id": 1, "v": i}]


def test_an_unchanged_value_moves_with_its_key(shop):
    """H-C3: from the old key's row, in the log or in the same group; also twice in a row."""
    toast(shop)
    shop.capture()
    shop.sql(
        "update t set n = 1 where id = 1",
        "update t set id = 20, n = 2 where id = 2",
        "begin; update t set id = 30 where id = 3;"
        " update t set id = 31, n = 3 where id = 30; commit",
        f"insert into t values (9, 0, {BIG.format(9)})",
        "update t set id = 90 where id = 9",
        "update t set n = 7 where id = 90",
    )
    shop.capture()
    shop.check()


def test_keys_that_are_swapped_keep_their_values(shop):
    """H-C23: delete and insert in the order of the source; unchanged values move along."""
    toast(shop)
    shop.capture()
    shop.sql(
        "begin; update t set id = 33 where id = 1; update t set id = 1 where id = 2;"
        " update t set id = 2 where id = 33; commit",
        "begin; delete from t where id = 4; insert into t values (4, 4, 'new'); commit",
    )
    shop.capture()
    shop.check()


def test_a_full_identity_still_leaves_values_out(shop):
    """H-C4, H-C5: the value is in the old row."""
    toast(shop, "alter table t replica identity full")
    shop.capture()
    shop.sql(
        "update t set n = 1",
        "update t set id = id + 100 where id < 3",
        "delete from t where id = 5",
    )
    shop.capture()
    shop.check()


def test_a_value_that_is_nowhere_stops(shop):
    """H-C3: it is never null. The row was deleted from the log."""
    toast(shop)
    shop.capture()
    shop.log().append([{"key": 1, "value": None}])
    shop.sql("update t set n = 1 where id = 1")
    with pytest.raises(SourceError, match=r"did not send a value of public\.t\.big"):
        shop.capture()


@pytest.mark.parametrize(
    "table",
    [
        "create table t (id int, v int)",
        "create table t (id int primary key deferrable, v int)",
        "create table t (id int primary key, v int); alter table t replica identity nothing",
        "create table t (id int, v int); alter table t replica identity full",
    ],
)
def test_a_table_without_a_usable_key_is_refused_before_it_is_published(shop, table):
    """H-C6, H-C8: the application's updates continue; with `events` only inserts are taken."""
    shop.sql(table, "create table u (id int primary key, v int)")
    with pytest.raises(InvalidInputError, match=r"public\.t \(.*--events"):
        shop.capture()
    assert shop.postgres.query("select 1 from pg_publication") == []
    shop.sql("insert into t values (1, 1)")
    done = shop.capture(events=True)
    assert done.events == ["public.t"]
    if "nothing" not in table and "full" not in table:
        shop.sql("update t set v = 5")
    shop.sql(
        "insert into t values (1, 2) on conflict do nothing"
        if "primary" not in table
        else "insert into t values (2, 2)"
    )
    shop.capture(events=True)
    values = [row["value"]["v"] for batch in shop.log().read() for row in batch.to_pylist()]
    assert values == [1, 2]


def test_the_key_is_the_replica_identity(shop):
    """H-C7: that of an index, and a change of it stops with a message."""
    shop.sql(
        "create table t (id int primary key, code text not null unique, v int)",
        "alter table t replica identity using index t_code_key",
        "insert into t values (1, 'a', 1), (2, 'b', 2)",
    )
    shop.capture()
    shop.sql("update t set v = 9 where code = 'a'", "delete from t where code = 'b'")
    shop.capture()
    assert [row["code"] for row in shop.rows()] == ["a"]
    shop.sql("alter table t replica identity default", "update t set v = 10")
    with pytest.raises(InvalidInputError, match=r"key of public\.t"):
        shop.capture()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("alter table t drop v; alter table t add v int default 42", "dropped and added"),
        ("alter table t add w int default 42", "default"),
        ("alter table t alter v type bigint using v * 10", "another type"),
        ("alter table t rename v to w", "renamed"),
        ("alter table t alter v type int using v * 10", "rewritten"),
        ("alter table t add w int generated always as identity", "default"),
        ("alter table t add w float default random(); alter table t alter w drop default", "rewr"),
        ("alter table t alter g drop expression", "captured only since"),
    ],
)
def test_rows_that_change_without_a_message_are_loaded_anew(shop, change, why, caplog):
    """H-C9, H-C10: the catalogue's numbers show it, with changes after it or without any."""
    shop.sql(
        "create table t (id int primary key, v int, g int generated always as (id * 2) stored)",
        "insert into t values (1, 1), (2, 2)",
    )
    shop.capture()
    shop.sql("insert into t values (3, 3)", change)
    shop.capture()
    assert why in caplog.text
    shop.sql("update t set id = 30 where id = 3", "delete from t where id = 2")
    shop.capture()
    there = {row["id"]: row for row in shop.rows()}
    for (row,) in shop.postgres.query("select to_jsonb(t) from t"):
        if "drop expression" not in change:
            row.pop("g")
        assert {name: there[row["id"]][name] for name in row} == row
    assert there.keys() == {1, 30}


def test_no_cut_has_half_of_a_column_that_was_added_again(shop):
    """H-C9: what follows the change, while it is followed, is in no cut before the load."""
    shop.sql("create table t (id int primary key, v int)", "insert into t values (1, 1), (2, 1)")
    found = []

    def look(done):
        if done.position:
            if not found:
                change = "alter table t drop v; alter table t add v int default 42"
                shop.sql(change, "update t set id = 3 where id = 1")
            found.append({row["v"] for row in shop.rows()})

    capture(
        shop.postgres.dsn,
        shop.url,
        PostgresSettings(on_progress=look, should_stop=lambda: {42} in found),
    )
    assert {len(values) for values in found} == {1}


def test_rows_that_are_rewritten_as_they_are_are_not_loaded_anew(shop, caplog):
    """VACUUM FULL and TRUNCATE change the file too."""
    shop.sql("create table t (id int primary key, v int)", "insert into t values (1, 1), (2, 2)")
    shop.capture()
    shop.sql("vacuum full t")
    shop.capture()
    shop.sql("truncate t", "insert into t values (3, 3)")
    shop.capture()
    assert "loaded again" not in caplog.text
    shop.check()


def test_a_column_without_default_is_evolution(shop, caplog):
    """H-C10: nothing is loaded; rows before and after it are right. A dropped column is null in
    what is taken afterwards.
    """
    shop.sql("create table t (id int primary key, v int)", "insert into t values (1, 1)")
    shop.capture()
    shop.sql(
        "insert into t values (2, 2)",
        "alter table t add w text",
        "insert into t values (3, 3, 'c')",
    )
    shop.capture()
    shop.sql(
        "alter table t drop v",
        "insert into t values (4, 'd')",
    )
    shop.capture()
    assert "loaded again" not in caplog.text
    assert [(r["id"], r["v"], r["w"]) for r in sorted(shop.rows(), key=lambda r: r["id"])] == [
        (1, 1, None),
        (2, 2, None),
        (3, 3, "c"),
        (4, None, "d"),
    ]


PARTITIONS = (
    "create table t (id int, day int, v int, primary key (id, day)) partition by list (day)",
    "create table t1 partition of t for values in (1)",
    "create table t2 partition of t for values in (2)",
    "insert into t select i, 1 + i % 2, i from generate_series(1, 10) i",
)


@pytest.mark.parametrize("key", ["id", '"key", "value"'])
def test_columns_that_are_named_as_those_of_records(shop, key):
    """What is deleted without a message for each row is deleted by its key, whatever the key's
    name.
    """
    shop.sql(
        f'create table t (id int, "key" text, "value" int, "offset" int, primary key ({key}))',
        "insert into t values (1, 'a', 1, 1), (2, 'b', 2, 2)",
    )
    shop.capture()
    shop.sql("truncate t", "insert into t values (2, 'b', 3, 3), (4, 'd', 4, 4)")
    shop.capture()
    shop.check()
    shop.sql("delete from t where id = 2", "alter table t add n int default 1")
    shop.capture()
    shop.check()


def test_the_first_table_of_events_comes_later(shop):
    """Its publication is not newer than the slot: that stops nothing."""
    shop.sql("create table t (id int primary key, v int)", "insert into t values (1, 1)")
    shop.capture()
    shop.sql("create table e (v int)", "insert into e values (1)", "insert into t values (2, 2)")
    shop.capture(events=True)
    shop.check()
    assert sum(shop.log("public.e").end_offsets().values()) == 1


def test_events_are_never_doubled_by_themselves(shop):
    """A change of their table shows in later ones only; if some may be missing, the capture stops,
    and is told to load all that there are.
    """
    shop.sql("create type l as enum ('a')", "create table e (v int, w l) partition by range (v)")
    shop.sql("create table e_1 partition of e for values from (0) to (9)")
    shop.sql("create table told (id int primary key)", "insert into e values (1, 'a'), (2, 'a')")
    events = partial(shop.capture, events=True)
    events()
    shop.sql(
        *(
            "create table e_2 partition of e for values from (10) to (19)",
            "insert into e(v) values (10)",
        ),
        *(
            "drop table e_2",
            "alter type l rename value 'a' to 'z'",
            "insert into e values (3, 'z')",
        ),
        *("alter table e add x int default 7", "insert into e values (4, null, 8)"),
    )
    events()
    shop.sql("alter table e rename w to y", "insert into e values (5, 'z', 9)")
    events()

    def found(*names):
        rows = [row["value"] for batch in shop.log("public.e").read() for row in batch.to_pylist()]
        return sorted(tuple(row.get(name) for name in names) for row in rows)

    assert found("v", "w", "x", "y") == [
        *((1, "a", None, None), (2, "a", None, None), (3, "z", None, None)),
        *((4, None, 8, None), (5, None, 9, "z"), (10, None, None, None)),
    ]
    shop.sql("alter table e rename y to q", "insert into e values (6, 'z', 9)")
    shop.sql("alter table e rename q to y")
    for _ in range(2):
        with pytest.raises(
            SourceError, match=r"public\.e is a table of events, .*--reload public\.e"
        ):
            events()
    events(reload=["public.e"])
    assert [v for (v,) in found("v")] == sorted([1, 2, 3, 4, 5, 10, 1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(
    "change",
    [
        (
            "create table t3 (like t including all); insert into t3 values (90, 3, 90);"
            " alter table t attach partition t3 for values in (3)"
        ),
        "alter table t detach partition t1",
        "truncate t1",
        "drop table t1",
    ],
)
def test_partitions_that_come_and_go(shop, change):
    """H-C11, H-C12: the stream does not contain their rows."""
    shop.sql(*PARTITIONS)
    shop.capture()
    shop.sql(change)
    shop.capture()
    shop.check()


def test_a_row_that_moves_between_partitions(shop):
    """H-C13: one table, one log; the key has the partition's column."""
    shop.sql(*PARTITIONS)
    shop.capture()
    shop.sql("update t set day = 1 where id = 1", "update t set v = 0 where day = 2")
    shop.capture()
    shop.check()


def test_a_publication_that_is_younger_than_the_slot(shop):
    """H-C14: it is reported in a message, and loading again resolves it."""
    shop.sql("create table t (id int primary key, v int)", "insert into t values (1, 1)")
    shop.capture()
    name = shop.publication()
    shop.sql(f"drop publication {name}", "insert into t values (2, 2)")
    with pytest.raises(SourcePurgedError, match="older than the publication"):
        shop.capture()
    shop.capture(reload=True)
    shop.check()


def test_filters_of_a_publication_are_shown(shop):
    """H-C15: a row that leaves the filter is deleted, one that enters it is there."""
    shop.sql(
        "create table t (id int primary key, v int, secret text)",
        "insert into t values (1, 1, 'x'), (2, -2, 'y')",
        "create publication p for table t (id, v) where (id > 0 and v > 0)".replace(
            "id > 0 and v > 0", "id > 0"
        )
        + " with (publish_via_partition_root = true)",
    )
    done = shop.capture(publication="p")
    assert done.filters == {"public.t": "(id > 0)"}
    assert "secret" in done.tables["public.t"].left
    shop.sql("update t set id = -1 where id = 1", "insert into t values (-5, 1, 'z'), (5, 1, 'z')")
    shop.capture(publication="p")
    assert sorted(row["id"] for row in shop.rows()) == [2, 5]
    assert all("secret" not in row for row in shop.rows())


def test_what_was_not_published_for_a_time_is_loaded_anew(shop):
    """A publication that left out a table, rows or a column does not report them when they are
    back.
    """
    shop.sql(
        "create table t (id int primary key, v int, w int)",
        "create table u (id int primary key)",
        "insert into t values (1, 1, 1), (2, 2, 2)",
        "create publication p for table t (id, v) where (id > 1), u",
    )
    shop.capture(publication="p")
    shop.sql("alter publication p set table t, u")
    shop.capture(publication="p")
    shop.check()
    shop.sql(
        "alter publication p drop table t",
        "insert into t values (3, 3, 3)",
        "alter publication p add table t",
    )
    shop.capture(publication="p")
    shop.check()


def test_tables_that_a_publication_does_not_have_are_not_looked_at(shop):
    """One without a key does not matter if it is published only by others."""
    shop.sql(
        "create table t (id int primary key, v int)",
        "create table nokey (v int)",
        "insert into t values (1, 1)",
        "create publication p for table t",
    )
    assert shop.capture(publication="p").tables.keys() == {"public.t"}
    assert verify_capture(shop.postgres.dsn, shop.url).is_equal


def test_a_table_that_left_our_publication_is_loaded_anew(shop):
    """Someone removed it by hand: it is published again, and what was missed is there."""
    shop.sql("create table t (id int primary key, v int)", "create table u (id int primary key)")
    shop.capture()
    name = shop.publication()
    shop.sql(f"alter publication {name} drop table t", "insert into t values (3, 3)")
    shop.capture()
    shop.check()


def test_the_first_value_keeps_its_byte_order_mark(shop):
    """It is part of a text."""
    shop.sql("create table t (id text primary key)", r"insert into t values (U&'\FEFFa')")
    shop.capture()
    assert [row["id"] for row in shop.rows()] == ["\ufeffa"]


def test_prepared_transactions_come_with_their_commit(shop):
    """H-C16: the order is that of commits."""
    shop.sql("create table t (id int primary key, v int)")
    shop.capture()
    shop.sql("begin; insert into t values (1, 1); prepare transaction 'p'")
    shop.sql("insert into t values (2, 2)")
    shop.capture()
    assert [row["id"] for row in shop.rows()] == [2]
    shop.sql("commit prepared 'p'", "update t set v = 3 where id = 1")
    shop.capture()
    shop.check()


def test_rolled_back_savepoints_are_not_there(shop):
    """H-C16."""
    shop.sql("create table t (id int primary key, v int)")
    shop.capture()
    shop.sql(
        "begin; insert into t values (1, 1); savepoint a; insert into t values (2, 2);"
        " rollback to a; insert into t values (3, 3); commit"
    )
    shop.capture()
    shop.check()


def test_half_a_load_is_no_cut(shop, monkeypatch):
    """H-C17, H-C18: if killed in the first load, there is none, and the tables are named; run
    again, a loaded table is not loaded again, and changes in between are there once.
    """
    from clog.bridge.postgres import capturing

    shop.sql(
        "create table a (id int primary key, v int)",
        "create table b (id int primary key, v int)",
        "insert into a select i, i from generate_series(1, 1000) i",
        "insert into b values (1, 1)",
    )
    load, loaded = capturing.load, []

    def fails(connection, select, plan, take, **more):
        if plan.what == "public.b" and not loaded:
            loaded.append(plan.what)
            raise RuntimeError("killed")
        return load(connection, select, plan, take, **more)

    monkeypatch.setattr(capturing, "load", fails)
    with pytest.raises(RuntimeError):
        shop.capture()
    with pytest.raises(CommitConflictError, match=r"being loaded.*public\.b"):
        snapshot(shop.url)
    shop.sql(
        "update a set v = 0 where id = 1",
        "insert into b values (2, 2)",
        "delete from a where id = 2",
    )
    shop.capture()
    shop.check("public.a", "public.b")
    offsets = shop.log("public.a").end_offsets()
    assert sum(offsets.values()) == 1002
    assert sum(shop.log("public.b").end_offsets().values()) == 2


def test_truncate_deletes_each_key(shop):
    """H-C19: tombstones, in the order of the source, with what follows."""
    shop.sql(
        "create table t (id int primary key, v int)",
        "insert into t select i, i from generate_series(1, 1000) i",
    )
    shop.capture()
    shop.sql(
        "begin; insert into t values (2000, 1); truncate t;"
        " insert into t values (1, 7), (2001, 7); commit"
    )
    shop.capture()
    shop.check()
    shop.sql("truncate t")
    shop.capture()
    assert shop.rows() == []


def test_another_history_is_not_gone_on_with(shop):
    """H-C20: a position of another timeline; and for a missing slot no new one is created
    automatically.
    """
    from clog.bridge.capturing.logs import ID

    shop.sql("create table t (id int primary key, v int)", "insert into t values (1, 1)")
    shop.capture()
    home = Log.open(shop.url)
    ((source, at),) = home.positions(ID).items()
    with home.transaction(ID) as t:
        t.positions(source, {0: (at[0], "7")})
    with pytest.raises(SourceReplacedError, match="timeline"):
        shop.capture()
    shop.capture(reload=True)
    shop.check()


def test_a_slot_that_is_gone_stops(shop):
    """H-C20, H-C21: and a new load into the same logs deletes what the source no longer has."""
    shop.sql("create table t (id int primary key, v int)", "insert into t values (1, 1), (2, 2)")
    shop.capture()
    shop.sql(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
        " where database = current_database()"
    )
    shop.sql(
        "delete from t where id = 1",
        "update t set v = 5 where id = 2",
        "insert into t values (3, 3)",
    )
    with pytest.raises(SourcePurgedError, match=r"does not exist.*--reload"):
        shop.capture()
    shop.capture(reload=True)
    shop.check()


def test_a_home_that_is_gone_is_made_again_with_all_tables_loaded(shop):
    """The tables' logs have positions, and nothing says for which slot: they are loaded again."""
    shop.sql("create table t (id int primary key, v int)", "insert into t values (1, 1), (2, 2)")
    shop.capture()
    for there in Path(shop.url).iterdir():
        if there.name != "public.t":
            shutil.rmtree(there) if there.is_dir() else there.unlink()
    shop.sql("delete from t where id = 1", "insert into t values (3, 3)")
    with pytest.raises(SourcePurgedError, match=r"does not exist.*--reload"):
        shop.capture()
    shop.capture(reload=True)
    shop.check()


def test_a_slot_that_somebody_else_read_stops(shop):
    """Its changes are lost, and nothing else would show it."""
    shop.sql("create table t (id int primary key, v int)")
    shop.capture()
    shop.sql(
        "insert into t values (1, 1)",
        "select pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) from"
        " pg_replication_slots where database = current_database()",
    )
    with pytest.raises(SourcePurgedError, match="was confirmed up to"):
        shop.capture()


def test_an_idle_database_lets_the_source_forget(shop):
    """H-C22: what others write is confirmed, even if nothing published changed."""
    shop.sql("create table t (id int primary key, v int)")
    shop.capture()
    slot = (
        "select confirmed_flush_lsn - '0/0' from pg_replication_slots"
        " where database = current_database()"
    )
    ((before,),) = shop.postgres.query(slot)
    shop.sql(
        "create table other (v text)",
        "insert into other select repeat('x', 1000) from generate_series(1, 1000)",
        "drop table other",
    )
    shop.capture()
    ((after,),) = shop.postgres.query(slot)
    assert after - before > 500_000


def test_another_table_under_the_name_stops(shop):
    """H-C24: a log is bound to the table's oid; renamed, it continues."""
    shop.sql("create table t (id int primary key, v int)", "insert into t values (1, 1)")
    shop.capture()
    shop.sql("alter table t rename to t2", "insert into t2 values (2, 2)")
    shop.capture()
    shop.sql("insert into t2 values (3, 3)")
    shop.capture()
    assert sorted(row["id"] for row in shop.rows()) == [1, 2, 3]
    shop.sql("create table t (id int primary key, v int)", "insert into t values (9, 9)")
    for more in ({}, {"reload": ["public.t"]}):
        with pytest.raises(SourceReplacedError, match=r"is the log of public\.t2.*--exclude"):
            shop.capture(**more)
    shop.sql("drop table t2")
    with pytest.raises(SourceReplacedError, match="dropped and created again"):
        shop.capture()
    shop.capture(reload=["public.t"])
    shop.check()


def test_a_second_capture_takes_over(shop):
    """The first one commits nothing more."""
    shop.sql("create table t (id int primary key, v int)", "insert into t values (1, 1)")
    shop.capture()
    told = []

    def second(done):
        if not told:
            told.append(done)
            shop.capture()
            shop.sql("insert into t values (2, 2)")

    with pytest.raises(TransactionFencedError):
        capture(
            shop.postgres.dsn,
            shop.url,
            PostgresSettings(on_progress=second, should_stop=lambda: False),
        )
    shop.capture()
    shop.check()


def test_tables_come_and_go(shop):
    """A new one is loaded, a dropped one is removed from the cuts."""
    shop.sql("create table t (id int primary key, v int)", "create table u (id int primary key)")
    shop.capture()
    shop.sql(
        "create table w (id int primary key, v int)",
        "insert into w values (1, 1)",
        "drop table u",
        "insert into t values (1, 1)",
    )
    shop.capture()
    shop.check("public.t", "public.w")
    assert {u.rpartition("/")[2] for u in snapshot(shop.url).logs} == {
        "shop",
        "public.t",
        "public.w",
    }


@pytest.mark.parametrize(
    "names",
    [
        ("alter table t rename mail to old", "alter table t add mail text"),
        (
            "alter table t rename mail to x",
            "alter table t rename note to mail",
            "alter table t rename x to note",
        ),
    ],
)
@pytest.mark.parametrize("how", ["hash", "drop"])
def test_what_a_mask_hides_stays_hidden_under_another_name(shop, monkeypatch, how, names):
    """Of a column that is renamed while another takes its name; no reload shows it, either."""
    monkeypatch.setenv("CLOG_CAPTURE_HASH_KEY", "a secret of the operator")
    shop.sql("create table t (id int primary key, mail text, note text)")
    shop.sql("insert into t values (1, 'ann@example.org', 'n')")
    masks = {"public.t.mail": how}
    shop.capture(masks=masks)
    shop.sql(*names)
    for reload in ([], ["public.t"], True):
        with pytest.raises(InvalidInputError, match=r"public\.t\.(old|note) may .*--mask"):
            shop.capture(masks=masks, reload=reload)
    assert "ann@" not in str([batch.to_pylist() for batch in shop.log().read()])
    if how == "drop" and len(names) < 3:
        shop.capture(masks={**masks, "public.t.old": "drop"})
        assert shop.rows() == [{"id": 1, "note": "n"}]


def test_columns_are_masked(shop, monkeypatch):
    """Dropped, or hashed with a key; joins on hashes continue to work."""
    monkeypatch.setenv("CLOG_CAPTURE_HASH_KEY", "0123456789abcdef")
    shop.sql(
        "create table t (id int primary key, mail text, name text)",
        "insert into t values (1, 'a@b', 'A'), (2, null, 'B')",
    )
    masks = {"public.t.mail": "hash", "public.t.name": "drop"}
    shop.capture(masks=masks)
    shop.sql("insert into t values (3, 'a@b', 'C')", "update t set id = 5 where id = 2")
    shop.capture(masks=masks)
    rows = {row["id"]: row for row in shop.rows()}
    assert rows[1]["mail"] == rows[3]["mail"] != "a@b"
    assert rows[5]["mail"] is None
    assert "name" not in rows[1]
    with pytest.raises(InvalidInputError, match="masks"):
        shop.capture()


def test_a_column_that_the_log_has_is_not_dropped_later(shop):
    """Its records would keep it, and nobody would know."""
    shop.sql("create table t (id int primary key, mail text)", "insert into t values (1, 'a@b')")
    shop.capture()
    with pytest.raises(InvalidInputError, match=r"already has \['mail'\]"):
        shop.capture(masks={"public.t.mail": "drop"})


def test_names_that_no_column_of_a_log_can_have_are_refused(shop):
    """Before anything is published, and with what to do."""
    shop.sql('create table t (id int primary key, "a.b" int)')
    with pytest.raises(InvalidInputError, match=r"--mask public\.t\.a\.b=drop"):
        shop.capture()
    assert shop.postgres.query("select 1 from pg_publication") == []
    shop.capture(masks={"public.t.a.b": "drop"})
