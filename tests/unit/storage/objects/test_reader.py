"""Reading data objects: what comes back, what it costs, and what damage does."""

import dataclasses
import itertools
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from clog.storage.env import SeededIds
from clog.storage.errors import CorruptionError, StoreUnavailableError
from clog.storage.objects import reader, writer
from clog.storage.objects.composing import write_rewritten
from clog.storage.objects.reader import BATCH_ROWS, open_ranges, read_rows
from clog.storage.store import open_store
from clog.storage.types.columns import REWRITTEN_SCHEMA
from clog_testing.counting import CountingStore
from clog_testing.sealing import sealed

ALL = tuple(REWRITTEN_SCHEMA.names)
ROWS = 40
_numbers = itertools.count()


@pytest.fixture
def store():
    return CountingStore(open_store(f"memory://test_object_reader/{next(_numbers)}"))


@pytest.fixture
def ranged(monkeypatch):
    """Small objects are read as large ones are, a few rows to a row group."""
    monkeypatch.setattr(reader, "WHOLE_BYTES", 0)
    monkeypatch.setattr(writer, "GROUP_ROWS", 16)


def table(rows=ROWS, *, sparse=True, headers=True):
    columns = {
        "key": [b"k%d" % i for i in range(rows)],
        "value": [None if i % 7 == 3 else b"v%d" % i * (i % 5) for i in range(rows)],
        "headers": [
            [{"key": "h", "value": b"x"}, {"key": "", "value": None}]
            if headers and not i % 3
            else None
            for i in range(rows)
        ],
        "timestamp": [1000 * i for i in range(rows)],
        "offset": [i * (2 if sparse else 1) for i in range(rows)],
        "delete_horizon": [99 if sparse and i % 7 == 3 else None for i in range(rows)],
    }
    return pa.table(columns, schema=REWRITTEN_SCHEMA)


def write(store, records, seed=1):
    made = write_rewritten(
        *(store, records.to_batches()), partition=0, stamp=0, new_id=SeededIds(seed).new_id
    )
    assert len(made) == 1
    store.reset()
    return made[0].ref


def read(store, ref, first=0, rows=None, columns=ALL, **options):
    batches = read_rows(
        store, ref, first, ref.rows if rows is None else rows, columns=columns, **options
    )
    schema = pa.schema([REWRITTEN_SCHEMA.field(name) for name in columns])
    return pa.Table.from_batches(list(batches), schema)


@pytest.mark.parametrize("first", [0, 1, 15, 16, 17, 39])
@pytest.mark.parametrize("rows", [1, 15, 16, 23])
@pytest.mark.parametrize("batch_rows", [1, 7, 16384])
def test_any_run_of_rows(store, ranged, first, rows, batch_rows):
    """Runs within, across and at the edges of row groups, in batches of at most this many rows."""
    ref = write(store, table())
    rows = min(rows, ROWS - first)
    batches = list(read_rows(store, ref, first, rows, columns=ALL, batch_rows=batch_rows))
    assert pa.Table.from_batches(batches).equals(table().slice(first, rows))
    assert max(batch.num_rows for batch in batches) <= batch_rows


def test_many_runs_in_one_call(store, ranged):
    """Runs of many partitions: each batch says to which it belongs; empty runs have none."""
    ref = write(store, table())
    runs = [(0, 3), (3, 0), (3, 20), (30, 1), (33, 7)]
    found = {}
    order = []
    for i, _, batch in open_ranges(store, ref, runs, columns=ALL)(BATCH_ROWS):
        order.append(i)
        found.setdefault(i, []).append(batch)
    assert order == sorted(order)
    assert set(found) == {0, 2, 3, 4}
    for i, batches in found.items():
        assert pa.Table.from_batches(batches).equals(table().slice(*runs[i]))
    assert dict(store.counts) == {"get": 1, "get_ranges": 1}


@pytest.mark.parametrize(
    "columns", [("key",), ("offset", "key"), ("value", "timestamp", "headers")]
)
def test_columns_come_as_asked(store, ranged, columns):
    """In the order in which they were named, and no others."""
    ref = write(store, table())
    assert read(store, ref, 3, 20, columns).equals(table().select(columns).slice(3, 20))


