"""`capture` with a real server of PostgreSQL."""

import pytest

from clog.bridge import PostgresSettings, capture
from clog.storage import InvalidInputError, Log, snapshot


def table(url, cut=None):
    """The rows of a log's table, in order of their keys."""
    rows = Log.open(url).table(at=cut).to_arrow().to_pylist()
    return sorted(rows, key=str)


def test_all_tables_are_there_at_one_cut(postgres, url):
    """Loaded, then followed; a cut has both tables."""
    postgres.sql(
        "create table a (id int primary key, v text)",
        "create table b (id bigint primary key, a int references a, v numeric(10,2))",
        "insert into a select i, 'v' || i from generate_series(1, 1000) i",
        "insert into b values (1, 1, 1.5)",
    )
    done = capture(postgres.dsn, url, PostgresSettings(once=True))
    assert done.position is not None
    cut = snapshot(url)
    assert {u.rpartition("/")[2] for u in cut.logs} == {"shop", "public.a", "public.b"}
    assert len(table(f"{url}/public.a", cut)) == 1000
    postgres.sql(
        "begin; insert into a values (1001, 'x'); insert into b values (2, 1001, 7); commit",
        "update a set v = 'changed' where id = 1",
        "delete from a where id = 2",
        "update a set id = 5000 where id = 3",
    )
    done = capture(postgres.dsn, url, PostgresSettings(once=True))
    assert done.transactions == 4
    cut = snapshot(url)
    for name in ("a", "b"):
        rows = postgres.query(f"select row_to_json({name}) from {name}")
        there = table(f"{url}/public.{name}", cut)
        assert {r["id"] for r in there} == {r["id"] for (r,) in rows}
    assert {"id": 1, "v": "changed"} in table(f"{url}/public.a", cut)


@pytest.mark.parametrize(
    "dsn",
    [
        "host=db user=u password=hunter2 dbname=shop",
        "mysql://u:hunter2@db/shop",
        "postgres://u:a/hunter2@db/shop",
        "postgres://u:a@hunter2@db/shop",
        "postgres://u:%hunter2@db/shop",
        "postgres://u@db/shop?password=hunter2\udcff",
        "postgres://u@[db/shop?password=hunter2",
        "postgres://u:hunter2/shop",
        "postgres://u@a:1,b:hunter2/shop",
    ],
)
def test_a_malformed_address_shows_no_password(dsn, url):
    """In whatever way it was written; the error says how to write one."""
    pytest.importorskip("psycopg2")
    with pytest.raises(InvalidInputError, match="postgres://USER@HOST") as e:
        capture(dsn, url, PostgresSettings(once=True))
    assert "hunter2" not in str(e.value)
    assert e.value.__cause__ is None
