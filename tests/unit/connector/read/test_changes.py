"""Changes as Spark asks for them: in the order of its calls, with JSON and pickles in between, and
rows that are applied one by one, each image compared with what is there.
"""

import json
import pickle
import random
import shutil

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from clog.cleaner import Cleaner
from clog.connector.datasource import ClogDataSource
from clog.connector.options import Location, texts_of
from clog.storage import ManualClock, OptionError, VersionExpiredError, snapshot
from clog.storage.errors import InvalidInputError, LogReplacedError
from clog.storage.format.commits import Edit
from clog.storage.log import Log
from clog.storage.store import open_store
from clog_testing.counting import CountingStore

ALL = ReadAllAvailable()


class Query:
    """A query that keeps the rows of a table by the changes it is told."""

    def __init__(self, url, **options):
        self.options = {"path": str(url), "view": "changes", "pollInterval": "0s"} | texts_of(
            options
        )
        self.rows, self.at = {}, None
        self.start()

    def start(self, **changed):
        """Starts it, or starts it again, as a new process: with the checkpoint only."""
        self.options |= changed
        source = ClogDataSource(self.options)
        schema = source.schema()
        self.tasks = pickle.loads(pickle.dumps(source.streamReader(schema)))
        self.reader = source.streamReader(schema)
        self.reader._clock = ManualClock()
        if self.at is None:
            self.at = json.loads(json.dumps(self.reader.initialOffset()))

    def latest(self, limit=None):
        limit = self.reader.getDefaultReadLimit() if limit is None else limit
        return json.loads(json.dumps(self.reader.latestOffset(self.at, limit)))

    def run(self, start, end):
        partitions = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        return [
            row for p in partitions for batch in self.tasks.read(p) for row in batch.to_pylist()
        ]

    def batch(self, limit=None):
        """Runs one batch, and applies it; None if the trigger finds nothing."""
        end = self.latest(limit)
        if json.dumps(end) == json.dumps(self.at):
            return None
        start, self.at = self.at, end
        told = self.run(start, end)
        applied(self.rows, told)
        return told

    def follow(self):
        """Runs batches until there is nothing new; returns how many rows each had."""
        sizes = []
        while (told := self.batch()) is not None:
            sizes.append(len(told))
        return sizes


def applied(rows, told):
    """Applies changes to rows by key; each image before must be the row that is there."""
    last = None
    for change in told:
        row = {name: value for name, value in change.items() if not name.startswith("_")}
        kind, key = change["_change_type"], change["key" if "key" in change else "id"]
        if kind in ("delete", "update_preimage"):
            assert rows.pop(key) == row
        else:
            assert key not in rows
            assert (kind == "insert") == (last != ("update_preimage", key))
            rows[key] = row
        last = kind, key


def read(url, **options):
    """The rows of a batch read."""
    source = ClogDataSource({"path": str(url), "view": "changes", **texts_of(options)})
    reader = pickle.loads(pickle.dumps(source.reader(source.schema())))
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    return [row for p in partitions for batch in reader.read(p) for row in batch.to_pylist()]


def table(log, version=None):
    rows = log.table(at=version).to_arrow().to_pylist()
    return {row["id"]: row for row in rows}


def brief(told):
    return [(row["_change_type"], row["id"], row["n"]) for row in told]


@pytest.fixture
def log(tmp_path):
    like = [{"id": 1, "n": 1}]
    return Log.create(str(tmp_path / "orders"), partitions=2, key="id", like=like)


def put(log, **rows):
    log.append([{"id": int(key[1:]), "n": n} for key, n in rows.items()])


def test_a_stream_begins_with_the_table_and_follows(log):
    """All rows as inserts at one version, then what replaced them, and what was deleted."""
    put(log, k1=1, k2=2, k3=3)
    put(log, k1=10)
    query = Query(log.url)
    first = query.batch()
    assert sorted(brief(first)) == [("insert", 1, 10), ("insert", 2, 2), ("insert", 3, 3)]
    assert {row["_commit_version"] for row in first} == {log.version}
    assert query.batch() is None
    put(log, k1=11, k4=4)
    log.delete([2])
    told = query.batch()
    assert sorted(brief(told), key=lambda change: change[1]) == [
        ("update_preimage", 1, 10),
        ("update_postimage", 1, 11),
        ("delete", 2, 2),
        ("insert", 4, 4),
    ]
    assert query.batch() is None
    assert query.rows == table(log)


