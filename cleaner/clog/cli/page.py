"""The page of `clog ui` and of `clog cleaner --listen`, and the data it requests. Only reads.

A log is opened once and followed; commits that were read stay in memory, since they never change.
All logs are looked at in parallel, and a store that does not answer holds up no other: each has
threads of its own for looks (`Looks`), and for what is asked of one log (`serving`). A look that
takes longer than `PATIENCE_S` continues in its thread, and is not begun again; until it ends, the
page says for how long it has been waiting. The threads are daemons, and end with the process.

*Exact*: a browser's numbers are exact only up to 2^53. So a typed key or value that is not text is
sent as the text of its JSON, in ``key_json`` and ``value_json``, and any other whole number beyond
2^53 as text (`exact`).

*Short*: of keys, values and headers only the beginning is sent, so that a large record does not
hide those after it; ``key_bytes`` and ``value_bytes`` give the length of one that was cut.

*Safe*: only reads; columns may be masked (`masking`), from searches as well.
"""

import base64
import json
import logging
import os
import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import click

from clog.cli.clean import remaining_ms
from clog.cli.consume import positions
from clog.cli.cost import PRICES, bill
from clog.cli.describe import configs_shown, copied, next_actions
from clog.cli.lines import as_json, keys_given, of_bytes, timestamps_of
from clog.cli.masking import Path as MaskPath
from clog.cli.masking import cannot_match, mask_path, shown_headers, without_masked
from clog.cli.options import integer, typed_schema
from clog.storage import (
    ClogError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
)
from clog.storage.spi import dataclass, duration, redact, store_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from clog.cleaner.monitor import Activity, LogState, Monitor
    from clog.storage import Clock, CommitInfo, Log, Reader


logger = logging.getLogger(__name__)
_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class ShownCleaner:
    """A cleaner, as its monitor sees it. Makes no requests to stores."""

    monitor: "Monitor"

    def state(self) -> dict[str, Any]:
        """Returns the passes under way, and each log's totals since the process began."""
        now_ms = self.monitor.clock.monotonic_ms()
        return {
            "idle_ms": now_ms - self.monitor.round_ms,
            "passes": [_pass(activity, now_ms) for activity in self.monitor.activities()],
            "logs": [_log(url, state) for url, state in self.monitor.logs().items()],
        }


def _pass(activity: "Activity", now_ms: int) -> dict[str, Any]:
    progress, chosen = activity.progress, activity.candidate
    return {
        "url": activity.url,
        "partition": chosen.partition,
        "reason": chosen.reason.value,
        "phase": progress.phase,
        "records_done": min(progress.records_done, progress.records_total),
        "records_total": progress.records_total,
        "bytes_moved": progress.bytes_moved,
        "spent_ms": now_ms - activity.began_ms,
        "left_ms": remaining_ms(activity, now_ms),
    }


def _log(url: str, state: "LogState") -> dict[str, Any]:
    totals = state.totals
    return {
        "url": url,
        "passes": totals["passes"],
        "removed": totals["records_read"] - totals["records_written"] + totals["records_marked"],
        "bytes_read": totals["bytes_read"],
        "bytes_written": totals["bytes_written"],
        "error": state.error,
    }


PATIENCE_S = 2.0
_THREADS = 16
"""Looks at one store that are under way at the same time."""

_Line = dict[str, Any]


class _Named(NamedTuple):
    """What is looked at: a log, or a prefix below which there may be more."""

    url: str
    is_prefix: bool = False


@dataclass(slots=True)
class _Look:
    began_ms: int
    ended: threading.Event = field(default_factory=threading.Event)
    line: _Line = field(default_factory=dict)


@dataclass(slots=True)
class _Looking:
    """The threads that look at one store, and what is asked of them."""

    asked: queue.SimpleQueue[tuple[_Named, _Look]] = field(default_factory=queue.SimpleQueue)
    threads: int = 0
    under_way: int = 0


