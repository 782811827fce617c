"""What DELETE, UPDATE and MERGE give the sink, without Spark: appended if it undoes nothing of
others, else refused.
"""

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import BooleanType, StructField, StructType

from clog.cleaner import Cleaner
from clog.connector.datasource import ClogDataSource
from clog.connector.write import changed_rows
from clog.storage import CommitConflictError, InvalidInputError, Log

SCHEMA = {"id": "int64", "city": "string not null", "at": {"x": "int32"}}


def row(key, city="Riga"):
    return {"id": key, "city": city, "at": {"x": key}}


@pytest.fixture
def log(tmp_path):
    """Version 1 has the keys 1 to 5."""
    log = Log.create(str(tmp_path / "trips"), 2, key="id", schema=SCHEMA)
    log.append([row(key) for key in range(1, 6)])
    return log


class Statement:
    """One that has read the newest version, deletes key 1, and gives key 2 another city."""

    def __init__(self, log, columns=None):
        options = {"path": log.url} | ({"columns": columns} if columns else {})
        shown = ClogDataSource(options | {"view": "table"}).schema()
        schema = StructType([*shown.fields, StructField("deleted", BooleanType())])
        sink = ClogDataSource(options | {"__read_at": str(log.version)})
        self.writer = pickle.loads(pickle.dumps(sink.writer(schema, False)))
        rows = {
            "id": pa.array([1, 2]),
            "city": pa.array([None, "Oslo"]),
            "at": pa.array([None, {"x": 2}], pa.struct([("x", pa.int32())])),
            "deleted": pa.array([True, False]),
        }
        batch = pa.RecordBatch.from_pydict({name: rows[name] for name in schema.names})
        self.written = pickle.loads(pickle.dumps(self.writer.write(iter([batch]))))

    def commit(self):
        self.writer.commit([self.written])


def table(log):
    return sorted(log.table().to_pylist(), key=lambda r: r["id"])


DONE = [row(2, "Oslo"), row(3), row(4), row(5)]


def test_rows_and_tombstones_are_one_append(log):
    """A deleted key needs no value, though columns are NOT NULL."""
    Statement(log).commit()
    assert table(log) == DONE
    assert log.describe()["version"] == 2


def appends(key):
    return lambda log: log.append([row(key, "Bern")])


def clean(log):
    log.roll()
    Cleaner(log).run_once(force=True)


HARMLESS = {
    "another key": appends(7),
    "cleaned": clean,
    "other config": lambda log: log.alter({"segment.ms": "1h"}),
}
KEYS = "others have written 1 of the keys that it changes since version 1"
HARMFUL = {
    "a key": (appends(2), KEYS),
    "a deleted key": (lambda log: log.delete([1]), KEYS),
    "undecided": (lambda log: log.transaction("t", visible=True).append([row(2)]), KEYS),
    "records deleted": (lambda log: log.delete_records({0: -1, 1: -1}), "records were deleted"),
    "an erasure": (lambda log: log.erase([2], notify=False), "keys were erased"),
    "another order": (
        lambda log: log.alter({"compaction.strategy": "timestamp"}),
        "compaction.strategy=timestamp",
    ),
    "another name": (lambda log: log.evolve(rename={"city": "town"}), "city"),
}


@pytest.mark.parametrize("meanwhile", HARMLESS.values(), ids=HARMLESS)
def test_what_others_do_to_other_rows_stays(log, meanwhile):
    """Appends of other keys, and cleaning, while a statement runs, do not stop it."""
    statement = Statement(log)
    meanwhile(log)
    others = [r for r in table(log) if r["id"] > 5]
    statement.commit()
    assert table(log) == DONE + others


@pytest.mark.parametrize(("meanwhile", "told"), HARMFUL.values(), ids=HARMFUL)
def test_what_a_statement_has_not_seen_it_does_not_undo(log, meanwhile, told):
    """It is refused, in words, and writes nothing (S85)."""
    statement = Statement(log)
    meanwhile(log)
    before = table(log), log.describe()["version"]
    with pytest.raises((CommitConflictError, InvalidInputError), match=told):
        statement.commit()
    assert (table(log), log.describe()["version"]) == before


def test_a_transaction_that_was_open_when_it_read_counts(log):
    """Its records have offsets below the end that the statement saw, and appear later."""
    work = log.transaction("t", visible=True)
    work.append([row(2, "Bern")])
    statement = Statement(log)
    work.commit()
    with pytest.raises(CommitConflictError, match="others have written 1"):
        statement.commit()


@pytest.mark.parametrize(("key", "is_refused"), [(7, False), (2, True)])
def test_an_append_just_before_the_commit_is_seen(log, monkeypatch, key, is_refused):
    """Whoever comes between the look for others' keys and the append is looked at, too."""
    statement, looked = Statement(log), []
    check = changed_rows._check_unchanged

    def raced(*args):
        check(*args)
        if not looked:
            Log.open(log.url).append([row(key, "Bern")])
        looked.append(None)

    monkeypatch.setattr(changed_rows, "_check_unchanged", raced)
    if is_refused:
        with pytest.raises(CommitConflictError):
            statement.commit()
    else:
        statement.commit()
        assert len(looked) == 2
    assert {r["id"]: r["city"] for r in table(log)}[key] == "Bern"


def test_what_spark_reads_rounded_is_not_written_back(log):
    """Nanoseconds would be lost in each row that is changed, in whichever column."""
    log.evolve(add={"at.t": pa.timestamp("ns")})
    with pytest.raises(InvalidInputError, match=r"value.at.t of .* has nanoseconds"):
        Statement(log)


@pytest.mark.parametrize("columns", ["id,city", "id,at,city"])
def test_a_row_is_changed_as_a_whole(log, columns):
    """A table that shows some columns cannot give the others back."""
    log.evolve(add={"note": pa.string(), "at.y": pa.int32()})
    with pytest.raises(InvalidInputError, match="would lose their values"):
        Statement(log, columns)
