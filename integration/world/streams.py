"""A streaming query of Spark over a log, without Spark: what Spark calls, in its order, with JSON
and pickles in between; some batches are planned long before they are read, or read twice.
"""

import json
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
from kinds import Columns, Kind, read_as
from model import LogModel
from pyspark.sql.streaming.datasource import ReadAllAvailable
from world import World, check, plain, same

from clog.connector.datasource import ClogDataSource


class Stream:
    """One query; the sink has what its batches gave."""

    def __init__(self, w: World, url: str, model: LogModel) -> None:
        self._options = {"path": url, "columns": "partition,offset,key,value"}
        self._options |= {"startingOffsets": "earliest", "pollInterval": "0s"}
        self.model = model
        self.checkpoint: Any = None
        self.planned: Any = None
        self.got: dict[tuple[int, int], Any] = {}
        self.began = dict(enumerate(model.starts[-1][1]))
        self.start(w)

    def start(self, w: World) -> None:
        """Starts from the checkpoint, with the log's columns of now."""
        source = ClogDataSource(self._options)
        schema = source.schema()
        self.columns = self.model.columns[-1][1]
        self.since = self.model.version
        self.reader = source.streamReader(schema)
        self.task = pickle.loads(pickle.dumps(self.reader))
        del w

    def step(self, w: World) -> bool:
        """Plans a batch, or reads the one that was planned; returns False if there was nothing."""
        if self.checkpoint is None:
            self.checkpoint = self.reader.initialOffset()
        if self.planned is None:
            end = json.loads(
                json.dumps(self.reader.latestOffset(self.checkpoint, ReadAllAvailable()))
            )
            if json.dumps(end) == json.dumps(self.checkpoint):
                self._check_all()
                return False
            self.planned = end, None
            if w.random.random() < 0.4:
                return True
        end, tasks = self.planned
        if tasks is None:
            tasks = pickle.loads(pickle.dumps(self.reader.partitions(self.checkpoint, end)))
            self.planned = end, tasks
            if w.random.random() < 0.3:
                return True
        rows = [row for t in tasks for batch in self.task.read(t) for row in batch.to_pylist()]
        self._take(rows)
        if w.random.random() < 0.2:  # The query dies before it notes the batch, which comes again.
            self.planned = end, None
            return True
        self.reader.commit(end)
        self.checkpoint, self.planned = end, None
        return True

    def _take(self, rows: list[Any]) -> None:
        model = self.model
        known = {(r.partition, r.offset): r for r in model.records}
        for row in rows:
            at = row["partition"], row["offset"]
            r = known.get(at)
            value = None if r is None else read_as(r.value, self.columns)
            check(
                r is not None
                and (r.deal is None or r.deal.outcome == "committed")
                and r.key == plain(row["key"])
                and same(value, _as_model(row["value"], self.columns)),
                "a stream got {} and should have {}",
                row,
                r,
            )
            self.got[at] = row["value"]

    def _check_all(self) -> None:
        """Checks that nothing is missing at the end, of what no cleaning may remove."""
        model = self.model
        wanted = (
            list(model.needed(model.version)) if model.is_cleaned else model.shown(model.version)
        )
        lost = [r for r in wanted if (r.partition, r.offset) not in self.got]
        check(not lost or bool(model.erased), "a stream missed {}", lost)

    def told(self, w: World, model: LogModel, error: Exception) -> None:
        """Checks that there is a reason to stop."""
        evolved = any(since > self.since for since, _ in model.columns)
        altered = any(since > self.since for since, _ in model.configs)
        is_gone = model in w.gone
        text = str(error)
        reasons = (is_gone, evolved, altered, len(model.starts) > 1, model.is_cleaned)
        check(any(reasons), "a stream stopped: {}", text)


def _as_model(value: Any, columns: Columns | None) -> Any:
    """Returns a value of Spark's as the log has it: Spark has no unsigned integers of 64 bits."""
    if columns is None or value is None:
        return value
    made = {}
    for name, kind in columns.items():
        found = value[name]
        if not isinstance(kind, Kind):
            found = _as_model(found, kind)
        elif isinstance(found, Decimal) and not pa.types.is_decimal(kind.arrow):
            found = int(found)
        made[name] = found
    return made
