"""What others alter beneath a capture: the catalogue, publications, and the logs themselves."""

import shutil
import threading

import pyarrow as pa
import pytest

from clog.storage import (
    CommitConflictError,
    InvalidInputError,
    Log,
    SourceError,
    snapshot,
)

pytestmark = pytest.mark.nightly
TABLE = (
    "create table t (id int primary key, v int)",
    "insert into t select i, i from generate_series(1, 5) i",
)
PARTED = (
    "create table t (id int primary key, code int not null, v int) partition by range (id)",
    "create table t1 partition of t for values from (0) to (100)",
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("replica identity full", "replica identity default"),
        ("alter big set storage plain", "alter big set storage external"),
    ],
)
def test_a_value_is_the_newest_whatever_the_table_was_like(shop, before, after):
    """H-C3: how values are stored, and old rows sent, changes nothing in the existing rows; what
    was not sent is taken from the same transaction, not from the log, which is older.
    """
    shop.sql(
        "create table t (id int primary key, n int, big text)",
        "alter table t alter big set storage external",
        "insert into t select i, 0, repeat(md5(i::text), 70) from generate_series(1, 1600) i",
        f"alter table t {before}",
    )
    shop.capture()
    shop.sql(
        f"alter table t {after}",
        "begin; update t set big = repeat('new', 3000) where id = 1;"
        " update t set n = 1 where id > 1; update t set n = 2 where id = 1; commit",
        f"alter table t {before}",
    )
    shop.capture()
    shop.check()


def test_a_table_that_is_rewritten_before_it_is_read_is_read_again(shop, monkeypatch):
    """H-C9, H-C17: to a snapshot from before it is empty; the catalogue may be as before, and the
    stream has no row.
    """
    from clog.bridge.postgres import capturing

    shop.sql("create access method other type table handler heap_tableam_handler", *TABLE)
    load, changes = capturing.load, ["other", "heap"]

    def late(*given):
        while changes:
            shop.sql(f"alter table t set access method {changes.pop(0)}")
        load(*given)

    monkeypatch.setattr(capturing, "load", late)
    shop.capture()
    shop.check()


@pytest.mark.parametrize(
    ("made", "change"),
    [
        ("enum ('sad', 'ok')", "rename value 'sad' to 'blue'"),
        ("(x text, y int)", "add attribute z int"),
    ],
)
def test_values_that_are_written_otherwise_are_loaded_anew(shop, made, change, caplog):
    """H-C10: a label of an enum, a column of a composite: no row is rewritten in the table, but all
    are in the log.
    """
    first = "'sad'" if "enum" in made else "row('a', 1)"
    shop.sql(
        f"create type kind as {made}",
        "create table t (id int primary key, v kind, w kind[])",
        f"insert into t values (1, {first}, array[{first}]::kind[])",
    )
    shop.capture()
    shop.sql(f"alter type kind {change}")
    shop.capture()
    assert "written differently" in caplog.text
    shop.check(columns="id, v::text, array(select unnest(w)::text)")
    caplog.clear()
    shop.sql("alter type kind add value 'new'" if "enum" in made else "comment on type kind is 'x'")
    shop.capture()
    assert "anew" not in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        "set (publish = 'insert')",
        "set (publish_via_partition_root = false)",
        "set table t where (id < 3), p",
        "set table t (id), p",
    ],
)
def test_our_publication_sends_all_again(shop, change):
    """It was altered permanently, or for a time that nobody noticed."""
    shop.sql(
        *TABLE,
        "create table p (id int primary key, v int) partition by range (id)",
        "create table p1 partition of p for values from (0) to (100)",
    )
    for name in ("t", "p"):
        shop.sql(f"insert into {name} values (50, 1)")
    shop.capture()
    own, more = f"alter publication {shop.publication()}", range(60, 64)
    for i in more:
        shop.sql(f"{own} {change}") if i % 2 else None
        shop.sql(f"update t set v = {i} where id = 2", f"delete from t where id = {i - 1}")
        shop.sql(*(f"insert into {name} values ({i}, {i})" for name in ("t", "p")))
        if i == more[1]:
            shop.sql(
                f"{own} set (publish = 'insert, update, delete, truncate',"
                " publish_via_partition_root = true)"
            )
        shop.capture()
        shop.check("public.t", "public.p")


