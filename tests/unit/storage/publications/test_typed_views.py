"""Views of typed logs: each type in each format, as other engines read it (S61, S63)."""

import datetime as dt
import decimal
import warnings

import pyarrow as pa
import pytest

from clog.storage import InvalidInputError, Log

deltalake = pytest.importorskip("deltalake")
polars = pytest.importorskip("polars")
pytest.importorskip("fastavro")
pyiceberg = pytest.importorskip("pyiceberg.table")
UTC = dt.UTC
NOON = dt.datetime(2020, 1, 1, 12)
TYPES = {
    "bool": (pa.bool_(), True),
    "int8": (pa.int8(), 1),
    "int16": (pa.int16(), 2),
    "int32": (pa.int32(), 3),
    "uint8": (pa.uint8(), 200),
    "uint16": (pa.uint16(), 60_000),
    "uint32": (pa.uint32(), 4_000_000_000),
    "float": (pa.float32(), 1.5),
    "decimal": (pa.decimal128(10, 2), decimal.Decimal("1.25")),
    "date": (pa.date32(), dt.date(2020, 1, 1)),
    "time": (pa.time64("us"), dt.time(1, 2)),
    "timestamp in ms": (pa.timestamp("ms"), NOON),
    "timestamp in us": (pa.timestamp("us"), NOON),
    "timestamp of a zone": (pa.timestamp("ms", "UTC"), NOON.replace(tzinfo=UTC)),
    "fixed": (pa.binary(3), b"abc"),
    "binary": (pa.binary(), b"q"),
    "list": (pa.list_(pa.int32()), [1, 2]),
    "map": (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    "struct": (pa.struct([("x", pa.int64()), ("y", pa.string())]), {"x": 1, "y": "z"}),
}
NOT_IN = {"delta": {"time"}, "iceberg": {"uint8", "uint16", "uint32"}}


def by_delta_rs(path, _):
    table = deltalake.DeltaTable(path)
    return pa.table(
        deltalake.QueryBuilder().register("t", table).execute("select * from t").read_all()
    )


def by_polars(path, _):
    return polars.read_delta(path).to_arrow()


def by_pyiceberg(path, version):
    metadata = f"{path}/metadata/v{version}.metadata.json"
    return pyiceberg.StaticTable.from_metadata(metadata).scan().to_arrow()


def by_polars_iceberg(path, version):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It would be faster with a package more.
        found = polars.scan_iceberg(f"{path}/metadata/v{version}.metadata.json").collect()
    return found.to_arrow()


READERS = {"delta": (by_delta_rs, by_polars), "iceberg": (by_pyiceberg, by_polars_iceberg)}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("type_", ["bool", "date", "decimal"])
def test_every_type_of_typed_keys_is_read(tmp_path, type_, name):
    """S63: as the key, and in a key's struct; a key that was written again is there once."""
    (arrow, value), path = TYPES[type_], str(tmp_path / "log")
    schema = {"key": pa.struct([("k", arrow)]), "value": arrow}
    for at, key in (("single", value), ("struct", {"k": value})):
        kinds = {"key": arrow, "value": pa.int32()} if at == "single" else schema
        log = Log.create(f"{path}-{at}", 1, schema=kinds, storage_options={"fsync": False})
        for number in (1, 2):
            log.append([{"key": key, "value": number if at == "single" else value}])
        version = log.publish(name).table_version
        expected = log.table().to_arrow().select(["key", "value"]).to_pylist()
        assert len(expected) == 1
        for read in READERS[name]:
            assert read(f"{path}-{at}", version).select(["key", "value"]).to_pylist() == expected


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("type_", TYPES)
def test_every_type_is_read(tmp_path, type_, name):
    """S63: equal to the table; a type that a format lacks is refused before anything is written."""
    path, (arrow, value) = str(tmp_path / "log"), TYPES[type_]
    schema = {"key": pa.string(), "value": pa.struct([("a", arrow)])}
    log = Log.create(path, 1, schema=schema, storage_options={"fsync": False})
    log.append([{"key": "k", "value": {"a": value}}, {"key": "none", "value": {"a": None}}])
    log.append([{"key": "k", "value": {"a": value}}])
    if type_ in NOT_IN[name]:
        with pytest.raises(InvalidInputError, match=r"value\.a of .* has no type"):
            log.publish(name)
        return
    version = log.publish(name).table_version
    expected = sorted(log.table().to_arrow().column("value").to_pylist(), key=repr)
    for read in READERS[name]:
        found = read(path, version)
        assert sorted(found.column("value").to_pylist(), key=repr) == expected
        assert sorted(found.column("key").to_pylist()) == ["k", "none"]
