"""Which log stands at a path (S47).

A log is its id, not its path. ``_clog/log`` names the id, and everything else of the log lies in
``_clog/<id>/``. The file is created if absent, after the log's first commit, and never rewritten:
its creation is that of the log. So a handle that was opened on a log which was deleted and
recreated cannot touch the new one: it knows the old folder only. It learns of it when

- it commits: the file of the block it committed to is gone (`committer`, K5);
- it looks for newer versions, at most `tip_tracker.CONFIRM_MS` later: ``_clog/log`` names another
  log, or its newest commit is gone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from clog.storage.clock import Clock
from clog.storage.errors import (
    CommitStateUnknownError,
    CorruptionError,
    LogReplacedError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedFormatError,
)
from clog.storage.format import documents, paths
from clog.storage.store.base import ObjectExistsError, Store, StoreRefusedError
from clog.storage.store.within import Within
from clog.storage.store.wrapping import WrappingStore

_BEFORE_IDS = ("_clog/commits/00000000000000000000.json", "_clog/latest")
"""What logs had that were written before there were ids in paths."""
_READS_MAX = 5


@dataclass(frozen=True, slots=True)
class LogFile:
    """What ``_clog/log`` says."""

    log_id: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class StandingLog:
    """The log that was found at a root, and its folder as a store."""

    root: Store
    log_id: str
    store: Store

    def check(self) -> None:
        """Raises if another log stands at the root by now, or none; one GET.

        Raises:
            LogReplacedError: another one.
            NotFoundError: none.
        """
        there = read_log_file(self.root)
        if there.log_id != self.log_id:
            raise LogReplacedError(
                f"the log at {self.root.url} was deleted and recreated since it was opened"
                f" (its id was {self.log_id}, now it is {there.log_id}); nothing was written into"
                " the new one; open it to go on"
            )

    @contextmanager
    def unless_gone(self) -> Iterator[None]:
        """Raises as `check` in place of damage that the body finds where the log does not stand
        any more; one GET.
        """
        try:
            yield
        except CorruptionError:
            self.check()
            raise


def standing_log(root: Store) -> StandingLog:
    """Returns the log at a root; one GET.

    Raises:
        NotFoundError: there is none.
        UnsupportedFormatError: it was written before format 1 was released, or by a newer clog.
    """
    log_id = read_log_file(root).log_id
    return StandingLog(root, log_id, store_of(root, log_id))


def standing_of(store: Store) -> StandingLog | None:
    """Returns the log whose folder this is, however it is wrapped; None where it is a store of its
    own. No request.
    """
    while isinstance(store, WrappingStore):
        if isinstance(store, Within):
            return StandingLog(store.inner, store.folder.removeprefix(paths.FOLDERS), store)
        store = store.inner
    return None


def store_of(root: Store, log_id: str) -> Store:
    """Returns the folder of the log with this id, as a store."""
    return Within(root, paths.folder_of(log_id))


def read_log_file(root: Store) -> LogFile:
    """Returns what ``_clog/log`` says; one GET where it is there.

    Raises:
        as `standing_log`.
    """
    where = f"{paths.LOG_FILE} of {root.url}"
    try:
        data = documents.fetch(root, "log", paths.LOG_FILE)
    except FileNotFoundError:
        _refuse_older(root)
        raise NotFoundError(
            f'no log at {root.url}; create one with Log.create or "clog create"'
        ) from None
    body = documents.decode("log", data, where=where)
    log_id, created_ms = body.get("log_id"), body.get("created_ms")
    if not paths.is_log_id(log_id) or type(created_ms) is not int:
        raise CorruptionError(f"{where} contradicts the format: log_id={log_id!r:.80}")
    assert isinstance(log_id, str)
    return LogFile(log_id, created_ms)


def create_log_file(root: Store, made: LogFile, clock: Clock) -> LogFile:
    """Creates ``_clog/log``, and returns what stands there then: ours, or that of another creator.

    Raises:
        CommitStateUnknownError: whether it was created cannot be found out now.
    """
    body = {"log_id": made.log_id, "created_ms": made.created_ms}
    data = documents.encode("log", body)
    cause: Exception | None = None
    refused: Exception | None = None
    for attempt in range(_READS_MAX):
        if attempt:
            clock.sleep_ms(10 << attempt)
        try:
            root.create(paths.LOG_FILE, data)
            return made
        except (ObjectExistsError, StoreUnavailableError) as e:
            if attempt == 0 and isinstance(e, StoreRefusedError) and e.certain:
                raise
            cause = e  # Perhaps our own, repeated by a client whose reply was lost.
            refused = e if isinstance(e, ObjectExistsError) else None
        try:
            return read_log_file(root)
        except NotFoundError:
            pass
        except StoreUnavailableError as e:
            refused, cause = None, e
    if refused is not None:
        raise CommitStateUnknownError(
            f"{paths.LOG_FILE} of {root.url} can neither be created nor read, as if a folder had"
            " its name, or another creation were under way; look what is there, and delete the"
            " folder, or create the log again"
        ) from refused
    raise CommitStateUnknownError(
        f"a log may have been created at {root.url}: {cause}; open it before you create it again"
    ) from cause


def _refuse_older(root: Store) -> None:
    for path in _BEFORE_IDS:
        try:
            root.get(path, 0, 1)
        except FileNotFoundError:
            continue
        raise UnsupportedFormatError(
            f"the log at {root.url} was written by a clog before release 0.1.0, which this one"
            " does not read; nothing was changed; pipe what the clog that wrote it prints with"
            ' "clog consume URL --json" into "clog produce NEW_URL --format jsonl" of this one'
        )
