"""Streams whose source changes: what changes, at which moment of a batch, under which trigger
(S2, S47, S61). Each record is read exactly once, or the query stops with a sentence; without Spark.
"""

import json
import pickle
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.unit.evolutions import EVOLUTIONS, Evolution

from clog.cleaner import Cleaner
from clog.connector.datasource import ClogDataSource
from clog.storage import ClogError, Log, ManualClock, SystemClock

pytestmark = pytest.mark.nightly

DAY_MS = 86_400_000
INT = next(one for one in EVOLUTIONS if one.name == "int")
MOMENTS = ("idle", "planned", "tasks", "reading", "read", "written")
"""A batch of a query: nothing is asked yet; its end is noted; its tasks are made; one has yielded;
all rows are there; the sink has them, and Spark does not know.
"""
TRIGGERS = {
    "default": {},
    "limited": {"maxOffsetsPerTrigger": "1"},
    "available now": {"maxOffsetsPerTrigger": "3"},
}


class CrashError(Exception):
    """The query's driver dies."""


def shown(row):
    """Returns offset, key and value; repr: values may be lists."""
    return row["offset"], row["key"], repr(row["value"] and row["value"]["x"])


class Query:
    """What Spark does with a checkpoint, a source and a sink that remembers each batch."""

    def __init__(self, url, trigger, happens, *, loses):
        self.trigger, self.happens, self.loses = trigger, happens, loses
        self.options = {"path": url, "columns": "offset,key,value", "pollInterval": "0s"}
        self.options |= {"startingOffsets": "earliest", **TRIGGERS[trigger]}
        self.noted, self.done, self.sink = [], 0, {}
        self.load()

    def load(self):
        """Loads the source: its columns are those of the log now."""
        self.source = ClogDataSource(self.options)
        self.schema = self.source.schema()

    def run(self):
        """Starts the query as it was loaded, until nothing is left."""
        reader = self.source.streamReader(self.schema)
        task_reader = pickle.loads(pickle.dumps(reader))
        initial = reader.initialOffset()
        if self.trigger == "available now":
            reader.prepareForTriggerAvailableNow()
        while True:
            start = self.noted[self.done - 1] if self.done else initial
            if len(self.noted) == self.done:
                self.happens("idle")
                limit = reader.getDefaultReadLimit()
                limit = limit if self.trigger != "default" else ReadAllAvailable()
                end = json.loads(json.dumps(reader.latestOffset(start, limit)))
                if end == start:
                    return
                self.noted.append(end)
            self._batch(reader, task_reader, start, self.noted[self.done])
            reader.commit(self.noted[self.done])
            self.done += 1

    def _batch(self, reader, task_reader, start, end):
        self.happens("planned")
        tasks = pickle.loads(pickle.dumps(reader.partitions(start, end)))
        self.happens("tasks")
        rows = []
        for task in tasks:
            for batch in task_reader.read(task):
                rows += map(shown, batch.to_pylist())
                self.happens("reading")
        self.happens("read")
        first = self.sink.setdefault(self.done, rows)
        # Of a source that was cleaned, the sink keeps the first rows, as failOnChangedBatch says.
        assert rows == first or (self.loses and all(row in first for row in rows)), (
            "a batch that runs again"
        )
        self.happens("written")

    @property
    def read(self):
        return [row for number in sorted(self.sink) for row in self.sink[number]]


@dataclass(frozen=True)
class Change:
    """What happens to a log; ``told``: the sentence by which a query may be stopped, and ``again``:
    whether it then goes on once it is loaded again. ``gone``: whether records go.
    """

    name: str
    do: Callable[[Log, ManualClock], None]
    told: str | None = None
    again: bool = True
    gone: bool = False
    evolution: Evolution = INT

    def __str__(self):
        return self.name


def evolved(evolution):
    def do(log, _):
        log.evolve(**evolution.change)
        log.append([evolution.record(70, evolution.after)])

    told = evolution.told and "load the source again"
    return Change(f"evolved: {evolution}", do, told, evolution=evolution)


def altered(**config):
    """Configs that are changed and, after a record and a round of the cleaner, changed back."""
    given = {name.replace("_", "."): value for name, value in config.items()}

    def do(log, clock):
        log.alter(given)
        log.append([INT.record(71, 7)])
        clock.advance(1000)
        Cleaner(log, clock=clock).run_once()
        log.alter(dict.fromkeys(given))

    return Change(f"altered: {next(iter(given))}", do)


