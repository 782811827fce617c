"""Published views against the log's own table, for random histories, as other engines read them.

Sixty histories in the suite; more with ``--hypothesis-profile=explore`` or `HISTORIES` in the
environment.
"""

import os
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from clog.cleaner import Cleaner
from clog.storage import Log, ManualClock
from clog.storage.ids import SeededIds
from clog.storage.testing.model import fields_of
from clog.storage.testing.strategies import TIME_MS_MAX, placed_records

deltalake = pytest.importorskip("deltalake")
polars = pytest.importorskip("polars")

HISTORIES = int(os.environ.get("HISTORIES", "60"))
PARTITIONS = 2
CONFIG = {
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
    "file.delete.delay.ms": "2000",
    "segment.bytes": "300",
}
STEPS = st.one_of(
    st.tuples(st.just("append"), placed_records(PARTITIONS)),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("clean"), st.integers(1, 6)),
    st.tuples(st.just("advance"), st.integers(0, 3_000)),
    st.tuples(st.just("delete"), st.floats(0, 1)),
    st.tuples(st.just("publish"), st.none()),
)


def perform(log, clock, name, argument):
    match name:
        case "append":
            rows = [fields_of(record) for _, record in argument]
            log.append(rows, partition=[p for p, _ in argument])
        case "roll":
            log.roll()
        case "clean":
            Cleaner(log, dedupe_buffer_bytes=24 * 4 * argument + 96).run_once(force=True)
        case "advance":
            clock.advance(argument)
        case "delete":
            ends = log.end_offsets()
            log.delete_records({p: int(end * argument) for p, end in ends.items()})
        case "publish":
            log.publish("delta")


def by_delta_rs(path, version=None):
    table = deltalake.DeltaTable(path, version=version)
    found = deltalake.QueryBuilder().register("t", table).execute("select * from t").read_all()
    return pa.table(found)


def by_polars(path, version=None):
    return polars.read_delta(path, version=version).to_arrow()


def rows_of(table):
    """Rows as comparable values, in any order."""
    names = ("key", "value", "timestamp", "headers")
    columns = [table.column(name).to_pylist() for name in names]
    return sorted(repr(row) for row in zip(*columns, strict=True))


@settings(max_examples=HISTORIES, deadline=None)
@given(st.lists(STEPS, max_size=14))
def test_every_reader_sees_the_table(steps):
    """S63: equal to `table()` at the version that the view states, at its newest and at older
    versions.
    """
    folder = tempfile.mkdtemp()
    try:
        path, clock = str(Path(folder) / "log"), ManualClock(now_ms=TIME_MS_MAX)
        log = Log.create(path, PARTITIONS, CONFIG, {"fsync": False}, clock=clock, ids=SeededIds(1))
        published = {}
        for name, argument in steps:
            perform(log, clock, name, argument)
            if name == "publish":
                result = log.publish("delta")
                published[result.table_version] = result.version
            if name == "delete":
                published.clear()  # Older versions of the view expire with the next one.
        newest = log.publish("delta")
        published[newest.table_version] = newest.version
        event(f"{min(len(published), 3)} versions")
        lowest = log.handle.tip.head.pins["delta"][0].view
        Cleaner(log).run_once()  # It takes nothing that a version from there on needs.
        for table_version, version in published.items():
            if table_version < lowest:
                continue
            expected = rows_of(log.table(at=version).to_arrow())
            assert rows_of(by_delta_rs(path, table_version)) == expected
            assert rows_of(by_polars(path, table_version)) == expected
    finally:
        shutil.rmtree(folder)
