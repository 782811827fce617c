"""What a freshly started process of a writer and of the cleaner imports."""

import subprocess
import sys

import pytest

from clog.storage import Log

COLD_RUN = """
import sys
from clog.cleaner import Cleaner
from clog.cli.lines import parse_jsonl, parse_text
from clog.storage import Log, StateTable
from clog.storage.diagnostics.verify import verify_log

url, cache = sys.argv[1:]
config = {"segment.chunks": 1, "delete.retention.ms": 1, "file.delete.delay.ms": 0}
log = Log.create(url, 1, config)
log.append([
    {"key": f"{i}", "value": "x" * 20, "headers": [("h", b"1"), ("i", None)]} for i in range(200)
])
log.append([{"key": b"1", "value": None}, {"key": "1 key of many bytes", "value": "2"}])
log.append([{"key": "2", "value": "b", "timestamp": 1_000}, {"key": "3", "value": None}])
log.append(parse_text([b"4\\tvalue", b"5"]).to_arrow(), producer=("p", 1))
log.append(parse_jsonl([b'{"key": "6", "value": "7", "timestamp": 5}'], first=1).to_arrow())
log.alter({"cleanup.policy": "delete"})
log.append([{"key": None, "value": "no key"}])
log.alter({"cleanup.policy": "compact"})
log.roll()
table = log.table()
assert table.get("6") == b"7" and table.get_many(["1"]) == {}
log.offsets_for_times(1_500)
for dead_rows_delay in (604_800_000, 0, 0):
    log.alter({"dead.rows.delay.ms": dead_rows_delay})
    log.append([{"key": "7", "value": None}, {"key": "8", "value": "b"}])
    log.roll()
    results = Cleaner(log).run_once(force=True)
    assert results and all(result.complete for result in results)
read = sum(batch.num_rows for batch in log.read())
assert log.table().to_arrow().num_rows < read < 210
with StateTable(url, cache_dir=cache) as state:
    state.refresh()
    assert state.get("6") == b"7"
assert verify_log(log.handle.standing.root).findings == ()
print(*sorted({name.split(".")[0] for name in sys.modules}))
"""


TYPED_RUN = """
import datetime as dt
import decimal
import sys
import pyarrow as pa
from clog.cleaner import Cleaner
from clog.jobs import convert
from clog.storage import Log, StateStore, StateTable

url, cache = sys.argv[1:]
key = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())])
value = pa.struct([
    pa.field("n", pa.int64(), nullable=False), ("x", pa.float32()), ("s", pa.string()),
    ("data", pa.binary()), ("five", pa.binary(5)), ("is", pa.bool_()), ("u", pa.uint8()),
    ("d", pa.decimal128(10, 2)), ("day", pa.date32()), ("at", pa.timestamp("ms", "UTC")),
    ("naive", pa.timestamp("us")), ("c", pa.time32("ms")),
    ("l", pa.list_(pa.struct([("q", pa.int8())]))), ("m", pa.map_(pa.string(), pa.int64())),
])
row = {
    "n": 1, "x": 1.5, "s": "text", "data": b"0", "five": b"12345", "is": True, "u": 255,
    "d": decimal.Decimal("1.25"), "day": dt.date(2020, 1, 1),
    "at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "naive": dt.datetime(2020, 1, 1),
    "c": dt.time(1, 2, 3, 4000),
    "l": [{"q": 1}, None], "m": {"a": 1},
}
schema = {"key": key, "value": value}
log = Log.create(url, 1, {"segment.chunks": 1}, schema=schema)
log.append([{"key": {"a": i, "b": "x"}, "value": row, "headers": {"h": b"1"}} for i in range(9)])
log.append([{"key": {"a": 1, "b": "x"}, "value": None}, {"key": {"a": 2}, "value": {"n": 2}}])
log.roll()
assert log.table().get({"a": 2})["n"] == 2
assert log.table().get_many([(2, None), (1, "x")]).keys() == {(2, None)}
assert Cleaner(log).run_once(force=True)
with StateTable(url, cache_dir=cache) as state:
    state.refresh()
    assert state.get((2, None))["n"] == 2
Log.create(url + "-state", 2, schema=schema)
with StateStore(url + "-state", cache, "app") as state:
    state.put((1, "y"), row)
    state.put((2, "y"), {"n": 3, "l": row["l"], "m": row["m"], "d": row["d"]})
    state.put((3, "y"), {"n": 3})
    state.delete((3, "y"))
    state.commit({})
    assert state.get((2, "y"))["l"] == row["l"]
source = Log.create(url + "-source", 1, {"cleanup.policy": ""})
source.append([
    {"key": "1", "value": '{"n": 1, "s": "x", "l": [{"q": 1}]}', "headers": {"h": b"1"}},
    {"key": "2", "value": "{}"},
])
target = Log.create(url + "-target", 1, schema={"key": pa.int64(), "value": value})
letters = Log.create(url + "-letters", 1, {"cleanup.policy": "delete"})
done = convert(source, target, dead_letters=letters)
assert (done.records, done.dead_letters) == (1, 1)
print(*sorted({name.split(".")[0] for name in sys.modules}))
"""


@pytest.mark.parametrize("run", [COLD_RUN, TYPED_RUN], ids=["bytes", "typed"])
def test_a_cold_process_imports_no_pandas(tmp_path, run):
    """Appending dicts and lines, with nulls, headers and times; reading, looking up, cleaning with
    marks, tombstones and records without a key; a state table; verifying. Of typed logs values of
    all types, a state store, and the copy of a log of bytes with its dead letters, too.

    Arrow imports pandas where it is installed and handed Python's or NumPy's values: up to a second
    of CPU. So it does where a time with a zone is made Python's, which these look-ups leave out.
    """
    pytest.importorskip("pandas")
    command = [sys.executable, "-c", run, tmp_path / "orders", tmp_path / "cache"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    modules = set(done.stdout.split())
    assert {"pyarrow", "clog"} <= modules
    assert not modules & {"pandas", "fsspec", "rich", "click", "duckdb", "polars"}


COUNTED = """
import sys
import numpy, pyarrow, pyarrow.compute, xxhash
before = set(sys.modules)
{what}
names = set(sys.modules) - before
print(sum(name.startswith("clog") for name in names), *sorted(n for n in names if "." not in n))
"""


ABSENT = "fsspec asyncio multiprocessing sqlite3 ssl click hashlib hmac secrets random fractions"
DESCRIBE = """
import contextlib, io, clog.cli.app
with contextlib.redirect_stdout(io.StringIO()):
    clog.cli.app.app(["describe", "orders"], standalone_mode=False)
"""


@pytest.mark.parametrize(
    ("what", "modules_max", "absent"),
    [
        ("from clog.storage import Log", 75, ABSENT),
        ("import clog.cli.app", 5, "pyarrow.parquet fsspec pyspark rich sqlite3"),
        (DESCRIBE, 83, "pyarrow.parquet fsspec pyspark sqlite3 pydantic asyncio ssl"),
    ],
)
def test_a_cold_process_loads_few_modules(tmp_path, what, modules_max, absent):
    """Each costs a process half a millisecond or more before it does anything: this many of clog's
    own, and none of the libraries that are not always needed. The ceilings are only ever lowered.
    """
    Log.create(tmp_path / "orders")
    done = subprocess.run(
        [sys.executable, "-c", COUNTED.format(what=what)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    count, *others = done.stdout.split()
    assert int(count) <= modules_max
    assert not {*others} & {*absent.split()}