class Looks:
    """Looks by name; waits at most ``patience_s`` for a new one. One that fails has an error."""

    def __init__(
        self, look: Callable[[_Named], _Line], clock: "Clock", patience_s: float = PATIENCE_S
    ) -> None:
        self._look = look
        self._clock = clock
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._under_way: dict[_Named, _Look] = {}
        self._stores: dict[str, _Looking] = {}
        self._failures: dict[_Named, str] = {}

    def lines(self, names: Sequence[_Named]) -> list[_Line | None]:
        """Returns the results of looks, in the order of the names; None if there is none yet."""
        deadline_ms = self._clock.monotonic_ms() + int(self._patience_s * 1000)
        looks = [self._begun(name) for name in names]
        found: list[_Line | None] = []
        for name, (look, is_new) in zip(names, looks, strict=True):
            left_ms = deadline_ms - self._clock.monotonic_ms() if is_new else 0
            if not look.ended.wait(max(0, left_ms) / 1000):
                found.append(None)
                continue
            with self._lock:
                self._under_way.pop(name, None)
            found.append(look.line)
        return found

    def waiting_ms(self, name: _Named) -> int:
        """Returns how long a look has been waiting for an answer; 0 if none has, or not long."""
        look = self._under_way.get(name)
        if look is None or look.ended.is_set():
            return 0
        waited_ms = self._clock.monotonic_ms() - look.began_ms
        return waited_ms if waited_ms > self._patience_s * 1000 else 0

    def _begun(self, name: _Named) -> tuple[_Look, bool]:
        """Returns the look that is under way, or a new one, and whether it is new."""
        store = store_named(name.url)
        with self._lock:
            if (look := self._under_way.get(name)) is not None:
                return look, False
            look = self._under_way[name] = _Look(self._clock.monotonic_ms())
            mine = self._stores.setdefault(store, _Looking())
            mine.under_way += 1
            if mine.threads < min(_THREADS, mine.under_way):
                mine.threads += 1
                threading.Thread(target=self._work, args=(mine,), daemon=True).start()
        mine.asked.put((name, look))
        return look, True

    def _work(self, mine: _Looking) -> None:
        while True:
            name, look = mine.asked.get()
            try:
                look.line = self._look(name)
                self._failures.pop(name, None)
            except Exception as e:  # noqa: BLE001 - one that fails hides no other
                look.line = {"error": str(e) or type(e).__name__}
                self._tell(name, e)
            with self._lock:
                mine.under_way -= 1
            look.ended.set()

    def _tell(self, name: _Named, error: Exception) -> None:
        """Logs a failure that is none of a store's, once."""
        text = f"{type(error).__name__}: {error}"
        if not isinstance(error, ClogError | OSError) and self._failures.get(name) != text:
            logger.error("%s cannot be shown", redact(name.url), exc_info=error)
        self._failures[name] = text


def store_named(url: str) -> str:
    """Returns the store of a URL; of one that is none, the URL."""
    try:
        return store_of(url)
    except InvalidInputError:
        return url


LOOK_MS = 30_000
"""The shortest interval between searches for new logs below prefixes."""
COMMITS_MAX = 200
"""This many of the newest commits are shown."""
SPAN_MS = 300_000
"""Commits are drawn over time in spans of this length."""
LAG_MS = 60_000
"""The lag of readers is recorded at most this often, while the page is open."""
SPANS_MAX = 288
"""A day of spans: from the newest commits, and from those the page has seen since."""
RECORDS_MAX = 500
SHOWN_MAX = 20_000
"""Characters shown of a key or a value; bytes, of one that is not text."""
HEADERS_MAX = 50
"""Headers shown of a record."""
HEADER_SHOWN_MAX = 500
"""Like `SHOWN_MAX`, for the name and the value of a header."""
EXACT_MAX = 2**53 - 1
"""The largest whole number that a browser holds exactly."""
SCANNED_MAX = 50_000
"""Records that a search looks through for one page; the next page continues after them."""
LOGS_MAX = 50
"""Logs on one page of the list: each costs a request at every look."""