class Histories:
    """A log to which random things happen; the table after each of them."""

    def __init__(self, log, seed):
        self.log, self.chance = log, random.Random(seed)
        self.tables = {log.version: table(log)}

    def step(self):
        what = self.chance.choices(
            [self.put, self.remove, self.cut, self.clean, self.undecided], [8, 2, 1, 2, 1]
        )
        what[0]()
        self.tables[self.log.version] = table(self.log)

    def put(self):
        keys = self.chance.choices(range(1, 10), k=self.chance.randint(1, 4))
        put(self.log, **{f"k{key}": self.chance.random() for key in keys})

    def remove(self):
        self.log.delete([self.chance.randint(1, 9)])

    def cut(self):
        ends = self.log.end_offsets().items()
        self.log.delete_records({p: max(0, end - self.chance.randint(0, 5)) for p, end in ends})

    def clean(self):
        self.log.roll()
        Cleaner(self.log).run_once(force=True)

    def undecided(self):
        t = self.log.transaction(f"t{self.log.version}", visible=True)
        t.append([{"id": self.chance.randint(1, 9), "n": self.chance.random()}])
        if self.chance.random() < 0.5:
            t.commit()
        else:
            t.abort()

    def at(self, version):
        """The table at a version, that of the last step before it."""
        return self.tables[max(v for v in self.tables if v <= version)]


@pytest.mark.parametrize(
    ("mode", "limit", "seeds"),
    [
        ("netChanges", None, range(1)),
        ("none", 4, range(1)),
        *(
            pytest.param(mode, limit, range(1, 30), marks=pytest.mark.nightly)
            for mode in ("netChanges", "none")
            for limit in (None, 1, 4)
        ),
    ],
)
def test_a_stream_is_its_table_at_each_of_its_versions(tmp_path, mode, limit, seeds):
    """S83: whatever happens to the log, and whenever the query is killed: a batch that was planned
    runs again in another process, and tells the same.
    """
    limits = {} if limit is None else {"maxOffsetsPerTrigger": limit}
    for seed in seeds:
        like = [{"id": 1, "n": 0.5}]
        log = Log.create(str(tmp_path / f"log{seed}"), partitions=2, key="id", like=like)
        history = Histories(log, f"{seed} {mode} {limit}")
        for _ in range(5):
            history.step()
        query = Query(log.url, deduplicationMode=mode, **limits)
        for _ in range(30):
            if history.chance.random() < 0.6:
                history.step()
            end = query.latest()
            if json.dumps(end) == json.dumps(query.at):
                continue
            told = query.run(query.at, end)
            if history.chance.random() < 0.3:
                history.step()
                query.start()
                assert query.run(query.at, end) == told
            query.at = end
            applied(query.rows, told)
            if not end.get("rows"):
                assert query.rows == history.at(end["changes"])
        query.follow()
        assert query.rows == table(log)


def test_limits_end_at_commits(log):
    """Rows of the beginning come by offsets; then at least a commit at a time, never a part of one,
    and several small ones together.
    """
    put(log, **{f"k{i}": i for i in range(40)})
    query = Query(log.url, maxOffsetsPerTrigger=10)
    sizes = query.follow()
    assert sum(sizes) == 40
    assert max(sizes) <= 11
    for i in range(6):
        put(log, **{f"k{i}": -i - 1, f"k{i + 20}": -i - 1})
    put(log, **{f"k{i}": 0 for i in range(30)})
    put(log, k99=1)
    assert query.follow() == [20, 4, 60, 1]
    assert query.rows == table(log)


