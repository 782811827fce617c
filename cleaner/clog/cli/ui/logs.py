"""What the page shows of logs, as data fit for JSON. Reads only.

A log is opened once and followed; a commit that was read stays in memory, since it never changes.
A store that does not answer is said to be silent, and holds up nothing else (`looks`).
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from clog.cli.output import duration
from clog.cli.ui.looks import PATIENCE_S, Looks
from clog.storage.errors import ClogError, InvalidInputError, NotFoundError, StoreUnavailableError

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
BYTES_MAX = 8 << 20
"""Of JSON in an answer with records: what is more is left out, but for the first record."""
_PREFIXES = ""
"""The name of the look for new logs: no log has this URL."""


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
        patience_s: how long one log is waited for before the others are shown without it.
    """

    def __init__(
        self,
        urls: Sequence[str],
        prefixes: Sequence[str],
        storage_options: Mapping[str, object],
        *,
        clock: "Clock",
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._options = storage_options
        self._prefixes = prefixes
        self._clock = clock
        self._looks = Looks(self._look_at, clock, patience_s)
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._urls = list(dict.fromkeys(urls))
        self._opened: dict[str, Log] = {}
        self._walks: dict[str, CommitWalk] = {}
        self._commits: dict[str, dict[int, dict[str, Any]]] = {}
        self._looked_ms: int | None = None

    def look(self) -> None:
        """Looks for new logs, if it was not done lately; whoever asks does not wait for a store
        that does not answer.
        """
        self._looks.lines([_PREFIXES])

    def _find(self) -> None:
        from clog.storage.store.finding import find_logs

        now_ms = self._clock.monotonic_ms()
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        found = [url for p in self._prefixes for url in find_logs(p, self._options).urls]
        with self._lock:
            self._urls += [url for url in dict.fromkeys(found) if url not in self._urls]

    def log(self, number: int) -> "Log":
        """Returns a log.

        Raises:
            NotFoundError: there is none of this number, or at its URL.
            StoreUnavailableError: its store has not answered for a while; who asks does not wait.
        """
        if not 0 <= number < len(self._urls):
            raise NotFoundError(f"no log has the number {number}; reload the page")
        url = self._urls[number]
        if self._looks.waiting_ms(url):
            raise StoreUnavailableError(self._silence(url))
        return self._open(url)

    def _open(self, url: str) -> "Log":
        from clog.storage import Log

        log = self._opened.get(url)
        return log or self._opened.setdefault(url, Log.open(url, self._options))

    def overview(self) -> list[dict[str, Any]]:
        """Returns a line for each log; of one that cannot be read, why. A request for each, all
        under way at once.
        """
        from clog.storage.store.urls import redact

        self.look()
        urls = list(self._urls)
        found = self._looks.lines(urls)
        return [
            {"number": number, "url": redact(url)} | (line or {"error": self._silence(url)})
            for number, (url, line) in enumerate(zip(urls, found, strict=True))
        ]

    def _silence(self, url: str) -> str:
        waited_ms = self._looks.waiting_ms(url)
        waited = f"for {duration(waited_ms)}" if waited_ms else "yet"
        return f"its store has not answered {waited}; it is asked on"

    def _look_at(self, url: str) -> dict[str, Any]:
        if url == _PREFIXES:
            self._find()
            return {}
        return self._line(url)

    def _line(self, url: str) -> dict[str, Any]:
        try:
            found = self._open(url).describe()
        except ClogError as e:
            self._opened.pop(url, None)  # Another log may stand there by now.
            return {"error": str(e)}
        details = found["partition_details"]
        return {
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
        from clog.storage.config.units import config_text

        log = self.log(number)
        found: dict[str, Any] = dict(log.describe())
        with self._locks.setdefault(log.handle.standing.log_id, threading.Lock()):
            commits = self._newest(log)
        shown = {name: config_text(name, value) for name, value in found["config"].items()}
        return found | {
            "config": shown,
            "now_ms": log.handle.clock.now_ms(),
            "commits": commits,
        }

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
        # All at once: partitions share objects, and each is read once.
        ends = {p: ends[p] if p in at else starts[p] for p in starts}
        batches = log.read(start={**starts, **at}, end=ends)
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
    """Returns a JSON list of the first records, in the form of JSON lines; ``limit`` at most, and
    after them ``{"cut": true}`` where more would be too many bytes.
    """
    from clog.cli.records.lines import format_jsonl

    wanted = min(limit, RECORDS_MAX)
    lines = (line for batch in batches for line in format_jsonl(batch.slice(0, wanted)))
    found: list[bytes] = []
    room = BYTES_MAX
    for line in islice(lines, wanted):
        room -= len(line)
        if room < 0 and found:
            found.append(b'{"cut":true}')
            break
        found.append(line.rstrip(b"\n"))
    return b"[" + b",".join(found) + b"]"
