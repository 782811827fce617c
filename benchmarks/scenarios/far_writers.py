"""Many processes that write to one table on a real S3 server (Versity's gateway), behind a proxy
that delays everything by 50 ms each way, on connections that stay open: clog beside delta-rs and
PyIceberg.

A process appends ten rows of 100 bytes, waits for a second on average, and appends again. Counted
are the appends that begin within the time, after ten seconds of warming up; *failed* are those that
raised, or had not ended a minute later. The libraries retry as often as by default (delta-rs 15
times, PyIceberg 4 times), or, as *on and on*, a thousand times. *Racing* is clog of an earlier
release, whose writers did not combine. PyIceberg's catalog is SQLite on the local disk, without a
delay. All processes share the machine: where its processors were busy (the note says how busy),
they were the limit, not the protocol.
"""

import multiprocessing
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

import pyarrow as pa
from harness.measure import Line, Result
from peers.far_s3 import BUCKET, KEY, SECRET, far_s3

from clog.storage import Log

TITLE = "Many writers of one table on a far S3 server"
ENVIRONMENT = "tables"
ENGINE = "Python"
SIZES = {
    "smallest": {"writers_max": 1, "seconds": 2, "each_way_ms": 5},
    "quick": {"writers_max": 8, "seconds": 10, "each_way_ms": 50},
    "full": {"writers_max": 64, "seconds": 20, "each_way_ms": 50},
}
WRITERS = (1, 8, 64)
WARM_S, GRACE_S = 10, 60
ROWS, PAUSE_S = 10, 1.0
ON_AND_ON = 1000
Append = Callable[[pa.Table], object]


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    counts = [n for n in WRITERS if n <= size["writers_max"]]
    lines: dict[str, list[tuple[float, Found]]] = {}
    with far_s3(folder, size["each_way_ms"], keep_alive=True) as (address, requests):
        for n in counts:
            for i, (who, (make, opener, more)) in enumerate(CANDIDATES.items()):
                place = Place(address, str(folder / "catalog.db"), f"t{n}-{i}", more)
                make(place)
                found = crowd(opener, place, n, size["seconds"], requests)
                add(result, f"{n} writers", who, found)
                lines.setdefault(who, []).append((n, found))
    for what, unit, figure in LINES:
        for who, points in lines.items():
            some = [(n, figure(found)) for n, found in points if found.took]
            result.lines.append(Line(what, who, "writers", unit, some))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is. ``more``: how often its library tries again; None: as by default."""

    address: str
    catalog: str
    name: str
    more: int | None

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{self.name}"


@dataclass(slots=True)
class Found:
    """What appends took, in s; how many failed; requests by kind; how busy the processors were."""

    seconds: int
    took: list[float] = field(default_factory=list)
    failed: int = 0
    requests: Mapping[str, int] = field(default_factory=dict)
    busy: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.took) / self.seconds

    def quantile(self, q: float) -> float:
        return sorted(self.took)[min(len(self.took) - 1, int(q * len(self.took)))]


LINES = (
    ("append to a far table by number of writers, p99", "s", lambda found: found.quantile(0.99)),
    ("appends to a far table by number of writers", "a second", lambda found: found.rate),
)


def add(result: Result, what: str, who: str, found: Found) -> None:
    began = len(found.took) + found.failed
    kinds = [f"{n / max(1, began):.3g} {kind}" for kind, n in sorted(found.requests.items())]
    note = ", ".join([*kinds, f"processors {found.busy:.0%} busy"])
    result.add(f"{what}: appends", who, "a second", found.rate, note=note)
    if found.took:
        result.add(f"{what}: an append", who, "s, p50", found.quantile(0.5), lower=True)
        result.add(f"{what}: nearly all", who, "s, p99", found.quantile(0.99), lower=True)
    failed = 100 * found.failed / max(1, began)
    result.add(f"{what}: failed", who, "% of appends", failed, lower=True)


def crowd(
    opener: Callable[[Place], Append],
    place: Place,
    writers: int,
    seconds: int,
    requests: Callable[[], dict[str, int]],
) -> Found:
    """Has so many processes append for so long."""
    context = multiprocessing.get_context("forkserver")
    libraries = ["deltalake", "pyiceberg.catalog.sql", "s3fs", "pyarrow.parquet"]
    context.set_forkserver_preload([__name__, *libraries])
    gate, told = context.Barrier(writers + 1), context.Queue()
    processes = [
        context.Process(target=write, args=(opener, place, name, seconds, gate, told))
        for name in range(writers)
    ]
    for process in processes:
        process.start()
    gate.wait()
    found = Found(seconds)
    time.sleep(WARM_S)
    requests()
    busy = _busy()
    time.sleep(seconds)
    found.busy = _share(busy, _busy())
    found.requests = requests()
    deadline, began, ended = time.monotonic() + GRACE_S, 0, 0
    while ended < writers or not told.empty():
        try:
            what, took = told.get(timeout=max(0.01, deadline - time.monotonic()))
        except Empty:
            break
        began += what == "began"
        ended += what == "ended"
        if what == "done":
            found.took.append(took)
    found.failed = began - len(found.took)
    for process in processes:
        process.kill()
        process.join()
    return found


def write(
    opener: Callable[[Place], Append], place: Place, name: int, seconds: int, gate: Any, told: Any
) -> None:
    """Appends for so long, and tells of each append that is counted."""
    dice, append = random.Random(name), opener(place)
    gate.wait()
    start = time.monotonic()
    first, end = start + WARM_S, start + WARM_S + seconds
    time.sleep(dice.uniform(0, 2 * PAUSE_S))
    number = 0
    while (began := time.monotonic()) < end:
        counts = began >= first
        if counts:
            told.put(("began", 0.0))
        keys = [f"{name}-{number}-{k}".encode() for k in range(ROWS)]
        values = [dice.randbytes(90) for _ in keys]
        try:
            append(pa.table({"key": keys, "value": values}))
        except Exception as e:  # noqa: BLE001 - whatever a library raises: the append failed
            print(f"{place.name}: {type(e).__name__}: {str(e)[:200]}", flush=True)
        else:
            if counts:
                told.put(("done", time.monotonic() - began))
        number += 1
        time.sleep(dice.expovariate(1 / PAUSE_S))
    told.put(("ended", 0.0))


def _busy() -> list[int]:
    """Ticks of all processors by what they did (Linux)."""
    return [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]


def _share(before: list[int], after: list[int]) -> float:
    spent = [b - a for a, b in zip(before, after, strict=True)]
    return 1 - (spent[3] + spent[4]) / max(1, sum(spent))  # idle, and waiting for a disk


def s3fs_options(place: Place) -> dict[str, object]:
    client = {"endpoint_url": place.address, "region_name": "us-east-1"}
    return {"key": KEY, "secret": SECRET, "client_kwargs": client}


def make_clog(place: Place) -> None:
    Log.create(place.url, 1, None, s3fs_options(place))


def open_clog(place: Place) -> Append:
    return Log.open(place.url, s3fs_options(place)).append


def rust_options(place: Place) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": place.address,
        "AWS_ALLOW_HTTP": "true",
        "aws_conditional_put": "etag",
    }


EMPTY = pa.table({"key": pa.array([], pa.binary()), "value": pa.array([], pa.binary())})


def make_delta(place: Place) -> None:
    from deltalake import DeltaTable

    DeltaTable.create(place.url, EMPTY.schema, storage_options=rust_options(place))


def open_delta(place: Place) -> Append:
    from deltalake import CommitProperties, DeltaTable, write_deltalake

    table = DeltaTable(place.url, storage_options=rust_options(place))
    properties = None if place.more is None else CommitProperties(max_commit_retries=place.more)
    return lambda rows: write_deltalake(table, rows, mode="append", commit_properties=properties)


def catalog(place: Place) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    return SqlCatalog(
        "far",
        uri=f"sqlite:///{place.catalog}",
        warehouse=f"s3://{BUCKET}/iceberg",
        **{
            "s3.endpoint": place.address,
            "s3.access-key-id": KEY,
            "s3.secret-access-key": SECRET,
            "s3.region": "us-east-1",
        },
    )


def make_iceberg(place: Place) -> None:
    there = catalog(place)
    there.create_namespace_if_not_exists("n")
    more = {} if place.more is None else {"commit.retry.num-retries": str(place.more)}
    there.create_table(f"n.{place.name}", EMPTY.schema, properties=more)


def open_iceberg(place: Place) -> Append:
    table = catalog(place).load_table(f"n.{place.name}")

    def append(rows: pa.Table) -> None:
        try:
            table.append(rows)
        except BaseException:
            table.refresh()  # Else all that follow fail, too.
            raise

    return append


CANDIDATES: dict[str, tuple[Callable[[Place], None], Callable[[Place], Append], int | None]] = {
    "clog": (make_clog, open_clog, None),
    "delta-rs": (make_delta, open_delta, None),
    "delta-rs, on and on": (make_delta, open_delta, ON_AND_ON),
    "PyIceberg": (make_iceberg, open_iceberg, None),
    "PyIceberg, on and on": (make_iceberg, open_iceberg, ON_AND_ON),
}