@pytest.mark.parametrize(
    ("made", "off", "on"),
    [
        ("for table t", "set (publish = 'insert')", "set (publish = 'insert, update, delete')"),
        (
            "for tables in schema public",
            "drop tables in schema public",
            "add tables in schema public",
        ),
        (
            "for tables in schema public, table s.x",
            "drop tables in schema public",
            "add tables in schema public",
        ),
    ],
)
def test_a_publication_that_sent_less_for_a_time(shop, made, off, on):
    """What it did not send meanwhile is loaded."""
    if shop.postgres.query("select current_setting('server_version_num')::int < 150000")[0][0]:
        pytest.skip("publications have no schemas before 15")
    shop.sql(*TABLE, "create schema s", "create table s.x (id int primary key)")
    shop.sql(f"create publication p {made}")
    shop.capture(publication="p")
    on = on.replace("delete'", "delete, truncate'")
    shop.sql(
        f"alter publication p {off}",
        "update t set v = 9 where id = 1",
        "delete from t where id = 2",
        f"alter publication p {on}",
        "insert into t values (7, 7)",
    )
    shop.capture(publication="p")
    shop.check()


def test_a_publication_without_the_key_is_refused(shop):
    """The application could not update; and the log would have no key."""
    shop.sql(*TABLE, "create publication p for table t (v)")
    with pytest.raises(InvalidInputError, match="all key columns of public"):
        shop.capture(publication="p")


@pytest.mark.parametrize(
    ("partition", "why"),
    [
        ("create unlogged table t2 partition of t for values from (100) to (200)", "unlogged"),
        (
            "create unique index c on t1 (code); alter table t1 replica identity using index c",
            "a replica identity",
        ),
    ],
)
def test_partitions_whose_changes_do_not_come_are_refused(shop, partition, why):
    """H-C7, H-C11: the table has a key, and its log would silently be wrong."""
    shop.sql(*PARTED, partition, "insert into t values (1, 1, 1)")
    with pytest.raises(InvalidInputError, match=rf"t[12] of public\.t .*{why}.*--exclude"):
        shop.capture()


def test_no_cut_lacks_what_came_without_a_message(shop, monkeypatch):
    """H-C9: the catalogue is read before each cut, not only every few seconds."""
    from clog.bridge.postgres import following

    monkeypatch.setattr(following, "_LOOK_MS", 1 << 40)
    shop.sql(*TABLE, "create table told (n int primary key)")
    with shop.followed() as told:
        shop.postgres.until(lambda: told and told[-1].position)
        shop.sql(
            "begin; alter table t drop v; alter table t add v int default 42;"
            " insert into told values (1); commit"
        )
        shop.postgres.until(lambda: shop.rows("public.told"))
        shop.check()


@pytest.mark.parametrize("nth", [2, 3])
def test_a_catalogue_that_changes_while_it_is_read(shop, monkeypatch, nth):
    """H-C10: what it says about a table is of one moment, or a rewrite of its rows would
    be missed.
    """
    from clog.bridge.postgres.source import Queries

    shop.sql(*TABLE)
    shop.capture()
    asked, reads = Queries.rows, []

    def rows(self, statement, parameters=None):
        found = asked(self, statement, parameters)
        if "pg_table_size" in statement:
            reads.append(statement)
            if len(reads) == nth:
                shop.sql("alter table t alter v type int using v * 10")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Queries, "rows", rows)
        shop.capture()
    shop.capture()
    shop.check()


