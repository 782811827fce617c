"""`verify_capture` on a real server: what is equal, what changes meanwhile, and what is wrong."""

import json

import pytest

from clog.bridge import PostgresSettings, TableSettings
from clog.bridge.postgres.capturing import capture
from clog.bridge.postgres.verifying import verify_capture
from clog.storage import InvalidInputError, Log, SourceReplacedError, snapshots

pytestmark = pytest.mark.nightly
MADE = (
    "create table a (id int primary key, t text, n numeric(9,2), l int[])",
    "insert into a select i, 't' || i, i, array[i, null] from generate_series(1, 1000) i",
    "create table b (x int, y text, z timestamptz default 'infinity', primary key (x, y))",
    "insert into b select i, 'é' || i from generate_series(1, 100) i",
)


def unseen(postgres, *statements):
    """Changes a source while none of its tables is published."""
    ((name,),) = postgres.query("select pubname from pg_publication where pubname !~ '_events$'")
    drop = f"alter publication {name} drop table"
    postgres.sql(f"{drop} a, b", *statements, f"alter publication {name} add table a, b")


def test_equal_tables(postgres, url):
    """All rows are equal, and nothing is left in the home or the source."""
    postgres.sql(*MADE)
    capture(postgres.dsn, url, PostgresSettings(once=True))
    found = verify_capture(postgres.dsn, url)
    assert found.is_equal
    assert not found.skipped
    told = [(one.table, one.rows, one.log_rows, one.changed) for one in found.tables]
    assert told == [("public.a", 1000, 1000, 0), ("public.b", 100, 100, 0)]
    assert snapshots(url) == []
    assert postgres.query("select count(*) from pg_replication_slots") == [(1,)]


def test_what_changed_since_is_left_out(postgres, url):
    """A capture that is not running is behind; the keys that changed since are not differences."""
    postgres.sql(*MADE)
    capture(postgres.dsn, url, PostgresSettings(once=True))
    postgres.sql(
        "update a set t = 'new' where id < 4",
        "update a set id = 5000 where id = 9",
        "delete from b where x = 1",
        "insert into b values (1000, '')",
    )
    found = verify_capture(postgres.dsn, url)
    assert found.is_equal
    assert [(one.rows, one.log_rows, one.changed) for one in found.tables] == [
        (996, 996, 5),
        (99, 99, 2),
    ]
    postgres.sql("truncate b")
    found = verify_capture(postgres.dsn, url)
    assert found.skipped == {"public.b": "it was emptied in the meantime"}
    assert [one.table for one in found.tables] == ["public.a"]


def test_what_differs_is_named(postgres, url):
    """A lost row, an extra one, and one with another value, each by its key."""
    postgres.sql(*MADE)
    capture(postgres.dsn, url, PostgresSettings(once=True))
    unseen(
        postgres,
        "insert into a values (5000)",
        "delete from b where x = 50",
        "update b set z = null where x = 3",
    )
    found = verify_capture(postgres.dsn, url)
    assert not found.is_equal
    one, other = found.tables
    assert [(d.key, d.why) for d in one.differences] == [("id=5000", "only the source has it")]
    assert {(d.key, d.why) for d in other.differences} == {
        ("x=50, y=é50", "only the log has it"),
        ("x=3, y=é3", "z differs"),
    }


def test_masks_filters_and_columns_hold(postgres, url, monkeypatch):
    """What capture hashes, drops, or does not publish is compared as it is in the log."""
    monkeypatch.setenv("CLOG_CAPTURE_HASH_KEY", "0123456789abcdef")
    postgres.sql(*MADE, "create publication p for table a where (id <= 10), b")
    masks = {"public.a.t": "hash", "public.a.l": "drop", "public.a.n": "text"}
    capture(postgres.dsn, url, PostgresSettings(once=True, publication="p", masks=masks))
    postgres.sql("update a set t = 'new' where id in (2, 300)")
    found = verify_capture(postgres.dsn, url, TableSettings(tables=["a"]))
    assert found.is_equal
    (one,) = found.tables
    assert (one.rows, one.log_rows, one.changed) == (9, 9, 1)


def test_beside_a_capture_that_runs(postgres, url):
    """While a capture follows and the application writes, nothing differs."""
    from threading import Event, Thread

    postgres.sql(*MADE)
    stop, wrote, has_cut = Event(), Event(), Event()

    def write():
        for i in range(10_000, 11_000):
            postgres.sql(f"insert into a values ({i}, 'x')", f"update a set n = {i} where id = 5")
            wrote.set()
            if stop.is_set():
                return

    def told(captured):
        if captured.position:
            has_cut.set()

    settings = PostgresSettings(should_stop=stop.is_set, on_progress=told)
    captures = Thread(target=capture, args=(postgres.dsn, url, settings))
    writes = Thread(target=write)
    captures.start()
    try:
        assert has_cut.wait(60)
        writes.start()
        assert wrote.wait(60)
        found = verify_capture(postgres.dsn, url)
    finally:
        stop.set()
        captures.join()
        writes.join()
    assert found.is_equal, found
    assert found.tables[0].rows > 990
    assert verify_capture(postgres.dsn, url).is_equal


def test_what_is_no_home_is_refused(postgres, url, tmp_path):
    """A log that no capture made, and the home of another database."""
    Log.create(str(tmp_path / "other"))
    with pytest.raises(InvalidInputError, match="is not the home of a capture"):
        verify_capture(postgres.dsn, str(tmp_path / "other"))
    postgres.sql(*MADE)
    capture(postgres.dsn, url, PostgresSettings(once=True))
    elsewhere = postgres.dsn.rpartition("/")[0] + "/postgres"
    with pytest.raises(SourceReplacedError, match="leads to"):
        verify_capture(elsewhere, url)
    assert snapshots(url) == []


def test_a_partition_that_was_emptied(postgres, url):
    """Its rows are only in the log: the stream does not report it (H-C12)."""
    postgres.sql(
        "create table p (id int primary key) partition by range (id)",
        "create table p1 partition of p for values from (0) to (5)",
        "create table p2 partition of p for values from (5) to (9)",
        "insert into p select generate_series(3, 6)",
    )
    capture(postgres.dsn, url, PostgresSettings(once=True))
    assert verify_capture(postgres.dsn, url).is_equal
    postgres.sql("truncate p1")
    (one,) = verify_capture(postgres.dsn, url).tables
    assert {d.key for d in one.differences} == {"id=3", "id=4"}
    capture(postgres.dsn, url, PostgresSettings(once=True))
    assert verify_capture(postgres.dsn, url).is_equal


def test_the_command(postgres, url):
    """`clog capture --verify` prints what differs, and exits with 1 if anything does."""
    from click.testing import CliRunner

    from clog.cli.app import app

    def run(*more):
        done = CliRunner().invoke(app, ["capture", postgres.dsn, url, *more])
        return done.exit_code, done.stdout

    postgres.sql(*MADE)
    assert run("--once")[0] == 0
    code, said = run("--verify")
    assert code == 0
    assert "public.a: 1,000 rows in the database, 1,000 in the log, all equal" in said
    unseen(postgres, "delete from b where x = 50")
    code, said = run("--verify", "--tables", "b")
    assert code == 1
    assert "public.b: x=50, y=é50: only the log has it" in said
    assert "public.a" not in said
    code, said = run("--verify", "--json")
    assert (code, json.loads(said)["tables"][1]["ranges"]) == (1, 1)
