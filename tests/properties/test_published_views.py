"""Published views against the log's own table, for random histories, as other engines read them.

With passes, deletions, retention, and transactions that are committed, aborted or left open; of
typed logs also with schemas that evolve.

Sixty histories of each kind in the suite; more with ``--hypothesis-profile=explore`` or `HISTORIES`
in the environment.
"""

import os
import shutil
import struct
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
BY_TIME = {"compaction.strategy": "timestamp"}
BY_LSN = {"compaction.strategy": "header", "compaction.strategy.header": "lsn"}
ORDERS = {
    "timestamp-keep": BY_TIME,
    "timestamp-drop": {**BY_TIME, "compaction.late": "drop"},
    "header-keep": BY_LSN,
    "header-drop": {**BY_LSN, "compaction.late": "drop", "compaction.late.scope": "log"},
}
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


def with_lsn(row):
    """The row with its timestamp in a header as well."""
    lsn = ("lsn", struct.pack(">q", row["timestamp"]))
    return {**row, "headers": [*(row.get("headers") or ()), lsn]}


def perform(log, clock, name, argument, row_of=dict):
    match name:
        case "append":
            rows = [row_of(row) for _, row in argument]
            log.append(rows, partition=[p for p, _ in argument])
        case "transaction":
            rows, visible, end = argument
            t = log.transaction("job", visible=visible)  # What was left open is aborted.
            t.append([row_of(row) for _, row in rows], partition=[p for p, _ in rows])
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
    """Rows as comparable values, in any order; no headers are also an empty list (FORMAT.md §5.1).
    PyIceberg takes each null list of structs for an empty one
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
@pytest.mark.parametrize(
    ("kind", "order"),
    [
        *(pytest.param(kind, None, id=kind) for kind in PLACED),
        pytest.param("bytes", "header-drop", id="header-drop"),
        pytest.param("bytes", "timestamp-keep", marks=pytest.mark.nightly, id="timestamp-keep"),
        pytest.param("typed", "timestamp-drop", marks=pytest.mark.nightly, id="timestamp-drop"),
        pytest.param("typed", "header-keep", marks=pytest.mark.nightly, id="header-keep"),
    ],
)
@given(st.data(), st.booleans())
def test_every_reader_sees_the_table(kind, order, data, expires):
    """S63, S56: equal to `table()` at the version that the view states, at its newest and at older
    versions.
    """
    steps = data.draw(st.lists(steps_of(kind), max_size=14))
    if order is not None:  # Nothing of such a log goes by its offset.
        steps = [step for step in steps if step[0] != "delete"]
    folder = tempfile.mkdtemp()
    try:
        path, clock = str(Path(folder) / "log"), ManualClock(now_ms=TIME_MS_MAX)
        config = CONFIG | (ORDERS[order] if order else RETENTION if expires else {})
        schema = SCHEMA if kind == "typed" else None
        given = {"clock": clock, "ids": SeededIds(1), "schema": schema}
        log = Log.create(path, PARTITIONS, config, {"fsync": False}, **given)
        published = {name: {} for name in READERS}
        starts = log.start_offsets()
        for name, argument in [*steps, ("publish", None)]:
            perform(log, clock, name, argument, with_lsn if order else dict)
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


@pytest.mark.parametrize("order", ORDERS)
def test_views_of_ordered_logs(tmp_path, order):
    """S56, S57: other engines see what wins, and late records as the log does; before and after
    passes, and after tombstones were removed.
    """
    path, clock = str(tmp_path / "log"), ManualClock(now_ms=TIME_MS_MAX)
    given_ = {"clock": clock, "ids": SeededIds(1)}
    log = Log.create(path, 1, CONFIG | ORDERS[order], {"fsync": False}, **given_)

    def append(*rows):
        log.append([with_lsn({"key": k, "value": v, "timestamp": at}) for k, v, at in rows])

    def check(**shown):
        expected = log.table().to_arrow()
        pairs = zip(expected["key"].to_pylist(), expected["value"].to_pylist(), strict=True)
        assert {key.decode(): value.decode() for key, value in pairs} == shown
        for view, readers in READERS.items():
            log.publish(view)
            for read in readers:
                assert rows_of(read(path)) == rows_of(expected), (view, read)

    def clean():
        log.roll()
        Cleaner(log).run_once(force=True)
        log.handle.refresh()
        clock.advance(1_001)

    append(("a", "new", 70), ("a", "old", 30), ("gone", "x", 10), ("here", "1", 5))
    append(("gone", None, 90), ("gone", "retried", 20), ("a", "older", 1))
    check(a="new", here="1")
    clean()
    check(a="new", here="1")
    append(("a", "oldest", 2), ("a", "newest", 71), ("gone", "again", 80))
    check(a="newest", here="1")
    for _ in range(3):
        clean()
    assert log.handle.manifest().orders_removed_of(0)[-1][0] in (90, 90_000)
    check(a="newest", here="1")
    append(("gone", "late", 60), ("here", "2", 6), ("a", None, 99))
    late = {"gone": "late"} if order.endswith("keep") else {}
    check(here="2", **late)
    clean()
    check(here="2", **late)