class Sought(NamedTuple):
    """What a search looks for: a text in the key, the value or a header; with a ``path``, in that
    part of a JSON value.
    """

    contains: str
    path: str = ""

    def fits(self, key: str, value: str, headers: str) -> bool:
        """Returns whether a record matches."""
        if not self.path:
            return self.contains in key or self.contains in value or self.contains in headers
        found = part_of(value, self.path)
        return found is not None and self.contains in found


def part_of(text: str, path: str) -> str | None:
    """Returns the part of JSON at a path, as text, or None.

    >>> part_of('{"user": {"tags": ["a", "b"]}}', "$.user.tags[1]")
    'b'
    """
    try:
        found = json.loads(text)
        for step in re.findall(r"[^.\[\]]+", path.removeprefix("$")):
            found = found[int(step)] if isinstance(found, list) else found[step]
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


class Page(list[dict[str, Any]]):
    """Records as the page shows them; ``next`` is where to continue, if there may be more."""

    next: str | None = None


class _Span(NamedTuple):
    """The effect of commits in a span of time, and the log's bytes then; None if not known."""

    from_ms: int
    records: int = 0
    size_bytes: int = 0
    removed_bytes: int = 0
    log_bytes: int | None = None
    dirty_bytes: int | None = None

    def with_commit(self, info: "CommitInfo", effect: Any) -> "_Span":
        """Returns the span with one more commit."""
        return _Span(
            self.from_ms,
            self.records + info.records,
            self.size_bytes + info.size_bytes,
            self.removed_bytes + (effect.removed_bytes if effect else 0),
            effect.size_bytes if effect else self.log_bytes,
            effect.dirty_bytes if effect else self.dirty_bytes,
        )


class AskedKey(NamedTuple):
    """A key as the user typed it."""

    text: str
    is_base64: bool


def _opened_anew(
    ask: "Callable[Concatenate[ShownLogs, int, _Asked], _Answer]",
) -> "Callable[Concatenate[ShownLogs, int, _Asked], _Answer]":
    """Makes what asks a log ask again if it may have been deleted and another one may be there."""

    @wraps(ask)
    def asked(
        logs: "ShownLogs", number: int, /, *args: _Asked.args, **named: _Asked.kwargs
    ) -> _Answer:
        try:
            return ask(logs, number, *args, **named)
        except (CorruptionError, NotFoundError):
            if not logs.forget(number):
                raise
            return ask(logs, number, *args, **named)

    return asked


def _absolute(url: str) -> str:
    """Returns a local path from the root, as logs have it: one log, one address of the page."""
    return url if "://" in url else os.path.abspath(url)  # noqa: PTH100 - keeps links


