"""What the page shows of logs, as data fit for JSON. Reads only.

A log is opened once and followed; a commit that was read stays in memory, since it never changes.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from clog.storage.errors import ClogError, InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from clog.storage import Log
    from clog.storage.clock import Clock
    from clog.storage.diagnostics.effects import CommitWalk

LOOK_MS = 30_000
"""Prefixes are looked through for new logs so often, at most."""
COMMITS_MAX = 200
"""Newest commits that are shown."""
RECORDS_MAX = 500


@dataclass(frozen=True, slots=True)
class AskedKey:
    """A key as somebody typed it."""

    text: str
    is_base64: bool


class ShownLogs:
    """Logs by number, in the order in which they were given or found.

    Args:
        urls: logs.
        prefixes: folders below which logs are found.
        storage_options: of all of them.
        clock: when to look for new ones.
    """

    def __init__(
        self,
        urls: Sequence[str],
        prefixes: Sequence[str],
        storage_options: Mapping[str, object],
        *,
        clock: "Clock",
    ) -> None:
        self._options = storage_options
        self._prefixes = prefixes
        self._clock = clock
        self._lock = threading.Lock()
        self._urls = list(dict.fromkeys(urls))
        self._opened: dict[str, Log] = {}
        self._walks: dict[str, CommitWalk] = {}
        self._commits: dict[str, dict[int, dict[str, Any]]] = {}
        self._looked_ms: int | None = None

    def look(self) -> None:
        """Looks for new logs, if it was not done lately."""
        from clog.storage.store.finding import find_logs

        now_ms = self._clock.monotonic_ms()
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        found = [url for prefix in self._prefixes for url in find_logs(prefix, self._options)]
        with self._lock:
            self._urls += [url for url in dict.fromkeys(found) if url not in self._urls]

    def log(self, number: int) -> "Log":
        """Returns a log.

        Raises:
            NotFoundError: there is none of this number, or at its URL.
        """
        from clog.storage import Log

        if not 0 <= number < len(self._urls):
            raise NotFoundError(f"no log has the number {number}; reload the page")
        url = self._urls[number]
        with self._lock:
            if url not in self._opened:
                self._opened[url] = Log.open(url, self._options)
            return self._opened[url]

    def overview(self) -> list[dict[str, Any]]:
        """Returns a line for each log; of one that cannot be read, why. A request for each."""
        self.look()
        return [self._line(number, url) for number, url in enumerate(self._urls)]

    def _line(self, number: int, url: str) -> dict[str, Any]:
        from clog.storage.store.urls import redact

        line: dict[str, Any] = {"number": number, "url": redact(url)}
        try:
            found = self.log(number).describe()
        except ClogError as e:
            self._opened.pop(url, None)  # Another log may stand there by now.
            return line | {"error": str(e)}
        details = found["partition_details"]
        return line | {
            "version": found["version"],
            "committed_ms": found["committed_ms"],
            "partitions": found["partitions"],
            "records": sum(d["records"] for d in details),
            "object_bytes": found["object_bytes"],
            "dirty_ratio": max(d["dirty_ratio"] for d in details),
            "uncleanable": sum(d["uncleanable"] is not None for d in details),
        }

    def details(self, number: int) -> dict[str, Any]:
        """Returns all about one log: its description, and its newest commits, oldest first."""
        log = self.log(number)
        found = dict(log.describe())
        with self._lock:
            commits = self._newest(log)
        return found | {"now_ms": log.handle.clock.now_ms(), "commits": commits}

    def _newest(self, log: "Log") -> list[dict[str, Any]]:
        """Returns the newest commits; a request for each that was not seen before."""
        from clog.storage.diagnostics.effects import CommitWalk

        log_id, version = log.handle.standing.log_id, log.handle.tip.version
        first = max(0, version + 1 - COMMITS_MAX)
        known = self._commits.setdefault(log_id, {})
        if first > max(known, default=-1) + 1 or log_id not in self._walks:
            known.clear()
            self._walks[log_id] = CommitWalk(log.handle, first)
        for info, effect in self._walks[log_id].new():
            known[info.version] = asdict(info) | {"effect": effect and asdict(effect)}
        for old in [v for v in known if v < first]:
            del known[old]
        return [known[v] for v in sorted(known)]

    def users(self, number: int) -> dict[str, Any]:
        """Returns who reads a log by name, what is undecided, and who writes it: a LIST, and a
        request for each reader.
        """
        log = self.log(number)
        found = [asdict(r) | {"position": dict(r.position)} for r in log.readers()]
        writers = [
            {"id": w.writer_id, "kind": w.kind, "sequence": w.sequence, "version": w.version}
            for w in reversed(log.handle.tip.head.writers)
        ]
        open_ones = [
            asdict(t) | {"first_offsets": dict(t.first_offsets)} for t in log.transactions()
        ]
        return {"readers": found, "transactions": open_ones, "writers": writers}

    def cost(self, number: int, readers: int) -> dict[str, Any]:
        """Returns what the log costs a day if it goes on as in its newest commits; a request for
        each of these.
        """
        from clog.cli.looking.cost import bill
        from clog.cli.looking.prices import PRICES

        found = bill(self.log(number), PRICES["aws"], readers=readers, commits=COMMITS_MAX)
        return found.as_json() | {"stored_dollars": found.stored_dollars}

    def records(self, number: int, partition: int | None, where: str, limit: int) -> bytes:
        """Returns records from a position on: earliest, an offset, or @ and a time; of ``latest``
        the last ones of each partition, newest first.

        Raises:
            InvalidInputError: no such partition, or no position.
        """
        from clog.storage.read.offsets import partitions_named

        log = self.log(number)
        ends, starts = log.stable_offsets(), log.start_offsets()
        wanted = partitions_named(log.handle.tip.head, partition, url=log.url)
        if where == "latest":
            each = max(1, limit // len(wanted))
            at = {p: max(starts[p], ends[p] - each) for p in wanted}
        else:
            at = _positions(log, partition, where)
        batches = (batch for p, start in at.items() for batch in log.read(p, start, ends[p]))
        return _json(_newest_first(batches) if where == "latest" else batches, limit)

    def history_of_key(self, number: int, key: AskedKey, limit: int) -> bytes:
        """Returns all records of a key that are still there."""
        from clog.storage.read.key_history import records_of_keys
        from clog.storage.read.offsets import ranges

        log = self.log(number)
        log.handle.refresh()
        manifest = log.handle.manifest()
        everything = ranges(manifest.head, None, None, None, url=log.url)
        return _json(
            records_of_keys(log.handle.store, manifest, everything, _keys(log, key)), limit
        )

    def table(self, number: int, at: int | None, key: AskedKey | None, limit: int) -> bytes:
        """Returns rows of the table at a version; of one key alone where it is given."""
        log = self.log(number)
        view = log.table(at=at)
        batches = view.to_batches() if key is None else view.of_keys(_keys(log, key)).to_batches()
        return _json(batches, limit)


def _keys(log: "Log", key: AskedKey) -> list[Any]:
    """Returns a key as look-ups take it: of a typed log by its type."""
    import typer

    from clog.cli.arguments import typed_schema
    from clog.cli.records.keys import keys_given

    try:
        return keys_given([key.text], is_base64=key.is_base64, schema=typed_schema(log))
    except typer.BadParameter as e:
        raise InvalidInputError(e.message) from None


def _positions(log: "Log", partition: int | None, where: str) -> dict[int, int]:
    import typer

    from clog.cli.records.consume import positions

    try:
        return positions(log, partition, where)
    except typer.BadParameter as e:
        raise InvalidInputError(e.message) from None


def _newest_first(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    if found := list(batches):
        order = [("timestamp", "descending"), ("offset", "descending")]
        yield from pa.Table.from_batches(found).sort_by(order).to_batches()


def _json(batches: "Iterable[pa.RecordBatch]", limit: int) -> bytes:
    """Returns a JSON list of the first records, in the form of JSON lines; ``limit`` at most."""
    from clog.cli.records.lines import format_jsonl

    wanted = min(limit, RECORDS_MAX)
    lines = (line for batch in batches for line in format_jsonl(batch.slice(0, wanted)))
    return b"[" + b",".join(line.rstrip(b"\n") for line in islice(lines, wanted)) + b"]"
