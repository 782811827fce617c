"""The Python API that users call is a contract: names, parameters, their order and defaults."""

import inspect
from dataclasses import fields

import pyarrow as pa
import pytest

import clog.storage
from clog.storage import Log, ManualClock, StateTable
from clog.storage.append import AppendResult
from clog.storage.describe import SegmentInfo
from clog.storage.table import Table

SIGNATURES = {
    "create": "url, partitions=4, config=None, storage_options=None, clock=None",
    "open": "url, storage_options=None, clock=None",
    "append": "self, data, partition=None, producer=None",
    "read": "self, partition=None, start=None, end=None, isolation='read_uncommitted'",
    "table": "self, partition=None, at=None",
    "start_offsets": "self",
    "end_offsets": "self",
    "offsets_for_times": "self, ts_ms",
    "delete_records": "self, before",
    "alter": "self, config",
    "describe": "self",
    "roll": "self, partition=None",
    "segments": "self, partition",
}


def positional(function):
    """The parameters that can be given by position, as one writes them."""
    shown = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            bare = parameter.replace(annotation=parameter.empty)
            shown.append(str(bare).replace(" = ", "="))
    return ", ".join(shown)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_of_log(name):
    assert positional(getattr(Log, name)) == SIGNATURES[name]


def test_further_parameters_are_keywords_with_defaults():
    """What was added to the contract can be left out, and never gets in the way of a position."""
    for name in SIGNATURES:
        for parameter in inspect.signature(getattr(Log, name)).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY:
                assert parameter.default is not parameter.empty, (name, parameter)


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("__init__", "self, url, cache_dir, storage_options=None, clock=None"),
        ("get", "self, key"),
        ("get_many", "self, keys"),
        ("scan", "self, prefix=None"),
        ("refresh", "self"),
        ("follow", "self"),
    ],
)
def test_signatures_of_state_tables(name, signature):
    assert positional(getattr(StateTable, name)) == signature


@pytest.mark.parametrize("name", ["url", "config", "version", "partitions"])
def test_properties_of_log(name):
    assert isinstance(getattr(Log, name), property)


def test_fields_of_results():
    assert [f.name for f in fields(AppendResult)] == ["version", "offsets", "duplicate"]
    assert AppendResult(3) == AppendResult(3, {}, duplicate=False)
    assert [f.name for f in fields(SegmentInfo)] == [
        "base_offset",
        "next_offset",
        "records",
        "size_bytes",
        "largest_timestamp",
        "active",
        "clean",
        "delete_horizon_ms",
        "dead_rows",
    ]
    for name in ("to_arrow", "to_pandas", "to_polars", "to_duckdb", "to_batches"):
        assert positional(getattr(Table, name)) == "self"


def test_the_schema_of_what_is_read():
    """Record batches have these columns in this order, also where there is nothing to read."""
    log = Log.create("memory://clog-public-api/schema", clock=ManualClock())
    log.append([{"key": "a", "value": "1"}])
    expected = {
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(
            pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        ),
    }
    (batch,) = log.read()
    for schema in (batch.schema, log.table().to_arrow().schema):
        assert dict(zip(schema.names, schema.types, strict=True)) == expected
    table = log.table()
    assert (table.version, table.offsets) == (1, log.end_offsets())
    assert len(table.to_pandas()) == 1


def test_all_that_is_exported_is_there():
    exported = clog.storage.__all__
    assert exported == sorted(exported)
    assert all(hasattr(clog.storage, name) for name in exported)
    assert {"Log", "ManualClock", "ClogError", "OffsetOutOfRangeError"} <= set(exported)


def test_a_manual_clock():
    clock = ManualClock(now_ms=5)
    clock.advance(3)
    assert clock.now_ms() == 8
    assert ManualClock().now_ms() == 0


def test_a_log_is_shown_without_secrets():
    log = Log.create("memory://clog-public-api/shown", storage_options={"token": "hush"})
    assert log.url == "memory://clog-public-api/shown"
    assert repr(log) == "Log('memory://clog-public-api/shown', version=0)"
    assert "hush" not in repr(log.handle.store)
