"""What the page shows of logs, as data fit for JSON. Reads only.

A log is opened once and followed; a commit that was read stays in memory, since it never changes.
A store that does not answer is said to be silent, and holds up nothing else (`looks`).

*Exact*: a browser's numbers are exact to 2^53 only. So a typed key or value that is no text goes
out as the text of its JSON, in ``key_json`` and ``value_json``, and any other whole number beyond
2^53 as text (`exact`).

*Short*: of a key, a value or a header only the beginning goes out, so that a large record hides
none after it; ``key_bytes`` and ``value_bytes`` say how long one is that was cut.
"""

import base64
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from clog.cli.output import duration
from clog.cli.ui.looks import PATIENCE_S, Looks
from clog.storage.errors import (
    ClogError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
)

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
SHOWN_MAX = 20_000
"""Characters of a key or a value that are shown; bytes, of one that is no text."""
HEADERS_MAX = 50
"""Headers of a record that are shown."""
HEADER_SHOWN_MAX = 500
"""As `SHOWN_MAX`, of the name and the value of a header."""
EXACT_MAX = 2**53 - 1
"""A browser holds no larger whole number exactly."""
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
        return f"its store has not answered {waited}; the page keeps asking"

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
        log = self.log(number)
        try:
            return self._details(log)
        except (CorruptionError, NotFoundError):
            # It may have been deleted, and another may stand there by now.
            self._opened.pop(self._urls[number], None)
            return self._details(self.log(number))

    def _details(self, log: "Log") -> dict[str, Any]:
        from clog.storage.config.units import config_text

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

    def records(
        self, number: int, partition: int | None, where: str, limit: int
    ) -> list[dict[str, Any]]:
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
        return _first(_newest_first(batches) if where == "latest" else batches, limit)

    def history_of_key(self, number: int, key: AskedKey, limit: int) -> list[dict[str, Any]]:
        """Returns all records of a key that are still there."""
        from clog.storage.read.key_history import records_of_keys
        from clog.storage.read.offsets import ranges

        log = self.log(number)
        log.handle.refresh()
        manifest = log.handle.manifest()
        everything = ranges(manifest.head, None, None, None, url=log.url)
        return _first(
            records_of_keys(log.handle.store, manifest, everything, _keys(log, key)), limit
        )

    def table(
        self, number: int, at: int | None, key: AskedKey | None, limit: int
    ) -> list[dict[str, Any]]:
        """Returns rows of the table at a version; of one key alone where it is given."""
        log = self.log(number)
        view = log.table(at=at)
        batches = view.to_batches() if key is None else view.of_keys(_keys(log, key)).to_batches()
        return _first(batches, limit)


def exact(value: Any) -> Any:
    """Returns the same data with whole numbers that a browser would round as text."""
    if isinstance(value, dict):
        return {name: exact(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [exact(one) for one in value]
    if isinstance(value, int) and abs(value) > EXACT_MAX:
        return str(value)
    return value


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


def _first(batches: "Iterable[pa.RecordBatch]", limit: int) -> list[dict[str, Any]]:
    """Returns the first records as the page shows them, ``limit`` at most."""
    found: list[dict[str, Any]] = []
    wanted = min(limit, RECORDS_MAX)
    for batch in batches:
        found += _shown(batch.slice(0, wanted - len(found)))
        if len(found) == wanted:
            break
    return found


def _shown(batch: "pa.RecordBatch") -> "Iterator[dict[str, Any]]":
    """Yields records as the page shows them."""
    from clog.cli.records.lines import timestamps_of

    names = ("partition", "offset", "headers")
    plain = (batch.column(name).to_pylist() for name in names)
    contents = (_contents(batch, name) for name in ("key", "value"))
    rows = zip(*plain, timestamps_of(batch), *contents, strict=True)
    for partition, offset, headers, timestamp, key, value in rows:
        shown = {"partition": partition, "offset": offset, "timestamp": timestamp} | key | value
        if headers:
            shown["headers"] = [
                {"key": pair["key"][:HEADER_SHOWN_MAX]}
                | _beginning("value", pair["value"], HEADER_SHOWN_MAX)
                for pair in headers[:HEADERS_MAX]
            ]
            shown["headers_left_out"] = max(0, len(headers) - HEADERS_MAX)
        yield shown


def _contents(batch: "pa.RecordBatch", name: str) -> list[dict[str, Any]]:
    """Returns the keys or the values of records: text, base64 of bytes that are none, or JSON."""
    import pyarrow as pa

    from clog.cli.records.lines import of_bytes
    from clog.storage.objects.typed_json import column_json

    column = batch.column(name)
    if of_bytes(batch.schema) or pa.types.is_string(column.type):
        texts = column.cast(pa.binary()).to_pylist()
        return [_beginning(name, text) for text in texts]
    return [
        {name: None}
        if value is None
        else _beginning(f"{name}_json", json.dumps(value, ensure_ascii=False).encode())
        for value in column_json(column)
    ]


def _beginning(name: str, data: bytes | None, most: int = SHOWN_MAX) -> dict[str, Any]:
    r"""Returns bytes as text, or as base64 where they are none; of long ones the beginning, and how
    many bytes there are.

    >>> _beginning("value", b"paid"), _beginning("value", b"\xff", 1)
    ({'value': 'paid'}, {'value_b64': '/w=='})
    >>> _beginning("value", b"paid", 2)
    {'value': 'pa', 'value_bytes': 4}
    """
    if data is None:
        return {name: None}
    try:
        whole: str | bytes = data.decode()
    except UnicodeDecodeError:
        whole = data
    cut = whole[:most]
    if isinstance(cut, str):
        shown: dict[str, Any] = {name: cut}
    else:
        shown = {f"{name}_b64": base64.b64encode(cut).decode()}
    if len(cut) < len(whole):
        shown[f"{name.removesuffix('_json')}_bytes"] = len(data)
    return shown