@pytest.mark.parametrize(
    "change",
    [
        "alter table t add x float default random(); alter table t drop x",
        "alter table t drop v",
        "vacuum full t",
        "truncate t",
    ],
)
def test_a_table_that_changes_before_it_is_read(shop, monkeypatch, change):
    """H-C17: after a rewrite it is empty in the snapshot, which is older; everything
    starts again.
    """
    from clog.bridge.postgres import capturing

    shop.sql(*TABLE)
    load, loads = capturing.load, []

    def altered(*arguments):
        loads.append(change)
        if len(loads) == 1:
            shop.sql(*change.split(";"))
        return load(*arguments)

    monkeypatch.setattr(capturing, "load", altered)
    shop.capture()
    shop.check()


@pytest.mark.parametrize("is_written", [False, True])
def test_a_log_that_was_restored_from_a_copy_is_loaded_anew(shop, tmp_path, is_written, caplog):
    """It lacks what the newest cut had, and the stream no longer has it; also if others have
    written to it since. If killed before, there is no cut, and it is loaded later.
    """
    from clog.bridge.postgres import capturing

    shop.sql(*TABLE, "create table u (id int primary key)")
    shop.capture()
    shutil.copytree(f"{shop.url}/public.t", tmp_path / "copy")
    shop.sql("insert into t values (6, 6)", "update t set v = 0 where id = 1")
    shop.capture()
    shop.sql("insert into u values (1)", "insert into t values (7, 7)")
    shutil.rmtree(f"{shop.url}/public.t")
    shutil.copytree(tmp_path / "copy", f"{shop.url}/public.t")
    for i in range(10 * is_written):
        shop.log().alter({"retention.ms": 10**12 + i})

    def fails(*_, **__):
        raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capturing, "load", fails)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                shop.capture()
    with pytest.raises(CommitConflictError, match="no consistent cut yet"):
        snapshot(shop.url)
    shop.capture()
    assert "restored from an older copy" in caplog.text
    shop.check("public.t", "public.u")


@pytest.mark.parametrize(
    "changes",
    [
        [{"drop": ["x"]}, {"rename": {"v": "x"}}],
        [{"rename": {"v": "w", "w": "v"}}],
        [{"drop": ["v"]}, {"add": {"v": pa.string()}}],
    ],
    ids=["renamed", "swapped", "another"],
)
def test_a_log_whose_columns_are_renamed_or_dropped_is_loaded_anew(shop, changes):
    """S61, S76: its old rows would have nulls, or values of other columns. One that is followed
    stops in words, and whoever is killed before the load loads it later.
    """
    from clog.bridge.postgres import capturing

    def alter():
        for change in changes:
            shop.log().evolve(**change)

    def fails(*_, **__):
        raise RuntimeError("killed")

    def follow():
        with shop.followed() as told:
            shop.postgres.until(lambda: told and is_read())
            alter()
            shop.sql("insert into t values (6, 'v6', 'w6')")
            shop.postgres.until(lambda: not is_read())

    def is_read():
        ((found,),) = shop.postgres.query(
            "select count(*) from pg_replication_slots"
            " where active and not temporary and database = current_database()"
        )
        return found

    shop.sql("create table t (id int primary key, v text, w text)")
    shop.sql("insert into t select i, 'v' || i, 'w' || i from generate_series(1, 5) i")
    shop.capture()
    shop.log().evolve(add={"x": pa.string()})
    alter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capturing, "load", fails)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                shop.capture()
    shop.capture()
    shop.check()
    with pytest.raises(SourceError, match=r"column \w of .* was .* run the capture again"):
        follow()
    shop.capture()
    shop.check()


def test_a_log_that_is_gone_is_made_again(shop):
    """Its table is loaded; the others continue."""
    shop.sql(*TABLE, "create table u (id int primary key)")
    shop.capture()
    shutil.rmtree(f"{shop.url}/public.t")
    shop.sql("insert into u values (1)", "insert into t values (7, 7)")
    shop.capture()
    shop.check("public.t", "public.u")