@pytest.mark.parametrize("first", [0, 5])
def test_absent_columns_are_null(store, ranged, first):
    """Headers, offsets, delete horizons are left out if they hold nothing; their types stay."""
    ref = write(store, table(sparse=False, headers=False))
    assert ref.dense
    found = read(store, ref, first, 30)
    assert found.schema.equals(REWRITTEN_SCHEMA)
    for name in ("headers", "offset", "delete_horizon"):
        assert found.column(name).null_count == 30
    assert found.column("key").equals(table().column("key").slice(first, 30))


def test_only_absent_columns(store, ranged):
    """The rows are still counted."""
    ref = write(store, table(sparse=False))
    assert read(store, ref, 5, 30, ("offset",)).column("offset").null_count == 30


@pytest.mark.parametrize("columns", [ALL, ("key",)])
@pytest.mark.parametrize("rows", [1, ROWS])
def test_a_small_object_costs_one_request(store, columns, rows):
    """Up to 1 MiB an object is fetched whole."""
    ref = write(store, table())
    read(store, ref, 0, rows, columns)
    assert dict(store.counts) == {"get": 1}
    assert store.bytes_in == ref.size_bytes


def test_all_of_a_large_object_costs_one_request(store, ranged):
    """Looking at the footer first would save nothing; and the checksum of the whole is verified."""
    ref = write(store, table())
    read(store, ref)
    assert dict(store.counts) == {"get": 1}


@pytest.mark.parametrize(("rows", "columns"), [(17, ALL), (ROWS, ("key",))])
def test_a_part_of_a_large_object_costs_two_requests(store, ranged, rows, columns):
    """The footer, then the columns of the row groups that are needed."""
    ref = write(store, table())
    read(store, ref, 20, rows - 20 if rows > 20 else rows, columns)
    assert dict(store.counts) == {"get": 1, "get_ranges": 1}


def test_only_what_is_needed_is_fetched(store):
    """Keys alone are read without the values; a few rows without the other row groups."""
    rng = np.random.default_rng(1)
    rows = 3000
    values = pa.array([rng.bytes(4000) for _ in range(rows)], pa.binary())
    records = table(rows).set_column(1, REWRITTEN_SCHEMA.field("value"), values)
    ref = write(store, records)
    assert ref.size_bytes > 10 << 20
    read(store, ref, 0, rows, ("offset", "key"))
    assert store.bytes_in < 100 << 10
    assert store.counts["get"] == 1
    store.reset()
    last = read(store, ref, rows - 1, 1)
    assert last.equals(records.slice(rows - 1))
    assert dict(store.counts) == {"get": 1, "get_ranges": 1}
    assert store.bytes_in < ref.size_bytes


@pytest.mark.parametrize("runs", [[], [(0, 0)], [(40, 0)]])
def test_no_rows_cost_nothing(store, runs):
    """Not even a look at whether the object is there."""
    ref = write(store, table())
    assert list(open_ranges(store, ref, runs, columns=ALL)(BATCH_ROWS)) == []
    assert not store.counts


def test_a_missing_object_is_not_damage(store, ranged):
    """The sweep may have deleted it: the reader continues with a newer version."""
    ref = write(store, table())
    store.delete(ref.path)
    for columns in (ALL, ("key",)):
        with pytest.raises(FileNotFoundError):
            read(store, ref, 0, ROWS, columns)


def test_a_store_that_fails_is_not_damage(store, ranged):
    """Its errors are passed on, though they are OSErrors as Arrow's are."""

    class Failing(CountingStore):
        def get_ranges(self, path, ranges):
            raise StoreUnavailableError("down")

    ref = write(store, table())
    with pytest.raises(StoreUnavailableError, match="down"):
        read(Failing(store), ref, 0, ROWS, ("key",))


def test_rows_that_the_manifest_has_not(store):
    """A chunk beyond its object's rows contradicts the manifest itself: nothing is read."""
    ref = write(store, table())
    with pytest.raises(CorruptionError, match=r"rows 30 to 41 of data/.* it holds 40 rows"):
        read(store, ref, 30, 11)
    assert not store.counts


def test_a_footer_that_would_end_the_process(store, ranged):
    """Arrow does not get a footer whose checksum is wrong: it calls terminate() on some."""
    ref = write(store, table())
    data = store.get(ref.path)
    footer = data[-ref.footer_bytes :]
    store.put(ref.path, data[: -ref.footer_bytes] + footer[::-1])
    with pytest.raises(CorruptionError, match="the xxh3_128 of its footer is"):
        read(store, ref, 0, ROWS, ("key",))


