"""Published views against the log's own table, for random histories, as other engines read them.

With passes, deletions, retention, and transactions that are committed, aborted or left open; of
typed logs also with schemas that evolve.

Sixty histories of each kind in the suite; more with ``--hypothesis-profile=explore`` or `HISTORIES`
in the environment.
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
from clog.storage.env import SeededIds
from clog_testing.model import fields_of
from clog_testing.strategies import TIME_MS_MAX, placed_records

deltalake = pytest.importorskip("deltalake")
polars = pytest.importorskip("polars")
pytest.importorskip("fastavro")
pyiceberg = pytest.importorskip("pyiceberg.table")

HISTORIES = int(os.environ.get("HISTORIES", settings().max_examples * 3 // 5))
PARTITIONS = 2
CONFIG = {
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
    "file.delete.delay.ms": "2000",
    "segment.bytes": "300",
}
RETENTION = {"cleanup.policy": "compact,delete", "retention.ms": str(TIME_MS_MAX // 2)}
FIELDS = [("n", pa.int32()), ("t", pa.string()), ("l", pa.list_(pa.struct([("q", pa.int8())])))]
SCHEMA = {"key": pa.string(), "value": pa.struct(FIELDS)}
WIDER = {"value.n": pa.int64(), "value.l.element.q": pa.int16()}
TYPED = st.builds(
    lambda key, number, time_ms: {
        "key": f"key-{key}",
        "value": value_of(number),
        "timestamp": time_ms,
    },
    *(st.integers(0, 6), st.integers(0, 30), st.integers(0, TIME_MS_MAX)),
)
PLACED = {
    "bytes": placed_records(PARTITIONS).map(lambda rows: [(p, fields_of(r)) for p, r in rows]),
    "typed": st.lists(st.tuples(st.integers(0, PARTITIONS - 1), TYPED), min_size=1, max_size=8),
}
ENDS = st.sampled_from(["commit", "abort", "abort", "open"])


def steps_of(kind):
    """What may happen to a log."""
    placed = PLACED[kind]
    others = [st.tuples(st.just("evolve"), st.none())] if kind == "typed" else []
    return st.one_of(
        st.tuples(st.just("append"), placed),
        st.tuples(st.just("transaction"), st.tuples(placed, st.booleans(), ENDS)),
        st.tuples(st.just("roll"), st.none()),
        st.tuples(st.just("clean"), st.integers(1, 6)),
        st.tuples(st.just("advance"), st.integers(0, 3_000)),
        st.tuples(st.just("delete"), st.floats(0, 1)),
        st.tuples(st.just("publish"), st.none()),
        *others,
    )


def value_of(number):
    """A value of one of many shapes, or a tombstone."""
    if number % 5 == 0:
        return None
    lists = (None, [], [{"q": number}], [None, {"q": 1}])
    text = None if number % 2 else "x" * number
    return {"n": number, "t": text, "l": lists[number % 4]}


def perform(log, clock, name, argument):
    match name:
        case "append":
            log.append([row for _, row in argument], partition=[p for p, _ in argument])
        case "transaction":
            rows, visible, end = argument
            t = log.transaction("job", visible=visible)  # What was left open is aborted.
            t.append([row for _, row in rows], partition=[p for p, _ in rows])
            if end != "open":
                getattr(t, end)()
        case "evolve":
            fields = log.schema.field("value").type.num_fields
            log.evolve(add={f"value.f{fields}": pa.int64()})
            if fields == len(FIELDS):
                log.evolve(widen=WIDER)
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


def rows_of(table, reader=None):
    """Rows as comparable values, in any order; no headers are an empty list, too (FORMAT.md
    §5.1). PyIceberg takes each null list of structs for an empty one
    (https://github.com/apache/iceberg-python/issues/3833).
    """
    names = ("key", "value", "timestamp", "headers")
    columns = [table.column(name).to_pylist() for name in names]
    for value in columns[1] if reader is by_pyiceberg else ():
        if isinstance(value, dict):
            value["l"] = value["l"] or []
    return sorted(repr((*row, headers or [])) for *row, headers in zip(*columns, strict=True))


@settings(
    max_examples=HISTORIES, deadline=None, phases=[Phase.generate]
)  # Files are slow to shrink.
@pytest.mark.parametrize("kind", PLACED)
@given(st.data(), st.booleans())
def test_every_reader_sees_the_table(kind, data, expires):
    """S63: equal to `table()` at the version that the view states, at its newest and at older
    versions.
    """
    steps = data.draw(st.lists(steps_of(kind), max_size=14))
    folder = tempfile.mkdtemp()
    try:
        path, clock = str(Path(folder) / "log"), ManualClock(now_ms=TIME_MS_MAX)
        config = CONFIG | RETENTION if expires else CONFIG
        schema = SCHEMA if kind == "typed" else None
        given = {"clock": clock, "ids": SeededIds(1), "schema": schema}
        log = Log.create(path, PARTITIONS, config, {"fsync": False}, **given)
        published = {name: {} for name in READERS}
        starts = log.start_offsets()
        for name, argument in [*steps, ("publish", None)]:
            perform(log, clock, name, argument)
            if log.start_offsets() != starts:
                starts = log.start_offsets()
                published = {name: {} for name in READERS}  # They expire with the next version.
            for view in READERS if name == "publish" else ():
                result = log.publish(view)
                published[view][result.table_version] = result.version
        event(f"{min(len(published['delta']), 3)} versions")
        lowest = {view: pins[0].view for view, pins in log.handle.tip.head.pins.items()}
        Cleaner(log).run_once()  # It takes nothing that a version from there on needs.
        if log.start_offsets() != starts:
            results = {view: log.publish(view) for view in READERS}
            published = {view: {r.table_version: r.version} for view, r in results.items()}
        assert not any(d["uncleanable"] for d in log.describe()["partition_details"])
        for view, versions in published.items():
            for table_version, version in versions.items():
                if table_version >= lowest[view]:
                    expected = log.table(at=version).to_arrow()
                    for read in READERS[view]:
                        found = rows_of(read(path, table_version), read)
                        assert found == rows_of(expected, read)
    finally:
        shutil.rmtree(folder)