@pytest.mark.parametrize("columns", ["present int, present_ text", "present text"])
def test_a_key_whose_columns_are_named_as_ours(shop, columns):
    """All columns are in the key, and the value's only one has a free name."""
    names = ", ".join(part.split()[0] for part in columns.split(", "))
    shop.sql(f"create table t ({columns}, primary key ({names}))")
    shop.sql("insert into t values (" + ", ".join("1" for _ in columns.split(", ")) + ")")
    shop.capture()
    shop.sql("update t set present = '2'")
    shop.capture()
    assert [str(row["present"]) for row in shop.rows()] == ["2"]
    fields = Log.open(f"{shop.url}/public.t").schema.field("value").type
    assert [field.name for field in fields] == ["present__" if "_" in columns else "present_"]


def test_names_with_dots_are_told_apart(shop):
    """A table of one schema, and one of another, whose names are the same text."""
    shop.sql(
        'create schema "a.b"',
        "create schema a",
        'create table "a.b".c (id int primary key)',
        'create table a."b.c" (id int primary key)',
        'insert into "a.b".c values (1), (2)',
        'insert into a."b.c" values (1), (2)',
        'create publication p for table "a.b".c, a."b.c" where (id > 1)',
    )
    done = shop.capture(publication="p")
    ids = {
        name: [r["id"] for r in shop.rows(u.url[len(shop.url) + 1 :])]
        for name, u in done.tables.items()
    }
    assert {name: sorted(found) for name, found in ids.items()} == {
        '"a.b".c': [1, 2],
        'a."b.c"': [2],
    }


def test_a_table_that_is_not_there_is_not_loaded_anew(shop):
    """A misspelt name is an error, not ignored."""
    shop.sql(*TABLE)
    shop.capture()
    with pytest.raises(InvalidInputError, match=r"--reload.*public\.tt"):
        shop.capture(reload=["public.tt"])


def test_times_of_the_server_end_no_session(shop):
    """Whatever the database reports about idle ones, as of the test's own from then on."""
    shop.sql(*TABLE)
    before = shop.postgres.connect()
    before.cursor().execute(f"alter database {shop.postgres.name} set idle_session_timeout = 1")
    shop.capture()
    before.cursor().execute(f"alter database {shop.postgres.name} reset idle_session_timeout")
    before.close()
    shop.check()


def test_a_replica_identity_that_changes_stops_in_words(shop):
    """H-C7: also while it is followed; the old rows that arrive since have other columns."""
    shop.sql(
        "create table t (id int primary key, code int not null unique)",
        "insert into t values (1, 1), (2, 2)",
    )
    change = "begin; alter table t replica identity using index t_code_key; delete from t; commit"

    def follow():
        with shop.followed() as told:
            shop.postgres.until(lambda: told and told[-1].position)
            shop.sql(change)
            shop.postgres.until(lambda: threading.active_count() == threads)

    threads = threading.active_count()
    with pytest.raises(InvalidInputError, match=r"key of public\.t is now \['code'\]"):
        follow()


def test_a_column_that_is_added_while_it_is_followed(shop):
    """Its first values come together with its description, which has no position of its own."""
    shop.sql(*TABLE)
    with shop.followed() as told:
        shop.postgres.until(lambda: told and told[-1].position)
        shop.sql(
            "begin; alter table t add w text; insert into t values (7, 7, 'seven'); commit",
            "update t set w = 'one' where id = 1",
        )
        shop.postgres.until(lambda: len(shop.rows()) == 6)
        shop.sql("insert into t values (8, 8, 'eight')")
        shop.postgres.until(lambda: len(shop.rows()) == 7)
    shop.check()


