"""Views of logs whose schema was evolved: objects of earlier schemas beside those of the newest, as
other engines read them (S61, S63).
"""

import decimal
import warnings

import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.storage import Log

deltalake = pytest.importorskip("deltalake")
polars = pytest.importorskip("polars")
pytest.importorskip("fastavro")
pyiceberg = pytest.importorskip("pyiceberg.table")

WIDER = {
    "int8": (pa.int8(), pa.int64(), -5),
    "int16": (pa.int16(), pa.int32(), -300),
    "int32": (pa.int32(), pa.int64(), 1 << 30),
    "float": (pa.float32(), pa.float64(), 1.5),
    "decimal": (pa.decimal128(9, 2), pa.decimal128(20, 2), decimal.Decimal("-1.25")),
}
FIRST = {"delta": 0, "iceberg": 1}


def by_delta_rs(path, version):
    table = deltalake.DeltaTable(path, version=version)
    query = deltalake.QueryBuilder().register("t", table)
    return pa.table(query.execute("select * from t").read_all())


def by_polars(path, version):
    return polars.read_delta(path, version=version).to_arrow()


def by_pyiceberg(path, version):
    metadata = f"{path}/metadata/v{version}.metadata.json"
    return pyiceberg.StaticTable.from_metadata(metadata).scan().to_arrow()


def by_polars_iceberg(path, version):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It would be faster with a package more.
        found = polars.scan_iceberg(f"{path}/metadata/v{version}.metadata.json").collect()
    return found.to_arrow()


READERS = {
    "delta-rs": ("delta", by_delta_rs),
    "polars": ("delta", by_polars),
    "pyiceberg": ("iceberg", by_pyiceberg),
    "polars of iceberg": ("iceberg", by_polars_iceberg),
}


def rows_of(table):
    return sorted(map(repr, table.select(["key", "value"]).to_pylist()))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("type_", [*WIDER, "added", "relaxed"])
def test_objects_of_earlier_schemas_are_read_by_the_newest(type_, reader, tmp_path):
    """S61, S63: added fields are null, numbers have the wider type; the version that was published
    before is read as usual, and so is what a pass rewrote.
    """
    name, read = READERS[reader]
    narrow, wide, value = WIDER.get(type_, (pa.int32(), None, 7))
    path = str(tmp_path / "log")
    field = pa.field("a", narrow, nullable=type_ != "relaxed")
    schema = {"key": pa.string(), "value": pa.struct([field])}
    config = {"min.cleanable.dirty.ratio": "0"}
    log = Log.create(path, 1, config, {"fsync": False}, schema=schema)
    log.append([{"key": k, "value": {"a": value}} for k in "abc"])
    before = log.publish(name).table_version
    old = rows_of(log.table().to_arrow())
    match type_:
        case "added":
            log.evolve(add={"value.note": pa.struct([("x", pa.int32())])})
            newer = {"a": value, "note": {"x": 1}}
        case "relaxed":
            log.evolve(relax=["value.a"])
            newer = {"a": None}
        case _:
            log.evolve(widen={"value.a": wide})
            newer = {"a": value}
    assert log.publish(name).published
    assert rows_of(read(path, before + 1)) == rows_of(log.table().to_arrow())
    log.append([{"key": "b", "value": newer}, {"key": "c", "value": None}])
    log.publish(name)
    wanted = rows_of(log.table().to_arrow())
    assert len(wanted) == 2
    assert rows_of(read(path, before + 2)) == wanted
    assert rows_of(read(path, before)) == old
    log.roll()
    Cleaner(log).run_once(force=True)
    version = log.publish(name).table_version
    assert rows_of(read(path, version)) == wanted


INNER = pa.struct([("x", pa.int32()), ("y", pa.int32())])
WHOLE = pa.struct(
    [("a", pa.int32()), ("b", pa.string()), ("s", INNER), ("l", pa.list_(INNER)), ("n", pa.int32())]
)
CHANGES = {
    "renamed": {"rename": {"value.a": "c"}},
    "swapped": {"rename": {"value.a": "b", "value.b": "a", "value.s.x": "y", "value.s.y": "x"}},
    "dropped": {"drop": ["value.n", "value.s.x", "value.l.element.y"]},
    "again": {"drop": ["value.n", "value.s.x"], "add": {"value.n": pa.int32()}},
    "inside lists": {"rename": {"value.l.element.x": "z"}, "drop": ["value.l.element.y"]},
    "the key's": {"rename": {"key.k": "first"}},
}


def value_of(kind, n):
    if pa.types.is_struct(kind):
        return {field.name: value_of(field.type, n + i) for i, field in enumerate(kind)}
    if pa.types.is_list(kind):
        return [value_of(kind.value_type, n), None]
    return n if pa.types.is_integer(kind) else f"text {n}"


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("change", CHANGES)
def test_objects_with_other_names_are_read_by_those_of_the_version(change, reader, tmp_path):
    """S61, S63: Iceberg finds columns by ids, Delta by their names in objects, which stay; a name
    that is used again shows nothing of what it was before, and no file is touched.
    """
    name, read = READERS[reader]
    path = str(tmp_path / "log")
    schema = {"key": pa.struct([("k", pa.int32())]), "value": WHOLE}
    log = Log.create(path, 1, {"min.cleanable.dirty.ratio": "0"}, schema=schema)
    log.append([{"key": {"k": n}, "value": value_of(WHOLE, n)} for n in range(3)])
    before = log.publish(name).table_version
    old = rows_of(log.table().to_arrow())
    log.evolve(**CHANGES[change])
    version = log.publish(name).table_version
    if reader == "polars" and change != "dropped":
        with pytest.raises(deltalake.exceptions.DeltaProtocolError, match="columnMapping"):
            read(path, version)
        return
    assert rows_of(read(path, version)) == rows_of(log.table().to_arrow()) != old
    key, value = (log.schema.field(column).type for column in ("key", "value"))
    log.append([{"key": value_of(key, 1), "value": value_of(value, 5)}])
    wanted = rows_of(log.table().to_arrow())
    assert rows_of(read(path, log.publish(name).table_version)) == wanted
    assert rows_of(read(path, before)) == old
    log.roll()
    Cleaner(log).run_once(force=True)
    assert rows_of(read(path, log.publish(name).table_version)) == wanted