def test_available_now_ends_at_the_version_it_began_with(log):
    """What is appended meanwhile is for the next run."""
    put(log, k1=1)
    query = Query(log.url, maxOffsetsPerTrigger=1)
    query.reader.prepareForTriggerAvailableNow()
    put(log, k2=2)
    query.follow()
    assert set(query.rows) == {1}
    query.start()
    query.reader.prepareForTriggerAvailableNow()
    put(log, k3=3)
    query.follow()
    assert set(query.rows) == {1, 2}


def test_a_start_in_versions_and_times(log):
    """The version or time that is given is the first whose changes are told, unless the bound is
    exclusive; so with the end. `sinceVersion` is the version before, as in other views.
    """
    put(log, k1=1)
    for n in (2, 3, 4):
        put(log, k1=n)
    base = log.version
    ms = {c.version: c.time_ms for c in log.history()}

    def told(**options):
        return [row["n"] for row in read(log.url, deduplicationMode="none", **options)]

    v = base - 1
    assert told(startingVersion=v) == [2, 3, 3, 4]
    assert told(startingVersion=v, startingBoundInclusive="false") == [3, 4] == told(sinceVersion=v)
    assert told(startingVersion=v, endingVersion=v) == [2, 3]
    assert told(startingVersion=v, endingVersion=base, endingBoundInclusive="false") == [2, 3]
    assert told(startingVersion=0) == [1, 1, 2, 2, 3, 3, 4]
    assert told(startingVersion=base + 1) == []
    if ms[v - 1] < ms[v] < ms[base]:
        assert told(startingTimestamp=ms[v], endingTimestamp=ms[v]) == [2, 3]
    assert told(startingTimestamp=ms[base] + 1) == []
    assert told(startingTimestamp=1) == [1, 1, 2, 2, 3, 3, 4]
    assert [row["n"] for row in read(log.url, startingVersion=v)] == [2, 4]
    query = Query(log.url, startingVersion=v)
    assert brief(query.run(query.at, query.latest())) == [
        ("update_preimage", 1, 2),
        ("update_postimage", 1, 4),
    ]


def test_what_a_stream_requests(log, monkeypatch):
    """An idle poll is one GET. A batch costs the driver what the poll found, since it knows both
    versions; a task gets an object with news, and looks up what was there before.
    """
    counting = CountingStore(open_store(log.url))
    monkeypatch.setattr(Location, "store", lambda self: counting)
    put(log, k1=1, k2=2)
    query = Query(log.url)
    query.follow()
    put(log, k1=10)
    query.follow()
    with counting.count() as idle:
        for _ in range(3):
            assert query.batch() is None
    assert idle == {"get": 3}
    put(log, k1=11)
    with counting.count() as planned:
        end = query.latest()
        partitions = query.reader.partitions(query.at, end)
    assert planned == {"get": 2}  # The commit, and that there is none after it.
    assert len(partitions) == 1
    with counting.count() as read_by_task:
        (batch,) = query.tasks.read(partitions[0])
    assert batch.num_rows == 2
    assert set(read_by_task) == {"get"}
    assert read_by_task["get"] <= 4


def test_versions_pass_without_changes(log):
    """A pass of the cleaner gives an empty batch, with which the stream's version moves on: none
    has to be kept for a stream that runs.
    """
    put(log, k1=1)
    put(log, k1=2)
    query = Query(log.url)
    query.follow()
    log.roll()
    Cleaner(log).run_once(force=True)
    assert query.follow() == [0]
    assert query.at["changes"] == log.version


@pytest.mark.parametrize("mode", ["none", "netChanges"])
def test_a_version_that_a_cut_keeps_begins_changes(tmp_path, mode):
    """Long after it would have expired, in a batch read and in a stream (S83, S84)."""
    config = {"file.delete.delay.ms": 0, "min.cleanable.dirty.ratio": 0}
    log = Log.create(str(tmp_path / "kept"), 1, config, key="id", like=[{"id": 1, "n": 1}])
    put(log, k1=1, k2=1)
    snapshot(log.url, name="kept")
    for n in range(3):
        put(log, k1=n, k3=n)
        log.delete([2])
        log.roll()
        Cleaner(log).run_once(force=True)
    options = {"deduplicationMode": mode, "sinceVersion": 1}
    rows, query = table(log, 1), Query(log.url, **options)
    applied(rows, read(log.url, **options))
    query.rows = table(log, 1)
    query.follow()
    assert rows == query.rows == table(log)
    assert rows != table(log, 1)


