"""Named cuts: versions of several logs that belong together (FORMAT.md §20).

A *home* knows its *members*, the logs that its transactions wrote to, and has *cuts* by name. A cut
gives a version of each log; a long list is a separate document. A *keep* holds a version that a cut
names. It is in the head of that version's log, so that the head alone shows which versions may
expire, and it says to which cut it belongs.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any, Final

from clog.storage.env import dataclass
from clog.storage.format import documents
from clog.storage.format.documents import (
    BESIDE,
    HEX,
    NATURAL,
    NONE,
    SHOWN,
    TEXT,
    Codec,
    Hex,
    Int,
    Natural,
    OrNone,
    Path,
    Text,
    maybe,
    page_path,
    reading,
    record,
    row,
    seq,
    table,
)
from clog.storage.store.contract import Store

_LOGS_BYTES_MAX = 1 << 10
"""The head repeats its cuts in each commit. Part of the format."""


@dataclass(frozen=True, slots=True)
class CutLog:
    """A log in a cut, with its version and that version's commit."""

    log_id: Hex
    url: Text
    version: Natural
    commit_id: Hex


@dataclass(frozen=True, slots=True)
class CutLogsAt:
    """A document with the logs of a cut."""

    path: Path
    size_bytes: Annotated[Int, "bytes"]


CutLogs = tuple[CutLog, ...]
_LOGS = seq(row(CutLog))
_AT = record(CutLogsAt)


def _logs_to_json(logs: CutLogs | CutLogsAt) -> dict[str, Any]:
    return (
        {"logs_at": _AT.write(logs)} if isinstance(logs, CutLogsAt) else {"logs": _LOGS.write(logs)}
    )


def _logs_from_json(value: Mapping[str, Any]) -> CutLogs | CutLogsAt:
    at: CutLogsAt | None = maybe(_AT).read(value.get("logs_at"))
    logs: CutLogs = _LOGS.read(value["logs"]) if at is None else ()
    return logs if at is None else at


@dataclass(frozen=True, slots=True)
class CutEntry:
    """A cut in its home. ``cut_id`` is that of the keeps that hold it, None if there are none.
    ``until_ms`` is the time from which it may be removed, -1 if only dropping removes it.
    """

    cut_id: Annotated[str | None, maybe(HEX), "id"]
    time_ms: Natural
    until_ms: OrNone
    logs: Annotated[CutLogs | CutLogsAt, Codec(_logs_to_json, _logs_from_json), BESIDE]

    def is_over(self, now_ms: int) -> bool:
        """Returns whether its time is up."""
        return NONE < self.until_ms <= now_ms


@dataclass(frozen=True, slots=True)
class Keep:
    """A version that a cut needs, with the ``name`` and the home of the cut, so that this log's
    cleaner can look the cut up there. ``views`` gives, by format, the version of the published view
    that shows it and is kept as long.
    """

    version: Natural
    name: Text
    home: Hex
    home_url: Text
    time_ms: Natural
    until_ms: OrNone
    views: Annotated[Mapping[str, int], table(SHOWN, NATURAL)] = field(default_factory=dict)

    def is_over(self, now_ms: int) -> bool:
        """Returns whether its time is up."""
        return NONE < self.until_ms <= now_ms


Keeps = Mapping[str, Keep]
Cuts = Mapping[str, CutEntry]
Members = Mapping[str, str]
KEEPS: Final = table(HEX, record(Keep))
"""By the id of the cut."""
CUTS: Final = table(TEXT, record(CutEntry))
"""By name."""
MEMBERS: Final = table(HEX, TEXT)
"""URLs, by log id."""
KEEPS_GIVEN: Final = table(HEX, maybe(record(Keep)))
CUTS_GIVEN: Final = table(TEXT, maybe(record(CutEntry)))
MEMBERS_GIVEN: Final = table(HEX, maybe(SHOWN))


def stored_logs(store: Store, logs: CutLogs, *, new_id: Callable[[], str]) -> CutLogs | CutLogsAt:
    """Returns the logs of a cut as its entry holds them; many are first written as a document."""
    value = _LOGS.write(logs)
    if len(documents.body_json(value)) <= _LOGS_BYTES_MAX:
        return logs
    path, data = page_path(new_id()), documents.encode("page", {"logs": value})
    store.put(path, data)
    return CutLogsAt(path, len(data))


def read_logs(store: Store, logs: CutLogs | CutLogsAt) -> CutLogs:
    """Returns the logs of a cut; one GET if they are a document, FileNotFoundError if swept."""
    if not isinstance(logs, CutLogsAt):
        return logs
    body = documents.get(store, "page", logs.path, logs.size_bytes)
    with reading(f"{logs.path} of {store.url}"):
        found: CutLogs = _LOGS.read(body["logs"])
        return found
