"""A log whose fields are added, widened, renamed and dropped, beside a model that knows each field
by an identity (S61): every version, each record, whatever was cleaned.
"""

import random

import pyarrow as pa
import pytest
from tests.properties.evolving import Evolving

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.layout import coalesce
from clog.storage import Log, ManualClock
from clog.storage.diagnostics.verify import verify_log
from clog.storage.env import SeededIds
from clog_testing.crash import discard, memory_store

CONFIG = {
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
    "file.delete.delay.ms": "1000000000",
    "segment.bytes": "300",
}
SEEDS = [
    *range(12),
    *(pytest.param(range(n, n + 25), marks=pytest.mark.nightly) for n in range(12, 512, 25)),
]


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_every_version_shows_its_columns(seeds):
    """S61: random evolutions, appends, by handles that missed them too, deletes and passes."""
    for seed in [seeds] if isinstance(seeds, int) else seeds:
        _run(seed)


def _run(seed):
    draw, store, clock = random.Random(seed), memory_store(), ManualClock(now_ms=10**9)
    try:
        model = Evolving.create(store, draw, config=CONFIG, clock=clock, ids=SeededIds(seed))
        log = model.log
        other = Log.open(store, clock=clock, ids=SeededIds(seed + 10**6))
        for _ in range(draw.randint(5, 20)):
            match draw.choice(["append"] * 3 + ["evolve"] * 3 + ["delete", "other", "work"]):
                case "append":
                    model.append()
                case "evolve":
                    model.evolve()
                case "delete":
                    model.delete()
                case "other":
                    model.append(other)
                case "work":
                    _clean(draw, log, clock)
                    model.is_cleaned = True
        model.check()
        assert verify_log(log.handle.standing.root).findings == ()
    finally:
        discard(store)


@pytest.mark.nightly
def test_thirty_evolutions_are_read_right_by_each_view(tmp_path):
    """S61, S63: at each version, by Python, and by delta-rs and PyIceberg from the views of it.
    delta-rs refuses a struct whose fields have all become others since an object was written.
    """
    deltalake = pytest.importorskip("deltalake")
    tables = pytest.importorskip("pyiceberg.table")
    path, draw = str(tmp_path / "log"), random.Random(30)
    model = Evolving.create(path, draw, 1, storage_options={"fsync": False})
    shown = {}
    while model.evolutions < 30:
        model.append()
        model.evolve()
        if model.evolutions == 15:
            model.log.roll()
            Cleaner(model.log).run_once(force=True)
            model.note()
        version = max(model.versions)
        for name in ("delta", "iceberg"):
            shown[name, model.log.publish(name).table_version] = version
    model.is_cleaned = True
    model.check()
    read = 0
    for (name, view), version in shown.items():
        if name == "delta":
            table = deltalake.DeltaTable(path, version=view)
            query = deltalake.QueryBuilder().register("t", table)
            try:
                found = pa.table(query.execute("select * from t").read_all())
            except Exception as e:
                # A struct of which an object has no field any more.
                if "there is no field name overlap" not in str(e):
                    raise
                continue
        else:
            metadata = f"{path}/metadata/v{view}.metadata.json"
            found = tables.StaticTable.from_metadata(metadata).scan().to_arrow()
        assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, model.table(version)))
        read += 1
    assert read > 40


def _clean(draw, log, clock):
    match draw.choice(["roll", "clean", "coalesce", "advance"]):
        case "roll":
            log.roll()
        case "clean":
            log.roll()
            Cleaner(log).run_once(force=True)
        case "coalesce":
            coalesce(Work(log.handle, clock.now_ms()), force=True)
        case "advance":
            clock.advance(draw.choice([1, 500, 1500]))
