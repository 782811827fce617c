"""An upgrade from release 0.1.0, with kills: its wheel runs beside this release on the same logs,
in separate processes (docs/upgrading.md): those that read in any order, those that write to a log
together.
"""

import json
import os
import re
import signal
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.storage import Log, StateTable
from clog.storage.diagnostics.verify import verify_log
from clog.storage.store import open_store
from clog_testing.published import delta_adds, iceberg_files

(WHEEL,) = (Path(__file__).parent / "releases").glob("*.whl")
MORTAL = Path(__file__).parent / "upgrading"
KEYS = 7
LOGS = ("orders", "home", "other", "events", "counts", "copied")
ROLES = {
    "writer": """
    for i in range(int(sys.argv[4]), 10**9):
        for log in (orders, events):
            log.append([{"key": f"k{i % KEYS}", "value": str(i)}], producer=("w", i))
        told(i)
""",
    "job": """
    for i in range(10**9):
        with home.transaction("job") as t:
            n = home.end_offsets()[0]
            t.append([{"key": "n", "value": str(n)}])
            t.append([{"key": "n", "value": str(n)}], log=other)
        told(n)
""",
    "cleaner": """
    cleaners = [Cleaner(log) for log in (orders, home, other)]
    for i in range(10**9):
        for cleaner in cleaners:
            cleaner.run_once(force=True)
        told(i)
""",
    "reader": """
    with StateTable(orders.url, f"{root}/table", reader="shop", reader_hold_ms=60_000) as table:
        for i in range(10**9):
            table.refresh()
            rows = orders.table(at=table.version).to_arrow().to_pylist()
            assert dict(table.scan()) == {row["key"]: row["value"] for row in rows}
            told(i)
""",
    "state": """
    with StateStore(f"{root}/counts", f"{root}/state", "counting") as store:
        for i in range(10**9):
            n = int(store.get(b"n") or b"0")
            store.put(b"n", str(n + 1).encode())
            store.commit()
            told(n)
""",
    "query": """
    for n in batches(f"{root}/events", f"{root}/copied", Path(root, "checkpoint")):
        told(n)
""",
}
QUERY = """
import os, pickle

class Task:
    def __init__(self, batch, number):
        self.properties = {"sql.streaming.queryId": "copy", "streaming.sql.batchId": str(batch)}
        self.partitionId = lambda: number
        self.getLocalProperty = self.properties.get

def batches(source, sink, checkpoint):
    from pyspark import TaskContext
    from pyspark.sql.types import BinaryType, StructField, StructType
    from clog.connector import ClogDataSource
    given = {"path": source, "startingOffsets": "earliest", "pollInterval": "0s"}
    found = ClogDataSource({**given, "maxOffsetsPerTrigger": "3"})
    schema = StructType([StructField(name, BinaryType()) for name in ("key", "value")])
    reader = found.streamReader(found.schema())
    at, n = reader.initialOffset(), 0
    while True:
        planned, done = checkpoint / f"{n}.offsets", checkpoint / f"{n}.done"
        if not planned.exists():
            end = reader.latestOffset(at, reader.getDefaultReadLimit())
            if json.dumps(end) == json.dumps(at):
                yield None
                continue
            (checkpoint / "new").write_text(json.dumps(end))
            (checkpoint / "new").rename(planned)
        start, at = at, json.loads(planned.read_text())
        if not done.exists():
            writer = ClogDataSource({"path": sink}).streamWriter(schema, False)
            messages = []
            for i, part in enumerate(pickle.loads(pickle.dumps(reader.partitions(start, at)))):
                TaskContext.get = staticmethod(lambda i=i: Task(n, i))
                rows = (batch.select(["key", "value"]) for batch in reader.read(part))
                messages.append(pickle.loads(pickle.dumps(writer.write(rows))))
            writer.commit(messages, n)
            done.touch()
            yield n
        n += 1
"""
"""What Spark does with a source and a sink, and its checkpoint: the end of a batch is written down
before it runs, and that it is done after its commit; a batch that was not done runs again.
"""
PROGRAM = """
import json, sys
from pathlib import Path
import clog.storage
from clog.cleaner import Cleaner
from clog.storage import ClogError, Log, StateStore, StateTable, VersionExpiredError
%s
root, is_old, KEYS = sys.argv[1], sys.argv[2] == "old", %d
assert Path(clog.storage.__file__).is_relative_to(sys.argv[3]) is is_old, clog.storage.__file__

def told(what):
    print(json.dumps(what), flush=True)
    sys.stdin.readline()

try:
    orders, home, other, events = (Log.open(f"{root}/{name}") for name in %r[:4])
%s
except ClogError as e:
    told(f"{type(e).__name__}: {e}")
"""
CREATE = """
import sys
from clog.storage import Log
config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "segment.ms": 1}
published = {
    "table.publish": "delta,iceberg", "table.publish.interval.ms": 0, "reader.hold.max.ms": 60_000
}
for name in sys.argv[2:]:
    Log.create(f"{sys.argv[1]}/{name}", 1, {**config, **(published if name == "orders" else {})})
"""