def expire(log):
    """Lets all versions but the newest expire."""
    newest = log.version
    log.handle.commit(lambda tip, ms: Edit(oldest_readable=newest), operation="sweep")


def test_a_version_that_expired_ends_the_stream_in_words(log):
    """S84: with a batch that was planned, too, and in a batch read; the message says what keeps a
    version.
    """
    put(log, k1=1)
    query = Query(log.url)
    query.follow()
    planned = Query(log.url)
    planned.at = query.at
    put(log, k1=2)
    at = query.at["changes"]
    end = planned.latest()
    expire(log)
    told = f"version {at} of .* is no longer readable; .*file.delete.delay.ms=.*reader.hold.max.ms"
    for again in (query, planned):
        again.start()
    with pytest.raises(VersionExpiredError, match=told):
        query.batch()
    with pytest.raises(VersionExpiredError, match=told):
        planned.run(planned.at, end)
    with pytest.raises(VersionExpiredError, match=told):
        read(log.url, sinceVersion=at)


def test_a_named_reader_holds_its_version(tmp_path):
    """S64, S84: the one at which it is, as long as the log lets readers hold, unless `readerHold`
    says less.
    """
    config = {"reader.hold.max.ms": 30 * 86_400_000, "file.delete.delay.ms": 60_000}
    log = Log.create(str(tmp_path / "log"), 1, config, key="id", like=[{"id": 1, "n": 1}])
    put(log, k1=1)
    query = Query(log.url, readerId="totals")
    query.follow()  # As with availableNow: one batch, and the question whether there is more.
    (reader,) = log.readers()
    assert (reader.name, reader.version) == ("totals", query.at["changes"])
    assert reader.hold_ms == 30 * 86_400_000
    assert reader.held_until_ms > 0
    put(log, k1=2)
    query.reader._clock.advance(11_000)  # It reports every ten seconds.
    query.follow()
    assert log.readers()[0].version == query.at["changes"] == reader.version + 1
    put(log, k1=3)
    query.start()
    assert brief(query.batch()) == [("update_preimage", 1, 2), ("update_postimage", 1, 3)]
    shorter = Query(log.url, readerId="shorter", readerHold="1h")
    shorter.follow()
    assert {r.name: r.hold_ms for r in log.readers()}["shorter"] == 3_600_000


def test_what_ends_a_stream_of_changes(log, tmp_path):
    """On a checkpoint that exists, in words: another log or other partitions, and another view."""
    put(log, k1=1, k2=2)
    query = Query(log.url)
    query.follow()
    query.start(partitions="1")
    with pytest.raises(OptionError, match=r"read the changes of partitions \[0, 1\].*names \[1\]"):
        query.batch()
    del query.options["partitions"]
    records = {"path": log.url, "startingOffsets": "earliest"}
    source = ClogDataSource(records)
    stream = source.streamReader(source.schema())
    with pytest.raises(InvalidInputError, match="not those of a clog stream"):
        stream.latestOffset(query.at, ALL)
    of_records = stream.latestOffset(stream.initialOffset(), ALL)
    query.start()
    with pytest.raises(InvalidInputError, match='not those of a stream of view "changes"'):
        query.reader.latestOffset(of_records, ALL)
    shutil.rmtree(log.url)
    again = Log.create(log.url, partitions=2, key="id", like=[{"id": 1, "n": 1}])
    put(again, k1=1)
    query.start()
    with pytest.raises(LogReplacedError, match=r"deleted and recreated.*new checkpoint$"):
        query.batch()


