"""Logs by name in Spark SQL, by the catalog of `connector/jvm`."""

import json
import re
import runpy
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pyspark
import pytest

from clog.storage import Log

PROGRAMS = Path(pyspark.__file__).parent / "bin"
CATALOG = Path(__file__).parents[2] / "connector" / "jvm"
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("javac") is None, reason="no javac: install a JDK"),
]


@pytest.fixture(scope="module")
def jar(tmp_path_factory):
    path = tmp_path_factory.mktemp("jar") / "clog-catalog.jar"
    runpy.run_path(str(CATALOG / "build_jar.py"))["build_jar"](path)
    return path


@pytest.fixture
def ask(jar, tmp_path):
    """What each of some statements returned, all in one session of its own."""

    def ask(statements, name="clog"):
        command = [sys.executable, Path(__file__).parent / "by_name.py", jar, tmp_path / "w", name]
        done = subprocess.run(
            command,
            input="".join(f"{statement}\n" for statement in statements),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        told = [json.loads(line) for line in done.stdout.splitlines()]
        return dict(zip(statements, told, strict=True))

    return ask


def test_a_log_has_a_name(ask, url):
    """It is created, read, joined, inserted into, shown, read as of a version, and dropped: its
    name, and not the log.
    """
    log = Log.create(url, key="id", schema={"id": "int64", "item": "string"})
    log.append([{"id": 1, "item": "tea"}, {"id": 2, "item": "cup"}])
    told = ask(
        [
            "USE clog.default",
            f"CREATE TABLE orders USING clog LOCATION '{url}'",
            "INSERT INTO orders VALUES (3, 'pot'), (1, 'green tea')",
            "INSERT INTO orders (id) VALUES (4)",
            "SELECT * FROM orders WHERE id < 9 ORDER BY id",
            "SELECT a.item FROM orders a JOIN orders b ON a.id + 1 = b.id ORDER BY a.id",
            "SELECT count(*) FROM orders VERSION AS OF 1",
            """SELECT * FROM orders WITH (keys = '["2"]')""",
            "SHOW TABLES",
            "DESCRIBE orders",
            "DROP TABLE orders",
            "SHOW TABLES IN clog.default",
        ]
    )
    [rows, joined, old, found, shown, columns, _, left] = [*told.values()][4:]
    assert rows == [[1, "green tea"], [2, "cup"], [3, "pot"], [4, None]]
    assert joined == [["green tea"], ["cup"], ["pot"]]
    assert old == [[2]]
    assert found == [[2, "cup"]]
    assert shown == [["default", "orders", False]]
    assert columns == [["id", "bigint", None], ["item", "string", None]]
    assert left == []
    assert len(Log.open(url).table()) == 4


def test_changes_by_name(ask, url):
    """Spark's own words for them, in SQL and as a stream; the images are the log's, once."""
    log = Log.create(url, 1, key="id", like=[{"id": 1, "n": 1}])
    for n in (1, 2, 3):
        log.append([{"id": 1, "n": n}])
    ends = {
        "CHANGES FROM VERSION 2": [1, 3],
        "CHANGES FROM VERSION 2 EXCLUSIVE TO VERSION 3": [2, 3],
        "CHANGES FROM VERSION 2 TO VERSION 2": [1, 2],
        "CHANGES FROM VERSION 0 TO VERSION 2": [2],
        "CHANGES FROM VERSION 2 WITH (deduplicationMode = 'none')": [1, 2, 2, 3],
        "CHANGES FROM TIMESTAMP '2001-01-01' TO TIMESTAMP '2999-01-01'": [3],
        "CHANGES FROM TIMESTAMP '2999-01-01'": [],
    }
    asked = {f"SELECT n FROM orders {changes}": rows for changes, rows in ends.items()}
    told = ask(
        [
            "USE clog.default",
            f"CREATE TABLE orders USING clog LOCATION '{url}'",
            *asked,
            "SELECT * FROM orders CHANGES FROM VERSION 9",
            'STREAM orders {"startingVersion": 3, "computeUpdates": "true"}',
            "STREAM orders {}",
        ]
    )
    [refused, stream, whole] = [*told.values()][-3:]
    assert {q: [n for (n,) in told[q]] for q in asked} == asked
    assert "version 8 of" in refused
    assert "does not exist yet" in refused
    assert [row[:4] for row in stream] == [
        [1, 2, "update_preimage", 3],
        [1, 3, "update_postimage", 3],
    ]
    assert [row[:4] for row in whole] == [[1, 3, "insert", 3]]


def test_columns_make_the_log(ask, tmp_path):
    """CREATE TABLE with columns, and AS SELECT, create a log if there is none; if there is one its
    columns are compared.
    """
    made, copied = tmp_path / "made", tmp_path / "copied"
    columns = "sku STRING, pieces INT"
    create = "CREATE TABLE {} ({}) USING clog OPTIONS ({}) LOCATION '{}'"
    create_copy = f"CREATE TABLE copied USING clog OPTIONS (keyColumns 'sku') LOCATION '{copied}'"
    told = ask(
        [
            "USE clog.default",
            create.format("stock", columns, "keyColumns 'sku', partitions '3'", made),
            "INSERT INTO stock VALUES ('tea', 3), ('tea', 2)",
            "SELECT * FROM stock",
            create.format("same", columns, "keyColumns 'sku'", made),
            create.format("other", "sku STRING, pieces DATE", "keyColumns 'sku'", made),
            f"{create_copy} AS SELECT sku, pieces + 1 AS pieces FROM stock",
            "SELECT * FROM copied",
        ]
    )
    [rows, same, other, _, copies] = [*told.values()][3:]
    assert rows == [["tea", 2]]
    assert same == []
    assert "has other columns: sku STRING NOT NULL,pieces INT" in other
    assert copies == [["tea", 3]]
    assert Log.open(str(made)).describe()["partitions"] == 3


def test_alter_table_changes_the_log(ask, url):
    """Columns and configs, of each kind; the log has one commit for a statement. What it cannot
    be is told in one sentence, without a traceback.
    """
    schema = {"id": "int64", "city": "string", "n": "int32", "at": {"x": "int32"}}
    log = Log.create(url, 1, key="id", schema={**schema, "must": "int32 not null"})
    log.append([{"id": 1, "city": "Riga", "n": 2, "at": {"x": 3}, "must": 4}])
    altered = [
        "ADD COLUMNS (note STRING, at.y BIGINT, p DECIMAL(10,2))",
        "RENAME COLUMN at.x TO z",
        "RENAME COLUMN id TO trip",
        "ALTER COLUMN n TYPE BIGINT, must DROP NOT NULL",
        "DROP COLUMNS (p, city)",
        "SET TBLPROPERTIES ('segment.ms'='1h', 'segment.bytes'='2m')",
        "UNSET TBLPROPERTIES ('segment.ms')",
    ]
    refused = {
        "DROP COLUMN trip": "cannot be dropped",
        "ADD COLUMN q INT FIRST": "q: columns are shown in the order of their addition",
        "ADD COLUMN q INT NOT NULL": "q: earlier rows have no value",
        "ADD COLUMN q INT DEFAULT 5": "q: a log keeps no defaults",
        "ADD COLUMN q INT COMMENT 'why'": "q: a log keeps no comments",
        "ALTER COLUMN note AFTER n": "note: columns are shown in the order of their addition",
        "ALTER COLUMN n TYPE INT": "NOT_SUPPORTED_CHANGE_COLUMN",
        "ALTER COLUMN n TYPE STRING": "is int64 and cannot become string",
        "SET LOCATION '/tmp/other'": "the table stands for the log",
        "SET TBLPROPERTIES ('segmnt.ms'='1h')": "did you mean segment.ms?",
    }
    told = ask(
        [
            "USE clog.default",
            f"CREATE TABLE trips USING clog LOCATION '{url}'",
            *(f"ALTER TABLE trips {what}" for what in (*altered, *refused)),
            "SELECT * FROM trips",
            "DESCRIBE trips",
            "SHOW TBLPROPERTIES trips",
        ]
    )
    by_statement = {what: told[f"ALTER TABLE trips {what}"] for what in (*altered, *refused)}
    assert [by_statement[what] for what in altered] == [[]] * len(altered)
    answers = {what: by_statement[what] for what in refused}
    assert {what: told for what, told in answers.items() if refused[what] not in told} == {}
    assert not [what for what, told in answers.items() if "Traceback" in told]
    [rows, columns, properties] = [*told.values()][-3:]
    assert rows == [[1, 2, [3, None], 4, None]]
    assert [kind for _, kind, _ in columns] == [
        *("bigint", "bigint", "struct<z:int,y:bigint>", "int", "string")
    ]
    assert properties == [["segment.bytes", "2097152"], ["table.key.columns", "trip"]]
    assert [commit.operation for commit in log.history(2)] == ["evolve"] * 5 + ["alter"] * 2


def test_rows_are_deleted_updated_and_merged(ask, url):
    """Each statement is one append, of whole rows and tombstones, or nothing; DELETE by key looks
    nothing up.
    """
    schema = {"a": "int64", "b": "string", "city": "string not null", "m": [["string", "int32"]]}
    log = Log.create(url, 3, key=["a", "b"], schema=schema)
    log.append([{"a": n, "b": "x", "city": "Riga", "m": {"k": n}} for n in range(8)])
    source = "SELECT 4L AS a, 'x' AS b UNION ALL SELECT 5L, 'x' UNION ALL SELECT 40L, 'y'"
    late, other = (json.dumps({"a": a, "b": "x", "city": "late"}) for a in (6, 60))
    merge = f"""MERGE INTO trips t USING ({source}) s ON t.a = s.a AND t.b = s.b
        WHEN MATCHED AND s.a = 5 THEN DELETE WHEN MATCHED THEN UPDATE SET city = 'Bern'
        WHEN NOT MATCHED THEN INSERT (a, b, city) VALUES (s.a, s.b, 'new')
        WHEN NOT MATCHED BY SOURCE AND t.a = 7 THEN DELETE""".replace("\n", " ")
    statements = [
        "DELETE FROM trips WHERE a IN (0, 77, NULL) AND b = 'x'",
        "DELETE FROM trips WHERE a = 1",
        "UPDATE trips SET city = 'Oslo', m = map('z', 9) WHERE a = 2 OR m['k'] = 3",
        merge,
    ]
    told = ask(
        [
            "USE clog.default",
            f"CREATE TABLE trips USING clog LOCATION '{url}'",
            *statements,
            "SELECT a, city, m FROM trips ORDER BY a",
            "UPDATE trips SET a = a + 1",
            f"UPDATE trips SET city = appended('{url}', '{late}') WHERE a = 6",
            f"UPDATE trips SET city = 'x' WHERE appended('{url}', '{other}') = city AND a = 3",
            "DELETE FROM trips WHERE a = 999",
            "DELETE FROM trips",
            "SELECT * FROM trips",
            "INSERT INTO trips VALUES (1, 'x', 'Riga', NULL)",
            "TRUNCATE TABLE trips",
            "SELECT count(*) FROM trips",
        ]
    )
    [*done, rows, moved, raced, beside, none, _, left, _, _, kept] = [*told.values()][2:]
    assert done == [[]] * 4
    assert rows == [
        [2, "Oslo", {"z": 9}],
        [3, "Oslo", {"z": 9}],
        [4, "Bern", {"k": 4}],
        [6, "Riga", {"k": 6}],
        [40, "new", None],
    ]
    assert moved.startswith("UPDATE cannot change the key of a row")
    assert raced.startswith("others have written 1 of the keys that it changes since version 5 of")
    assert (beside, none, left, kept) == ([], [], [], [[0]])
    assert {commit.operation for commit in log.history(2)} == {"append", "delete-records"}


def test_a_table_is_created_as_it_is_shown(ask, tmp_path):
    """SHOW CREATE TABLE names a log that is there, and creates one like it where there is none."""
    made, other = tmp_path / "made", tmp_path / "other"
    create = f"""CREATE TABLE stock (sku STRING, pieces INT) USING clog OPTIONS (keyColumns 'sku')
        LOCATION '{made}' TBLPROPERTIES ('segment.ms'='1h')""".replace("\n", " ")
    told = ask(["USE clog.default", create, "SHOW CREATE TABLE stock"])
    shown = " ".join(told["SHOW CREATE TABLE stock"][0][0].split())
    same, new = (shown.replace("stock", name, 1) for name in ("same", "new"))
    told = ask(["USE clog.default", same, new.replace(str(made), str(other))])
    assert [*told.values()] == [[]] * 3
    logs = [Log.open(str(url)).describe() for url in (made, other)]
    assert [log["config"]["segment.ms"] for log in logs] == ["3600000"] * 2
    assert [log["config"]["table.key.columns"] for log in logs] == ["sku"] * 2


def test_what_it_refuses(ask, tmp_path, url):
    """A place without a log, no place, other formats, other columns: at once, with a clog error."""
    Log.create(url)
    refused = {
        f"CREATE TABLE lost USING clog LOCATION '{tmp_path / 'lost'}'": "no log at",
        "CREATE TABLE nowhere USING clog": "needs the URL of its log",
        "CREATE TABLE files (a INT) USING parquet": "holds tables of format clog alone",
        f"CREATE TABLE odd USING clog OPTIONS (isolaton 'x') LOCATION '{url}'": '"isolation"?',
        "ALTER TABLE plain ADD COLUMN a INT": "has no schema to evolve",
        "DELETE FROM plain WHERE value = X'00'": "takes key = or IN alone",
        f"CREATE TABLE again USING clog LOCATION '{url}' TBLPROPERTIES ('segment.ms'='1h')": (
            "change it with ALTER TABLE clog.default.again SET TBLPROPERTIES"
        ),
        "SELECT * FROM plain TIMESTAMP AS OF '2001-01-01'": "cannot be read as of",
        "SELECT * FROM nothing": "cannot be found",
    }
    told = ask(["USE clog.default", f"CREATE TABLE plain USING clog LOCATION '{url}'", *refused])
    assert {s: refused[s] if refused[s] in told[s] else told[s] for s in refused} == refused


def test_it_may_stand_for_the_sessions_catalog(ask, url):
    """As `spark_catalog` it serves other formats too."""
    Log.create(url).append([{"key": "a", "value": "1"}])
    told = ask(
        [
            f"CREATE TABLE logs USING clog LOCATION '{url}'",
            "CREATE TABLE files USING parquet AS SELECT binary('a') AS key, 7 AS n",
            "SELECT n FROM logs JOIN files USING (key)",
            "SHOW TABLES",
            "SELECT * FROM files VERSION AS OF 1",
        ],
        name="spark_catalog",
    )
    [joined, shown, old] = [*told.values()][2:]
    assert joined == [[7]]
    assert [table for _, table, _ in shown] == ["files", "logs"]
    assert isinstance(old, str)


@pytest.fixture
def server(jar, tmp_path):
    """The URL of a thrift server whose catalog is clog's, started as in docs/spark-sql.md."""
    found = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"
    command = [PROGRAMS / "spark-submit", "--class", found, "--driver-class-path", jar]
    for conf in ("sql.catalog.spark_catalog=clog.ClogCatalog", "ui.enabled=false"):
        command += ["--conf", f"spark.{conf}"]
    for name, value in (("bind.host", "127.0.0.1"), ("port", 0)):
        command += ["--hiveconf", f"hive.server2.thrift.{name}={value}"]
    process = subprocess.Popen(
        [*map(str, command), "spark-internal"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    lines = iter(process.stderr)
    port = next(filter(None, (re.search(r"CLIService on port (\d+)", line) for line in lines)))[1]
    assert any("HiveThriftServer2 started" in line for line in lines)
    threading.Thread(target=process.stderr.read, daemon=True).start()
    yield f"jdbc:hive2://127.0.0.1:{port}"
    process.kill()
    process.wait()


def test_clients_of_the_thrift_server_have_names(server, tmp_path):
    """A log is created, inserted into, shown among the tables, and read by two names and
    by a view.
    """
    statements = tmp_path / "statements.sql"
    statements.write_text(
        f"""CREATE TABLE trips (id STRING, minutes INT) USING clog
              OPTIONS (keyColumns 'id') LOCATION '{tmp_path}/trips';
        INSERT INTO trips VALUES ('t1', 31), ('t2', 12);
        CREATE VIEW longer AS SELECT id FROM default.trips WHERE minutes > 30;
        !tables
        SELECT * FROM longer;
        """
    )
    beeline = [PROGRAMS / "beeline", "--outputformat=csv2", "-u", server]
    done = subprocess.run(
        [*map(str, beeline), "-f", str(statements)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert re.search(r",default,trips,TABLE,", done.stdout)
    assert re.search(r"id\nt1\n", done.stdout)
    assert len(Log.open(tmp_path / "trips").table()) == 2
