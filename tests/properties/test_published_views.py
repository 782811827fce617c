"""Published views against the log's own table, for random histories, as other engines read them.

Sixty histories in the suite; more with ``--hypothesis-profile=explore`` or `HISTORIES` in the
environment.
"""

import os
import shutil
import tempfile
import warnings
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st

from clog.cleaner import Cleaner
from clog.storage import Log, ManualClock
from clog.storage.ids import SeededIds
from clog.storage.testing.model import fields_of
from clog.storage.testing.strategies import TIME_MS_MAX, placed_records

deltalake = pytest.importorskip("deltalake")
polars = pytest.importorskip("polars")
pytest.importorskip("fastavro")
pyiceberg = pytest.importorskip("pyiceberg.table")

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
            log.publish("iceberg")


def by_delta_rs(path, version=None):
    table = deltalake.DeltaTable(path, version=version)
    found = deltalake.QueryBuilder().register("t", table).execute("select * from t").read_all()
    return pa.table(found)


def by_polars(path, version=None):
    return polars.read_delta(path, version=version).to_arrow()


def by_pyiceberg(path, version=None):
    table = pyiceberg.StaticTable.from_metadata(metadata_of(path, version))
    return table.scan().to_arrow()


def by_polars_iceberg(path, version=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It would be faster with a package more.
        return polars.scan_iceberg(metadata_of(path, version)).collect().to_arrow()


def metadata_of(path, version):
    found = {int(p.name[1:].split(".")[0]): p for p in Path(path).glob("metadata/v*.metadata.json")}
    return str(found[max(found) if version is None else version])


READERS = {
    "delta": (by_delta_rs, by_polars),
    "iceberg": (by_pyiceberg, by_polars_iceberg),
}


def rows_of(table):
    """Rows as comparable values, in any order; no headers are an empty list, too (FORMAT.md
    §5.1).
    """
    names = ("key", "value", "timestamp", "headers")
    columns = [table.column(name).to_pylist() for name in names]
    return sorted(repr((*row, headers or [])) for *row, headers in zip(*columns, strict=True))


@settings(
    max_examples=HISTORIES, deadline=None, phases=[Phase.generate]
)  # Files are slow to shrink.
@given(st.lists(STEPS, max_size=14))
def test_every_reader_sees_the_table(steps):
    """S63: equal to `table()` at the version that the view states, at its newest and at older
    versions.
    """
    folder = tempfile.mkdtemp()
    try:
        path, clock = str(Path(folder) / "log"), ManualClock(now_ms=TIME_MS_MAX)
        log = Log.create(path, PARTITIONS, CONFIG, {"fsync": False}, clock=clock, ids=SeededIds(1))
        published = {name: {} for name in READERS}
        for name, argument in [*steps, ("publish", None)]:
            perform(log, clock, name, argument)
            if name == "delete":
                published = {name: {} for name in READERS}  # They expire with the next version.
            for view in READERS if name == "publish" else ():
                result = log.publish(view)
                published[view][result.table_version] = result.version
        event(f"{min(len(published['delta']), 3)} versions")
        lowest = {view: pins[0].view for view, pins in log.handle.tip.head.pins.items()}
        Cleaner(log).run_once()  # It takes nothing that a version from there on needs.
        for view, versions in published.items():
            for table_version, version in versions.items():
                if table_version >= lowest[view]:
                    expected = rows_of(log.table(at=version).to_arrow())
                    for read in READERS[view]:
                        assert rows_of(read(path, table_version)) == expected
    finally:
        shutil.rmtree(folder)