class Site:
    """Processes of both releases on the same logs, one step of each at a time."""

    def __init__(self, root, release):
        self.root, self.release = root, release
        self.is_old = dict.fromkeys(ROLES, True)
        self.acked = -1
        self.told = []
        self.processes = {}
        self.run(CREATE, "old")
        for folder in ("table", "checkpoint"):
            (Path(root) / folder).mkdir()

    def environment(self, is_old):
        return {**os.environ, "PYTHONPATH": str(self.release)} if is_old else dict(os.environ)

    def run(self, program, how):
        command = [sys.executable, "-c", program, str(self.root), *LOGS]
        subprocess.run(command, env=self.environment(how == "old"), check=True)

    def start(self, role):
        is_old = self.is_old[role]
        program = PROGRAM % (QUERY, KEYS, LOGS, ROLES[role])
        arguments = [str(self.root), "old" if is_old else "new", str(self.release)]
        self.processes[role] = subprocess.Popen(
            [sys.executable, "-c", program, *arguments, str(self.acked + 1)],
            env=self.environment(is_old),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def step(self, role):
        """Lets a role do one thing, beside whatever the others do; returns what it reports."""
        if role not in self.processes:
            self.start(role)
        process = self.processes[role]
        line = process.stdout.readline()
        assert line, f"{role} of {'0.1.0' if self.is_old[role] else 'this release'} ended"
        found = json.loads(line)
        if role == "writer" and isinstance(found, int):
            self.acked = found
        process.stdin.write("\n")
        process.stdin.flush()
        return found

    def kill(self, role):
        """Kills a role in the middle of what it does next."""
        process = self.processes.pop(role, None)
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.communicate()

    def steps(self, roles=ROLES, count=2):
        """Lets roles do some things each; none of them is refused."""
        found = [(role, self.step(role)) for _ in range(count) for role in roles]
        assert not [told for _, told in found if isinstance(told, str)]
        self.told += found

    def daemon(self, *, is_old, dies_at):
        """Runs `clog cleaner`, which prints a line for each pass, and the writer a step after each,
        until the daemon dies in its Nth commit.
        """
        path = [MORTAL, *([self.release] if is_old else [])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "CLOG_DIES": f"{self.root} orders {dies_at}",
        }
        (Path(self.root) / "begun").write_text("")
        command = [sys.executable, "-u", "-m", "clog_command", "cleaner", f"{self.root}/orders"]
        for name in ("log.cleaner.backoff.ms=1", "log.retention.check.interval.ms=1"):
            command += ["--config", name]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
            try:
                self.steps(["writer"], 1)
                for _ in process.stdout:
                    self.steps(["writer"], 1)
            except BaseException:
                process.kill()
                raise
        assert process.returncode == -signal.SIGKILL

    def upgrade(self, *roles):
        for role in roles:
            self.kill(role)
            self.is_old[role] = False

    def close(self):
        for role in list(self.processes):
            self.kill(role)


@pytest.fixture
def site(release, tmp_path):
    made = Site(tmp_path, release)
    yield made
    made.close()


def table_of(log, version=None):
    return {row["key"]: row["value"] for row in log.table(at=version).to_arrow().to_pylist()}


def views(log):
    """The versions of the log that both views state, each with the rows that another engine reads:
    the table at that version.
    """
    deltalake, iceberg = (pytest.importorskip(m) for m in ("deltalake", "pyiceberg.table"))
    store = open_store(log.url)
    engine = deltalake.QueryBuilder().register("view", deltalake.DeltaTable(log.url))
    rows = pa.table(engine.execute("SELECT key, value FROM view").read_all())
    yield delta_adds(store)[1], rows
    newest = max(Path(log.url).glob("metadata/v*.metadata.json"), key=lambda p: int(p.name[1:-14]))
    rows = iceberg.StaticTable.from_metadata(str(newest)).scan().to_arrow()
    yield iceberg_files(store)[1], rows


def check_views(log):
    """Returns the versions that the views state."""
    stated = []
    for version, rows in views(log):
        shown = {row["key"]: row["value"] for row in rows.to_pylist()}
        assert len(shown) == rows.num_rows
        assert shown == table_of(log, version)
        stated.append(version)
    return stated


def values(log):
    return [row["value"].decode() for batch in log.read() for row in batch.to_pylist()]


def check(site):
    """What was acknowledged is there, once, in order; both logs of the job agree; all is sound."""
    site.close()
    while site.step("query") is not None:
        pass
    site.close()
    log = Log.open(f"{site.root}/orders")
    end = log.end_offsets()[0]
    assert end in (site.acked + 1, site.acked + 2)  # One may have been under way.
    expected = {f"k{i % KEYS}".encode(): str(i).encode() for i in range(end)}
    assert table_of(log) == expected
    Cleaner(log).run_once(force=True)
    for name in ("delta", "iceberg"):
        log.publish(name)
    assert [table_of(log, version) for version in check_views(log)] == [expected] * 2
    with StateTable(log.url, site.root / "table") as table:
        assert dict(table.scan()) == expected
    home, other = (Log.open(f"{site.root}/{name}") for name in ("home", "other"))
    home.transaction("job").abort()  # Ends what a kill left.
    assert table_of(home) == table_of(other)
    counts = table_of(Log.open(f"{site.root}/counts"))
    told = [found for role, found in site.told if role == "state"]
    assert int(counts.get(b"n", b"0")) in (told[-1] + 1, told[-1] + 2)
    assert told == sorted(set(told))
    events, copied = (values(Log.open(f"{site.root}/{name}")) for name in ("events", "copied"))
    assert events == copied == [str(i) for i in range(len(events))]
    assert len(events) in (site.acked + 1, site.acked + 2)
    for name in LOGS:
        assert list(verify_log(open_store(f"{site.root}/{name}")).findings) == []


GROUPS = [("writer", "cleaner", "job"), ("reader",), ("query", "state")]
"""What is upgraded together: all that write to a log."""
REFUSED = (
    r"UnsupportedFormatError: .*%s has the features .'foreign-positions', 'named-cuts',"
    " 'proposals', 'whole-transactions'., which this clog can read but not write; upgrade clog"
)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "order", list(permutations(GROUPS)), ids=lambda order: "-".join(group[0] for group in order)
)
def test_any_order_of_upgrade(site, order):
    """Writers first or readers first: each is killed in what it does, and another one beside it,
    and continues.
    """
    site.steps()
    for group, beside in zip(order, ("job", "writer", "cleaner"), strict=True):
        site.kill(beside)
        site.upgrade(*group)
        site.steps()
    check(site)


