"""What a cold process of a writer and of the cleaner imports."""

import subprocess
import sys

import pytest

COLD_RUN = """
import sys
from clog.cleaner import Cleaner
from clog.cli.records.lines import parse_jsonl, parse_text
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


def test_a_cold_process_imports_no_pandas(tmp_path):
    """Appending dicts and lines, with nulls, headers and times; reading, looking up, cleaning with
    marks, tombstones and records without a key; a state table; verifying.

    Arrow imports pandas where it is installed and handed Python's or NumPy's values: up to a second
    of CPU.
    """
    pytest.importorskip("pandas")
    command = [sys.executable, "-c", COLD_RUN, tmp_path / "orders", tmp_path / "cache"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    modules = set(done.stdout.split())
    assert {"pyarrow", "clog"} <= modules
    assert not modules & {"pandas", "fsspec", "rich", "typer", "duckdb", "polars"}