def test_a_column_widened_under_a_stream_is_told(tmp_path):
    """S61: while it runs, started again as it was loaded, and with a batch that was planned; loaded
    again it goes on, with both images in the new type.
    """
    import pyarrow as pa

    schema = {"id": pa.int64(), "n": pa.float32()}
    log = Log.create(str(tmp_path / "log"), 1, key="id", schema=schema)
    put(log, k1=0.5)
    query = Query(log.url)
    query.follow()
    loaded = ClogDataSource(query.options).schema()
    log.evolve(widen={"value.n": pa.float64()})
    put(log, k1=0.1)
    told = "column n of .* is double since version .*load the source again: .* stays valid"
    with pytest.raises(InvalidInputError, match=told):
        query.batch()
    refused = ClogDataSource(query.options).streamReader(loaded)
    with pytest.raises(InvalidInputError, match=told):
        refused.latestOffset(query.at, ALL)
    query.start()
    assert brief(query.batch()) == [("update_preimage", 1, 0.5), ("update_postimage", 1, 0.1)]


def test_a_column_renamed_under_a_stream_is_named(log):
    """S61: the column, and not the first one; a batch that was planned before runs again."""
    put(log, k1=1)
    query = Query(log.url)
    query.follow()
    put(log, k1=2)
    end = query.latest()
    log.evolve(rename={"value.n": "count"})
    assert brief(query.run(query.at, end)) == [
        ("update_preimage", 1, 1),
        ("update_postimage", 1, 2),
    ]
    with pytest.raises(InvalidInputError, match=r"column n of .* is called count since version 3"):
        query.batch()
    query.start()
    assert [row["count"] for row in query.run(query.at, end)] == [1, 2]
    table = ClogDataSource({"path": log.url, "view": "table"})
    schema = table.schema()
    log.evolve(rename={"value.count": "n"})
    with pytest.raises(InvalidInputError, match=r"column count .* is called n; load"):
        table.reader(schema)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "earliest"}, "starts and ends by version or time"),
        ({"keys": '["1"]'}, "filter by key with where"),
        ({"failOnDataLoss": "false"}, "without the rows before"),
        ({"startingVersion": "3", "sinceVersion": "3"}, "both given; give one"),
        ({"startingVersion": "3", "endingVersion": "1"}, "not before"),
        ({"deduplicationMode": "all"}, "none or dropCarryovers or netChanges"),
        ({"computeUpdates": "true"}, "both images of an update"),
        ({"isolation": "read_uncommitted"}, "only committed"),
        ({"view": "log", "startingVersion": "3"}, '"sinceVersion"'),
        ({}, 'starts with "startingVersion"'),
    ],
)
def test_what_a_read_of_changes_refuses(log, options, message):
    with pytest.raises(OptionError, match=message):
        read(log.url, **options)


def test_columns_are_chosen_with_those_of_changes(log):
    """By the option or a schema, whose names ignore case, in its order."""
    put(log, k1=1)
    (row,) = read(log.url, startingVersion=0, columns="n,_change_type")
    assert row == {"n": 1, "_change_type": "insert"}
    source = ClogDataSource({"path": log.url, "view": "changes", "startingVersion": "0"})
    schema = source.schema()
    chosen = type(schema)([schema["_change_type"], schema["id"]])
    reader = source.reader(chosen)
    assert [b.to_pylist() for p in reader.partitions() for b in reader.read(p)] == [
        [{"_change_type": "insert", "id": 1}]
    ]


def test_what_was_deleted_since_is_in_no_batch_read(log):
    """S36, S81: a batch read is what `Log.changes` is at the same moment; a stream takes back what
    it has told.
    """
    put(log, k1=1, k2=2)
    query = Query(log.url)
    query.follow()
    put(log, k1=10)
    since = query.at["changes"]
    log.delete_records(log.end_offsets())
    own = log.changes(since=since, until=since + 1).to_pylist()
    assert brief(read(log.url, sinceVersion=since, endingVersion=since + 1)) == brief(own)
    told = query.batch()
    assert sorted(brief(told)) == [("delete", 1, 1), ("delete", 2, 2)]
    assert query.rows == {}