def test_another_object_in_its_place(store, ranged):
    """Sound in itself, but not the one that the manifest describes."""
    ref = write(store, table())
    other = write(store, table(ROWS - 1), seed=2)
    wrong = dataclasses.replace(other, rows=ROWS)
    with pytest.raises(CorruptionError, match=r"counts 39 rows, .* expected 40"):
        read(store, wrong, 0, ROWS, ("key",))
    longer = dataclasses.replace(ref, footer_bytes=ref.footer_bytes + 1)
    with pytest.raises(CorruptionError, match="the xxh3_128 of its footer"):
        read(store, longer, 0, ROWS, ("key",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns("value"), r"its columns are .* expected \['value'\] too"),
        (
            lambda t: t.set_column(0, "key", t.column("key").cast(pa.string())),
            "its column key has type string, expected binary",
        ),
    ],
)
def test_a_file_that_is_none_of_ours(store, ranged, change, message):
    """Parquet, with sound checksums, and other columns than the format's."""
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(change(table()), sink, store_schema=False)
    data, footer_bytes = sealed(sink.getvalue())
    store.put("data/x.parquet", data)
    ref = dataclasses.replace(
        *(write(store, table()),),
        path="data/x.parquet",
        size_bytes=len(data),
        footer_bytes=footer_bytes,
    )
    with pytest.raises(CorruptionError, match=message):
        read(store, ref, 0, ROWS, ("key",))


def test_columns_of_a_later_format_are_left_alone(store, ranged):
    """A reader ignores what it does not know."""
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    later = table().append_column("batch", pa.array(range(ROWS), pa.int32()))
    pq.write_table(later, sink, store_schema=False, use_dictionary=True)
    data, footer_bytes = sealed(sink.getvalue())
    ref = write(store, table())
    store.put(ref.path, data)
    ref = dataclasses.replace(ref, size_bytes=len(data), footer_bytes=footer_bytes)
    assert read(store, ref, 3, 20).equals(table().slice(3, 20))


def test_what_was_yielded_before_damage_is_right(store, ranged):
    """A reader may keep the batches it got."""
    ref = write(store, table())
    data = bytearray(store.get(ref.path))
    data[-ref.footer_bytes - 40] ^= 1  # In the last row group.
    store.put(ref.path, bytes(data))
    got = []
    with pytest.raises(CorruptionError, match="row group 2 does not decode"):
        got.extend(read_rows(store, ref, 1, ROWS - 1, columns=ALL))
    assert pa.Table.from_batches(got).equals(table().slice(1, 31))


INTERRUPTED_RUN = """
import signal, sys, threading
from clog.storage import Log

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "pyarrow.parquet.core":
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)  # Of the process, whichever thread imports.

def interrupt(frame, event, arg):
    # Where CPython looks for signals, and has taken a module's lock.
    if event == "return" and frame.f_locals["self"]._name == "pyarrow.parquet":
        sys.settrace(None)
        raise KeyboardInterrupt
    return interrupt

def trace(frame, event, arg):
    locks = frame.f_code.co_qualname == "_ModuleLockManager.__enter__"
    return interrupt if locks else None

log = Log.create(sys.argv[1], 1)
if sys.argv[2] == "signal":
    sys.meta_path.insert(0, Interrupting())
else:
    sys.settrace(trace)
try:
    log.append([{"key": b"1", "value": b"a"}])
except KeyboardInterrupt as e:
    kept = e  # As a notebook keeps the last one, with all that its frames hold.
sys.settrace(None)
other = threading.Thread(target=log.append, args=([{"key": b"2", "value": b"b"}],), daemon=True)
other.start()
other.join(20)
assert not other.is_alive(), "the other thread waits for the import for ever"
assert log.table().get("2") == b"b"
"""


@pytest.mark.parametrize("where", ["signal", "lock"])
def test_interrupt_of_the_first_append_leaves_the_next_ones_their_parquet(tmp_path, where):
    """An interrupt while ``pyarrow.parquet`` is imported leaves no half-imported module, and no
    lock of the import: other threads append and read as before.
    """
    run = [sys.executable, "-c", INTERRUPTED_RUN, str(tmp_path / "log"), where]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