class ShownLogs:
    """Logs by number, in the order in which they were given or found below prefixes."""

    def __init__(
        self,
        urls: Sequence[str],
        prefixes: Sequence[str],
        storage_options: Mapping[str, object],
        *,
        clock: "Clock",
        patience_s: float = PATIENCE_S,
        masks: Sequence[str] = (),
    ) -> None:
        """Shows these logs, and those below prefixes; ``masks`` are paths that are not shown."""
        self._masks = [mask_path(mask) for mask in masks]
        self._options = storage_options
        self._prefixes = [_absolute(prefix) for prefix in prefixes]
        self._clock = clock
        self._looks = Looks(self._look_at, clock, patience_s)
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._given = self._urls = list(dict.fromkeys(map(_absolute, urls)))
        self._opened: dict[str, Log] = {}
        self._walks: dict[str, Callable[[], Iterator[tuple[CommitInfo, Any]]]] = {}
        self._commits: dict[str, dict[int, dict[str, Any]]] = {}
        self._spans: dict[str, dict[int, _Span]] = {}
        self._lags: dict[str, dict[str, dict[int, int]]] = {}
        self._looked_ms: dict[str, int] = {}
        self._unlisted: dict[str, dict[str, str]] = {}
        self.unlisted: dict[str, str] = {}
        self._matched: dict[str, set[MaskPath]] = {}

    def look(self) -> None:
        """Looks for new logs, if not done lately; does not wait for a store that is silent. Sets
        ``unlisted``: the folders that cannot be listed, and why.
        """
        prefixes = [_Named(prefix, is_prefix=True) for prefix in self._prefixes]
        unlisted: dict[str, str] = {}
        for name, line in zip(prefixes, self._looks.lines(prefixes), strict=True):
            if line is None:
                unlisted[redact(name.url)] = self._silence(name)
            elif "error" in line:
                self._unlisted[name.url] = {name.url: line["error"]}
            for url, why in self._unlisted.get(name.url, {}).items():
                unlisted.setdefault(redact(url), why)
        self.unlisted = unlisted

    def check_masks(self) -> None:
        """Raises if a mask matches nothing in any of the logs that were given. Says nothing of one
        that has not answered yet; `details` does.
        """
        self._looks.lines([_Named(url) for url in self._given])
        where = ", ".join(map(redact, self._given))
        opened = [self._opened.get(url) for url in self._given]
        for mask in self._masks if opened else ():
            if all(log is not None and cannot_match(mask, typed_schema(log)) for log in opened):
                raise InvalidInputError(
                    f"--mask {'.'.join(mask)} hides nothing in {where}: the schema has no such"
                    ' part; "clog describe" shows it'
                )

    def _masks_of(self, log: "Log") -> Sequence[MaskPath]:
        """Returns the masks, after a check that none has ceased to match since it did."""
        dead = self._unmatched(log)
        if gone := [".".join(mask) for mask in dead if mask in self._matched[log.url]]:
            raise InvalidInputError(
                f"records are not shown: {', '.join(gone)}, which --mask hides, is no longer in the"
                " schema; see how it is called now, and start the page with a mask for that"
            )
        return self._masks

    def _unmatched(self, log: "Log") -> list[MaskPath]:
        """Returns the masks that match nothing in a log, and notes those that do."""
        # By URL: another log may be there, in which what a mask hid is called otherwise.
        dead = [mask for mask in self._masks if cannot_match(mask, typed_schema(log))]
        noted = self._matched.setdefault(log.url, set())
        noted.update(mask for mask in self._masks if mask not in dead)
        return dead

    def log(self, number: int) -> "Log":
        """Returns a log; raises instead of waiting if its store has been silent for long."""
        if not 0 <= number < len(self._urls):
            raise NotFoundError(f"there is no log number {number}; reload the page")
        url = self._urls[number]
        if self._looks.waiting_ms(_Named(url)):
            raise StoreUnavailableError(self._silence(_Named(url)))
        return self._open(url)

    def forget(self, number: int) -> bool:
        """Makes the next request open a log anew; returns whether it was open."""
        url = self._urls[number] if 0 <= number < len(self._urls) else ""
        return self._opened.pop(url, None) is not None

    def store(self, number: int) -> str:
        """Returns the store of a log; of none, if there is no such log."""
        return store_named(self._urls[number]) if 0 <= number < len(self._urls) else ""

    def _open(self, url: str) -> "Log":
        from clog.storage import Log

        log = self._opened.get(url)
        return log or self._opened.setdefault(url, Log.open(url, self._options))

    def matching(self, contains: str = "") -> list[tuple[int, str]]:
        """Returns numbers and URLs, without secrets, of the logs whose URLs contain the text."""
        named = ((number, redact(url)) for number, url in enumerate(self._urls))
        return [(number, url) for number, url in named if contains.lower() in url.lower()]

    def overview(self, contains: str = "", page: int = 0) -> list[dict[str, Any]]:
        """Returns a line, or an error, for each log on a page of matches; one request each."""
        self.look()
        some = self.matching(contains)[page * LOGS_MAX : (page + 1) * LOGS_MAX]
        names = [_Named(self._urls[number]) for number, _ in some]
        found = self._looks.lines(names)
        return [
            {"number": number, "url": shown} | (line or {"error": self._silence(name)})
            for (number, shown), name, line in zip(some, names, found, strict=True)
        ]

    def _silence(self, name: _Named) -> str:
        waited_ms = self._looks.waiting_ms(name)
        waited = f"for {duration(waited_ms)}" if waited_ms else "yet"
        return f"its store has not answered {waited}; the page keeps trying"

    def _look_at(self, name: _Named) -> _Line:
        from clog.storage.spi import Inside

        url = name.url
        if name.is_prefix:
            self._find(url)
            return {}
        try:
            log = self._open(url)
            self._unmatched(log)
            found = Inside(log).described()
        except ClogError as e:
            self._opened.pop(url, None)  # Another log may be there by now.
            further = "; --discover shows all logs in a folder" * isinstance(e, NotFoundError)
            return {"error": f"{e}{further}"}
        details = found["partition_details"]
        return {
            "version": found["version"],
            "committed_ms": found["committed_ms"],
            "partitions": found["partitions"],
            "records": sum(d["records"] for d in details),
            "object_bytes": found["object_bytes"],
            "dirty_ratio": max(d["dirty_ratio"] for d in details),
            "uncleanable": sum(d["uncleanable"] is not None for d in details),
            "transactions": len(found["transactions"]),
        }

    def _find(self, prefix: str) -> None:
        from clog.storage.spi import find_logs

        now_ms = self._clock.monotonic_ms()
        looked_ms = self._looked_ms.get(prefix)
        if looked_ms is not None and now_ms - looked_ms < LOOK_MS:
            return
        self._looked_ms[prefix] = now_ms
        found = find_logs(prefix, self._options)
        self._unlisted[prefix] = {folder: str(e) for folder, e in found.unlisted.items()}
        with self._lock:
            known = set(self._urls)
            self._urls = [*self._urls, *(url for url in found.urls if url not in known)]

    @_opened_anew
    def details(self, number: int) -> dict[str, Any]:
        """Returns all about one log: its description, and its newest commits, oldest first."""
        from clog.storage.spi import Inside

        log = self.log(number)
        found: dict[str, Any] = dict(Inside(log).described(waits=True))
        actions = next_actions(log, found)
        for detail in found["partition_details"]:
            detail["next_action"] = actions[detail["partition"]]
        with self._locks.setdefault(log.id, threading.Lock()):
            commits = self._newest(log)
            spans = [span._asdict() for span in self._spans[log.id].values()]
        shown = configs_shown(found["config"])
        sources = copied(found["sources"])
        for one in sources:
            mine = (c for c in commits if one["writer"] in c["writers"])
            times = [c["time_ms"] for c in mine if c["operation"] != "transaction"]
            one["committed_ms"] = max(times, default=None)
        more = {
            "now_ms": self._clock.now_ms(),
            "sources": sources,
            "unmatched_masks": [".".join(mask) for mask in self._unmatched(log)],
        }
        return found | {"config": shown, "commits": commits, "spans": spans} | more

    def _newest(self, log: "Log") -> list[dict[str, Any]]:
        """Returns the newest commits; one request for each that was not seen before."""
        from clog.storage.spi import Inside

        inside, log_id = Inside(log), log.id
        first = max(0, inside.version + 1 - COMMITS_MAX)
        known = self._commits.setdefault(log_id, {})
        if first > max(known, default=-1) + 1 or log_id not in self._walks:
            known.clear()
            self._spans[log_id] = {}
            self._walks[log_id] = inside.commits_from(first)
        spans = self._spans[log_id]
        for info, effect in self._walks[log_id]():
            known[info.version] = asdict(info) | {"effect": effect and asdict(effect)}
            at = info.time_ms // SPAN_MS * SPAN_MS
            spans[at] = spans.get(at, _Span(at)).with_commit(info, effect)
        _forget_oldest(spans)
        for old in [v for v in known if v < first]:
            del known[old]
        return [known[v] for v in sorted(known)]

    @_opened_anew
    def users(self, number: int) -> dict[str, Any]:
        """Returns readers, writers and undecided transactions; a LIST, and a request per reader."""
        from clog.storage.spi import Inside

        log = self.log(number)
        lags = self._lags.setdefault(log.id, {})
        found = [
            asdict(r) | {"position": dict(r.position), "lags": self._lag_of(lags, r)}
            for r in log.readers()
        ]
        open_ones = [asdict(t) for t in log.transactions()]
        return {"readers": found, "transactions": open_ones, "writers": Inside(log).writers}

    def _lag_of(self, lags: dict[str, dict[int, int]], reader: "Reader") -> list[tuple[int, int]]:
        """Returns a reader's lag at each time at which the page recorded it."""
        mine = lags.setdefault(reader.name, {})
        mine[self._clock.now_ms() // LAG_MS * LAG_MS] = reader.lag_records
        _forget_oldest(mine)
        return list(mine.items())

    @_opened_anew
    def cost(self, number: int, readers: int) -> dict[str, Any]:
        """Returns the cost of the log per day, by its newest commits; one request for each."""
        found = bill(self.log(number), PRICES["aws"], readers=readers, commits=COMMITS_MAX)
        return found.as_json() | {"stored_dollars": found.stored_dollars}

    @_opened_anew
    def records(
        self,
        number: int,
        partition: int | None,
        where: str,
        limit: int,
        *,
        sought: Sought | None = None,
        after: str = "",
    ) -> Page:
        """Returns records from a position on: earliest, an offset, or @ and a time; for ``latest``
        the last ones of each partition, newest first. ``after``: where the previous page ended.
        """
        from clog.storage.spi import Inside

        log = self.log(number)
        ends, starts = log.stable_offsets(), log.start_offsets()
        wanted = Inside(log).partitions(partition)
        if where == "latest":
            each = max(1, limit // len(wanted))
            at = {p: max(starts[p], ends[p] - each) for p in wanted}
        else:
            with _as_input():
                at = positions(log, partition, where)
        if after:
            there, offset = _place(after)
            at = {p: offset if p == there else first for p, first in at.items() if p >= there}
        # All partitions together: they share objects, and each object is read once.
        ends = {p: ends[p] if p in at else starts[p] for p in starts}
        batches = log.read(start={**starts, **at}, end=ends)
        if where != "latest":
            return self._page(log, batches, limit, sought, after=after or "0:0")
        found = self._page(log, _newest_first(batches), limit, sought)
        found.next = None  # Older ones are requested by an offset.
        return found

    @_opened_anew
    def history_of_key(
        self,
        number: int,
        key: AskedKey,
        limit: int,
        *,
        sought: Sought | None = None,
        after: str = "",
    ) -> Page:
        """Returns all remaining records of a key."""
        from clog.storage.spi import Inside

        log = self.log(number)
        if any(top == "key" for top, *_ in self._masks):
            raise InvalidInputError("keys are masked here; their history is not shown")
        batches = Inside(log).records_of(_keys(log, key))
        return self._page(log, batches, limit, sought, after=after)

    @_opened_anew
    def table(
        self,
        number: int,
        at: int | None,
        key: AskedKey | None,
        limit: int,
        *,
        sought: Sought | None = None,
        after: str = "",
    ) -> Page:
        """Returns rows of the table at a version; only that of ``key``, if it is given."""
        log = self.log(number)
        if key is not None and any(top == "key" for top, *_ in self._masks):
            raise InvalidInputError("keys are masked here, so they cannot be looked up")
        from clog.storage import READ_SCHEMA

        view = log.table(at=at)
        batches = (
            view.to_batches(columns=READ_SCHEMA.names)
            if key is None
            else view.of_keys(_keys(log, key)).to_batches()
        )
        return self._page(log, batches, limit, sought, after=after)

    @_opened_anew
    def changes(
        self, number: int, since: int, limit: int, *, sought: Sought | None = None, after: str = ""
    ) -> Page:
        """Returns the rows of the table that changed after a version, before and after."""
        log = self.log(number)
        found = _changed(log.changes(since=since), self._masks_of(log), _key_columns(log), sought)
        before = whole_number(after, "after") or 0
        page = Page()
        for seen, change in enumerate(found, 1):
            if seen > before and change is not None:
                page.append(change)
            if len(page) == min(limit, RECORDS_MAX) or seen == before + SCANNED_MAX:
                page.next = str(seen)
                break
        return page

    def _page(
        self,
        log: "Log",
        batches: "Iterable[pa.RecordBatch]",
        limit: int,
        sought: Sought | None,
        *,
        after: str = "",
    ) -> Page:
        """Returns the first records that match, ``limit`` at most. ``after`` says what was shown
        before: a number of rows, or, with a colon, the place at which ``batches`` begin.
        """
        by_place = ":" in after
        scanned = left = 0 if by_place or not after else whole_number(after, "after") or 0
        page, wanted, until = Page(), min(limit, RECORDS_MAX), scanned + SCANNED_MAX
        masks = self._masks_of(log)
        for whole in batches:
            batch = whole.slice(left)
            left -= whole.num_rows - batch.num_rows
            if sought is None:
                batch = batch.slice(0, wanted - len(page))
            for i, found in enumerate(_shown(batch, masks, sought)):
                scanned += 1
                page += [found] if found is not None else []
                if len(page) == wanted or scanned == until:
                    page.next = _after(batch, i) if by_place else str(scanned)
                    return page
        return page


def _forget_oldest(by_time: dict[int, Any]) -> None:
    for old in sorted(by_time)[:-SPANS_MAX]:
        del by_time[old]


def exact(value: Any) -> Any:
    """Returns the same data, with whole numbers that a browser would round as text."""
    if isinstance(value, dict):
        return {name: exact(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [exact(one) for one in value]
    if isinstance(value, int) and abs(value) > EXACT_MAX:
        return str(value)
    return value


@contextmanager
def _as_input(of: str = "") -> "Iterator[None]":
    """Turns a usage error of the command line into one about the request."""
    try:
        yield
    except click.BadParameter as e:
        raise InvalidInputError(of + e.message) from None


def whole_number(text: str | None, name: str) -> int | None:
    """Returns the number that a request gives as text; None if it gives none."""
    if not text:
        return None
    with _as_input(f"{name}: "):
        return integer()(text)


def _keys(log: "Log", key: AskedKey) -> list[Any]:
    """Returns a key in the form of look-ups: in a typed log, by its type."""
    with _as_input():
        return keys_given([key.text], is_base64=key.is_base64, schema=typed_schema(log))


def _newest_first(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    if found := list(batches):
        order = [("timestamp", "descending"), ("offset", "descending")]
        yield from pa.Table.from_batches(found).sort_by(order).to_batches()


def _after(batch: "pa.RecordBatch", row: int) -> str:
    """Returns the place after a row."""
    partition, offset = (batch.column(name)[row].as_py() for name in ("partition", "offset"))
    return f"{partition}:{offset + 1}"


def _place(after: str) -> tuple[int, int]:
    """Reads the place where a page ended."""
    partition, _, offset = after.partition(":")
    return whole_number(partition, "after") or 0, whole_number(offset, "after") or 0


def _shown(
    batch: "pa.RecordBatch", masks: Sequence[MaskPath], sought: Sought | None
) -> "Iterator[dict[str, Any] | None]":
    """Yields records as the page shows them, None in place of those that do not match."""
    named = {name: _contents(batch, name, masks) for name in ("key", "value")}
    suffixes = {name: suffix for name, (suffix, _) in named.items()}
    plain = (batch.column(name).to_pylist() for name in ("partition", "offset", "headers"))
    rows = zip(*plain, timestamps_of(batch), *(texts for _, texts in named.values()), strict=True)
    for partition, offset, headers, timestamp, key, value in rows:
        pairs = shown_headers(headers, masks)
        if sought is not None:
            texts = " ".join(f"{pair['key']}={_text(pair['value'])}" for pair in pairs)
            if not sought.fits(_text(key), _text(value), texts):
                yield None
                continue
        shown = {"partition": partition, "offset": offset, "timestamp": timestamp}
        for name, data in (("key", key), ("value", value)):
            shown |= _beginning(name if data is None else name + suffixes[name], data)
        if pairs:
            shown["headers"] = [
                {"key": pair["key"][:HEADER_SHOWN_MAX]}
                | _beginning("value", pair["value"], HEADER_SHOWN_MAX)
                for pair in pairs[:HEADERS_MAX]
            ]
            shown["headers_left_out"] = max(0, len(pairs) - HEADERS_MAX)
        yield shown


def _key_columns(log: "Log") -> list[str]:
    """Returns the names of the key's columns; none, if the table is not shown as plain columns."""
    return [name for name in log.config["table.key.columns"].split(",") if name]


def _changed(
    batches: "Iterable[pa.RecordBatch]",
    masks: Sequence[MaskPath],
    keys: Sequence[str],
    sought: Sought | None,
) -> "Iterator[dict[str, Any] | None]":
    """Yields changes as the page shows them, None in place of those that do not match."""
    before = None  # An update's images are two rows, the first directly before the other.
    for batch in batches:
        records = _of_keys_and_values(batch, keys) if keys else batch
        (key_is, found), (value_is, values) = (
            _contents(records, name, masks) for name in ("key", "value")
        )
        about = (batch.column(name).to_pylist() for name in ("_change_type", "_commit_version"))
        for key, value, kind, version in zip(found, values, *about, strict=True):
            if kind == "update_preimage":
                before = value
                continue
            old, new = (value, None) if kind == "delete" else (before, value)
            before = None
            texts = _text(key), _text(old), _text(new)
            if sought and not any(sought.fits(texts[0], text, "") for text in texts[1:]):
                yield None
                continue
            shown = {"change": kind.partition("_")[0], "version": version}
            parts = ("key", key_is, key), ("before", value_is, old), ("value", value_is, new)
            for name, suffix, data in parts:
                shown |= _beginning(name if data is None else name + suffix, data)
            yield shown


def _of_keys_and_values(batch: "pa.RecordBatch", keys: Sequence[str]) -> "pa.RecordBatch":
    """Returns the rows of a table of plain columns as records."""
    import pyarrow as pa

    def of(names: Sequence[str]) -> pa.Array:
        return pa.StructArray.from_arrays([batch.column(name) for name in names], list(names))

    value = [name for name in batch.schema.names[:-3] if name not in keys]
    key = batch.column(keys[0]) if len(keys) == 1 else of(keys)
    return pa.RecordBatch.from_arrays([key, of(value)], ["key", "value"])


def _text(data: bytes | None) -> str:
    return "" if data is None else data.decode(errors="replace")


def _contents(
    batch: "pa.RecordBatch", name: str, masks: Sequence[MaskPath]
) -> tuple[str, list[bytes | None]]:
    """Returns keys or values without masked parts, as they are or as JSON."""
    import pyarrow as pa

    column = batch.column(name)
    hidden = [path for top, *path in masks if top == name]
    if of_bytes(batch.schema) or pa.types.is_string(column.type):
        texts = column.cast(pa.binary()).to_pylist()
        return "", [without_masked(text, hidden) for text in texts] if hidden else texts
    whole = [
        None if v is None else json.dumps(v, ensure_ascii=False).encode() for v in as_json(column)
    ]
    if hidden:
        whole = [without_masked(text, hidden, column.type) for text in whole]
    return "_json", whole


def _beginning(name: str, data: bytes | None, most: int = SHOWN_MAX) -> dict[str, Any]:
    r"""Returns bytes as text, or as base64 if they are not text; of long ones only the beginning,
    and the number of bytes.

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