def test_the_first_commit_refuses_the_release_before_in_words(site):
    """It adds the features that each log has: an older cleaner leaves the log alone and says why,
    and so does an older writer; what only reads it continues.
    """
    site.steps(("cleaner", "reader", "writer", "job", "query", "state"))
    site.upgrade("writer")
    site.steps(("writer",))
    while isinstance(found := site.step("cleaner"), int):
        pass
    assert re.match(REFUSED % "orders", found)
    site.steps(("reader", "job", "query", "state"))
    site.close()
    site.is_old["writer"] = True
    while isinstance(found := site.step("writer"), int):  # It repeats what was acknowledged.
        pass
    assert re.match(REFUSED % "orders", found)
    site.close()
    site.upgrade(*ROLES)
    site.steps()
    check(site)


@pytest.mark.nightly
def test_a_daemon_is_replaced_in_the_middle(site):
    """`clog cleaner` of 0.1.0, then of this release, each killed in another commit of sealing,
    passes and publications: the next one continues, and after no death does a view show anything
    but the table at its version.
    """
    site.steps()
    site.kill("cleaner")
    log = Log.open(f"{site.root}/orders")
    stated = [0, 0]
    for i, dies_at in enumerate((-3, 4, 7, -6)):
        if i == 2:
            site.upgrade("writer")
        site.daemon(is_old=i < 2, dies_at=dies_at)
        before, stated = stated, check_views(log)
        assert all(a <= b for a, b in zip(before, stated, strict=True))
    assert min(stated) > 0
    check(site)