def cleaned(log, clock):
    """All is rewritten, and the old objects are swept."""
    log.append([INT.record(72, 7)])
    log.roll()
    for _ in range(3):
        clock.advance(2 * DAY_MS)
        Cleaner(log, clock=clock).run_once(force=True)


def superseded(log, clock):
    """The same, of which all but the last key is gone then."""
    log.append([INT.record(key, 8) for key in (1, 2, 3, 4)])
    cleaned(log, clock)


def deleted(log, clock):
    """The same, and so is the tombstone of a key."""
    log.append([{"key": 2, "value": None}])
    cleaned(log, clock)


def moved(log, _):
    """The folder goes away and comes back."""
    shutil.move(log.url, log.url + "-away")
    shutil.copytree(log.url + "-away", log.url)


def restored(log, _):
    """As it was before the last record, which is then another one."""
    shutil.rmtree(log.url)
    shutil.copytree(log.url + "-copy", log.url)
    log = Log.open(log.url)
    for key in range(80, 88):
        log.append([INT.record(key, 7)])


def recreated(log, _):
    """With other records at the same offsets."""
    shutil.rmtree(log.url)
    log = INT.create(log.url)
    for key in range(90, 99):
        log.append([INT.record(key, 7)])


CHANGES = [
    *map(evolved, (one for one in EVOLUTIONS if one.name != "large")),
    altered(cleanup_policy="delete"),
    altered(compaction_strategy="timestamp"),
    altered(message_timestamp_type="LogAppendTime"),
    altered(segment_ms="1"),
    altered(table_key_columns="id"),
    Change("cleaned", cleaned),
    Change("superseded", superseded, gone=True),
    Change("deleted", deleted, "its result may lack deletes", again=False, gone=True),
    Change("trimmed", lambda log, _: log.delete_records({0: 4}), "offsets are gone", again=False),
    Change("moved", moved),
    Change("restored", restored, "was restored from a copy", again=False),
    Change("recreated", recreated, "was deleted and recreated", again=False),
]


@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_each_record_is_read_once_or_a_sentence_says_why_not(change, trigger, tmp_path):
    """At each moment of the first batch and of the third, with and without a crash after it."""
    for moment, number, crashes in product(MOMENTS, (0, 2), (False, True)):
        folder = tmp_path / f"{moment}-{number}-{crashes}"
        folder.mkdir()
        told, read, there = ran(change, (moment, number), folder, trigger, crashes=crashes)
        where = moment, number, crashes, told
        assert all(change.told and re.search(change.told, one) for one in told), where
        assert change.again or told or is_right(change, read, there), where
        assert not change.again or is_right(change, read, there), where


def is_right(change, read, there):
    """Returns whether a query that was not stopped has each record of the log once, as it is or was
    when it was read, and of each key the last.
    """
    offsets = [offset for offset, *_ in read]
    newest = {key: (offset, x) for offset, key, x in read}
    known = {(offset, x) for offset, _, x in there}
    loaded = repr(change.evolution.before), repr(change.evolution.after)
    return (
        offsets == sorted({*offsets})
        and all(any((*row[:2], x) in read for x in (row[2], *loaded)) for row in there)
        and (change.gone or change.name == "trimmed" or len(read) == len(there))
        and (not change.gone or all(at in known or at[1] == "None" for at in newest.values()))
    )


def ran(change, when, folder, trigger, *, crashes):
    """Returns what the query was told, what it read, and what the log has."""
    clock, made = ManualClock(SystemClock().now_ms()), change.evolution
    log = Log.open(made.create(str(folder / "log")).url, clock=clock)
    for key in range(2, 5):
        log.append([made.record(key, made.before)])
    shutil.copytree(log.url, log.url + "-copy")
    log.append([made.record(5, made.before)])
    moments = []

    def happens(now):
        moments.append(now)
        if now == when[0] and moments.count(now) == when[1] + 1:
            change.do(log, clock)
            if crashes:
                raise CrashError

    query, told = Query(log.url, trigger, happens, loses=change.gone), []
    for _ in range(5):
        try:
            query.run()
        except CrashError:
            continue
        except ClogError as e:
            told.append(str(e))
            if not change.again:
                break
            query.load()
    rows = [row for batch in Log.open(log.url).read() for row in batch.to_pylist()]
    return told, query.read, [*map(shown, rows)]