@pytest.mark.parametrize("locked", ["t", "p1", "other"])
@pytest.mark.parametrize("publication", [None, "p"])
def test_who_locks_a_table_holds_nothing_up(shop, monkeypatch, locked, publication):
    """A table that is rewritten for hours, captured or not: all others are followed meanwhile."""
    from clog.bridge.postgres import following

    monkeypatch.setattr(following, "_LOOK_MS", 100)
    shop.sql(
        *TABLE,
        "create table u (id int primary key)",
        "create table p (id int primary key) partition by range (id)",
        "create table p1 partition of p for values from (0) to (100)",
        "create table other (id int)",
        "create publication p for table t, u, p with (publish_via_partition_root = true)",
    )
    options = {"publication": publication} if publication else {"exclude": ["other"]}
    holder = shop.postgres.connect(autocommit=False)
    with shop.followed(**options) as told:
        shop.postgres.until(lambda: told and told[-1].position)
        holder.cursor().execute(f"lock table {locked} in access exclusive mode")
        for i in range(1, 5):
            shop.sql(f"insert into u values ({i})")
            shop.postgres.until(lambda i=i: told[-1].transactions == i)
        holder.rollback()
    holder.close()
    shop.check("public.t", "public.u")


@pytest.mark.parametrize("held", ["insert into t values (9, 9)", "lock table t"])
def test_what_waits_for_others_can_be_stopped(shop, held, monkeypatch, caplog):
    """The slot is created once a transaction ends, the table is published once its lock is
    released; the message names whose transactions are waited for.
    """
    from clog.bridge.postgres import capturing

    monkeypatch.setattr(capturing, "_PATIENCE_MS", -1)
    shop.sql(*TABLE)
    holder, told = shop.postgres.connect(autocommit=False), []
    holder.cursor().execute(held)
    stopped = shop.capture(on_progress=told.append, should_stop=lambda: len(told) > 3)
    assert stopped.position is None
    assert "waits for open transactions to end:" in caplog.text
    if "insert" in held:
        assert f": process {holder.info.backend_pid}" in caplog.text
    assert shop.postgres.query("select 1 from pg_replication_slots") == []
    holder.rollback()
    holder.close()
    shop.capture()
    shop.check()


@pytest.mark.parametrize("columns", ['"A" int, a int', ", ".join(f"c{i} int" for i in range(1001))])
def test_a_table_that_can_be_no_log_is_named(shop, columns):
    """With what to do."""
    shop.sql(f"create table t (id int primary key, {columns})")
    with pytest.raises(
        InvalidInputError, match=r"public\.t cannot become a log.*--exclude public\.t"
    ):
        shop.capture()


def test_a_name_that_is_long_has_a_folder(shop):
    """Of characters that take three times as many in a URL."""
    name = "ш" * 31
    shop.sql(f"create schema {name}", f"create table {name}.{name} (id int primary key)")
    shop.sql(f"insert into {name}.{name} values (1)")
    (one,) = shop.capture().tables.values()
    assert shop.rows(one.url.rpartition("/")[2]) == [{"id": 1, "present": True}]


def test_a_table_that_is_left_out_is_told_once(shop, monkeypatch, caplog):
    """Not with each look at the catalogue."""
    from clog.bridge.postgres import following

    monkeypatch.setattr(following, "_LOOK_MS", 20)
    shop.sql(*TABLE)
    with shop.followed() as told:
        shop.postgres.until(lambda: told and told[-1].position)
        shop.sql("create table keyless (v int)")
        shop.postgres.until(lambda: "keyless of" in caplog.text)
        looks = len(told)
        shop.postgres.until(lambda: len(told) > looks + 5)
    assert caplog.text.count("public.keyless of") == 1


@pytest.mark.parametrize("change", ["truncate t", "vacuum full t"])
def test_what_is_common_needs_no_other_look(shop, caplog, change):
    """A table that is emptied every second is followed like others."""
    caplog.set_level("INFO")
    shop.sql(*TABLE)
    with shop.followed() as told:
        shop.postgres.until(lambda: told and told[-1].position)
        for i in range(10, 15):
            shop.sql(change, f"insert into t values ({i}, {i})")
            shop.postgres.until(lambda i=i: any(row["id"] == i for row in shop.rows()))
    assert "checking its tables again" not in caplog.text
    shop.check()
