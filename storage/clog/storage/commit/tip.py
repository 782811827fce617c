"""The tip, the newest known version of a log: which log is at a root, how to find its newest
version and follow it, and when to trust the result of a probe (COMMIT.md §4, §6).

A log's identity is its id, not its path (S47). ``_clog/log`` names the id, and all other files of
the log are in ``_clog/<id>/``. That file is created if absent, after the log's first commit, and
never rewritten: creating it creates the log. So a handle of a log that was deleted and recreated
cannot touch the new one, because it knows only the old folder. It notices when

- it commits: the file of the block it committed to is gone (`committer`, K5);
- it looks for newer versions, at most `CONFIRM_MS` later: ``_clog/log`` names another log, or its
  newest commit is gone.

The newest version is found by reading commits, whose bodies are used afterwards; nothing is listed.
From cold, with a hint H (divisible by 4), it takes at most three probes: H+2, then H+1 or H+3, then
H+4, which exists only if the hint is old. The version found was the newest at some moment since
the search began. A search does not chase concurrent commits: it gallops once, so it ends however
fast they come.

`Tip` knows the newest commit and the edits up to it (`RecentEdits`), which the next commit carries
and from which a manifest catches up. Whatever it learns replaces one value, so an interrupt leaves
it whole (S65).
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from typing import Any

from clog.storage.env import Clock, attribute, dataclass
from clog.storage.errors import (
    CommitStateUnknownError,
    CorruptionError,
    LogReplacedError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedFormatError,
    version_expired,
)
from clog.storage.format import documents
from clog.storage.format.commits import HINT_STRIDE, Commit, EditRecord, read_commit, with_columns
from clog.storage.format.documents import body_json
from clog.storage.format.manifest import mixed_histories
from clog.storage.store.contract import ObjectExistsError, Store, StoreRefusedError, Within

FOLLOW_STEPS_MAX = 4
"""A handle further behind searches from the hint instead of walking."""
TRUST_MS = 600_000
"""After this long without a look, check whether the block was closed before trusting a probe.
Commits are deleted only a day after they were the newest.
"""
CONFIRM_MS = 10_000
"""How often a handle checks that its log and its newest commit still exist: the log may have been
deleted, recreated, or replaced by a copy.
"""
VAIN_LOOKS_MAX = 64
"""After this many looks in a row that found nothing, the block is read as well, so that a poller
notices if it was closed too early.
"""
_BEFORE_IDS = ("_clog/commits/00000000000000000000.json", "_clog/latest")
"""Files of logs that were written before paths contained ids."""
_READS_MAX = 5
_PACE_VERSIONS = 16
_LEAP_MAX = 256
_SURELY = 0.8
"""If versions come evenly, at least this part of the expected ones exists."""

Moment = tuple[int, int]
"""The monotonic clock and the wall clock, in ms."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """The content of ``_clog/log``."""

    log_id: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class StandingLog:
    """The log that was found at a root, and its folder as a store."""

    root: Store
    log_id: str
    store: Store

    def check(self) -> None:
        """Raises if the root now has another log, or none; one GET."""
        there = read_log_file(self.root)
        if there.log_id != self.log_id:
            raise LogReplacedError(
                f"the log at {self.root.url} was deleted and recreated since it was opened (its"
                f" id was {self.log_id}, now it is {there.log_id}); nothing was written to the"
                " new one; open it to continue"
            )

    @contextmanager
    def unless_gone(self) -> Iterator[None]:
        """Raises what `check` raises, if the block finds damage and the log was deleted."""
        try:
            yield
        except CorruptionError:
            self.check()
            raise

    def check_there(self, version: int) -> None:
        """Raises as `check`, or if everything that ``_clog/log`` leads to is gone."""
        self.check()
        store = self.store
        # If only the file of a closed block is missing, the hint is there.
        if not (try_read(store, version) or read_block(store, version) or _read_hint(store)):
            raise _no_commits(store)


@dataclass(frozen=True, slots=True)
class Found:
    """The newest commit, and the commits read while searching, by version."""

    tip: Commit
    read: dict[int, Commit]


@dataclass(frozen=True, slots=True)
class Block:
    """The content of a block's file (FORMAT.md §7). ``ids``: of its commits, once it is closed."""

    ids: dict[int, str] | None


def standing_log(root: Store) -> StandingLog:
    """Returns the log at a root; one GET."""
    log_id = read_log_file(root).log_id
    return StandingLog(root, log_id, store_of(root, log_id))


def store_of(root: Store, log_id: str) -> Store:
    """Returns the folder of the log with this id, as a store."""
    return Within(root, documents.folder_of(log_id))


def read_log_file(root: Store) -> LogFile:
    """Returns the content of ``_clog/log``; one GET if it exists."""
    where = f"{documents.LOG_FILE} of {root.url}"
    try:
        data = documents.fetch(root, "log", documents.LOG_FILE)
    except FileNotFoundError:
        _refuse_older(root)
        from clog.storage.store.around import instead_of_log

        raise NotFoundError(f"no log at {root.url}{instead_of_log(root.url)}") from None
    body = documents.decode("log", data, where=where)
    log_id, created_ms = body.get("log_id"), body.get("created_ms")
    if not documents.is_log_id(log_id) or type(created_ms) is not int:
        raise CorruptionError(f"{where} contradicts the format: log_id={log_id!r:.80}")
    assert isinstance(log_id, str)
    return LogFile(log_id, created_ms)


def _refuse_older(root: Store) -> None:
    for path in _BEFORE_IDS:
        try:
            root.get(path, 0, 1)
        except FileNotFoundError:
            continue
        raise UnsupportedFormatError(
            f"the log at {root.url} was written by a clog older than 0.1.0, and this release"
            ' cannot read it; nothing was changed; pipe the output of "clog consume URL --json"'
            ' of the clog that wrote it into "clog produce NEW_URL --format jsonl" of this one'
        )


def create_log_file(root: Store, made: LogFile, clock: Clock) -> LogFile:
    """Creates ``_clog/log``; returns its content: ours, or that of another creator."""
    body = {"log_id": made.log_id, "created_ms": made.created_ms}
    data = documents.encode("log", body)
    cause: Exception | None = None
    refused: Exception | None = None
    for attempt in range(_READS_MAX):
        if attempt:
            clock.sleep_ms(10 << attempt)
        try:
            root.create(documents.LOG_FILE, data)
            return made
        except (ObjectExistsError, StoreUnavailableError) as e:
            if attempt == 0 and isinstance(e, StoreRefusedError) and e.certain:
                raise
            cause = e  # Perhaps our own request, repeated by a client that missed the reply.
            refused = e if isinstance(e, ObjectExistsError) else None
        try:
            return read_log_file(root)
        except NotFoundError:
            pass
        except StoreUnavailableError as e:
            refused, cause = None, e
    if refused is not None:
        raise CommitStateUnknownError(
            f"{documents.LOG_FILE} of {root.url} can neither be created nor read; a folder may"
            " have its name, or another process may be creating it; check what is there, then"
            " delete the folder, or create the log again"
        ) from refused
    raise CommitStateUnknownError(
        f"a log may have been created at {root.url}: {cause}; try to open it before you create it"
        " again"
    ) from cause


def find_newest(store: Store, *, check_block: bool = True) -> Found:
    """Returns the newest version, from cold. ``check_block``: finally checks that its block is
    open; without that, the version must not be trusted before `Tip.settle`.
    """
    hint = _read_hint(store)
    search = _Search(store)
    base = hint - hint % HINT_STRIDE
    if search.descend(base) or (base and search.descend(0)):
        found = search.found()
        if not check_block or is_closed(store, found.tip.version) is None:
            return found
    # The hint leads into deleted blocks, where only committers that slept can have left files.
    first = -1
    while True:
        before, (first, block) = first, _first_not_closed(store)
        if block is None and search.read:
            raise _block_missing(store, first)
        search = _Search(store)
        # If the block was closed and deleted since it was read, days have passed.
        if first in (0, before) or search.descend(first):
            found = search.found()
            if is_closed(store, found.tip.version) is None:
                return found


def find_newer(store: Store, known: int) -> Found:
    """Finds the newest version, given one that was the newest minutes ago, so that no block was
    closed since. At most 4 requests, plus 2·log2(d) if the hint is d versions old.
    """
    hint = _read_hint(store)
    search = _Search(store)
    if hint < known or not search.descend(hint - hint % HINT_STRIDE):
        search.descend(known - known % HINT_STRIDE)
    return search.found()


class _Search:
    """Probes forward; keeps every commit it read."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.read: dict[int, Commit] = {}

    def found(self) -> Found:
        """Returns the newest commit that was read. Raises NotFoundError if none was."""
        if not self.read:
            raise _no_commits(self.store)
        return Found(self.read[max(self.read)], self.read)

    def descend(self, base: int) -> bool:
        """Finds the newest version from ``base`` (divisible by 4) on; False if there is none."""
        if not self._has(base + 2):
            return self._has(base + 1) or self._has(base)
        if self._has(base + 3) and self._has(base + HINT_STRIDE):
            base = self._gallop(base + HINT_STRIDE)
            # Versions after base + 3 came since the search began: the next search finds them.
            self._has(base + 3 if self._has(base + 2) else base + 1)
        return True

    def _gallop(self, low: int) -> int:
        """Returns the last multiple of 4 that exists, starting from one that does."""
        step = HINT_STRIDE
        while self._has(low + step):
            low, step = low + step, step * 2
        while step > HINT_STRIDE:
            step //= 2
            if self._has(low + step):
                low += step
        return low

    def _has(self, version: int) -> bool:
        if version not in self.read:
            commit = try_read(self.store, version)
            if commit is None:
                return False
            self.read[version] = commit
        return True


def _read_hint(store: Store) -> int:
    """Returns the version that ``latest`` names, 0 if it is missing or damaged; one GET."""
    try:
        version = json.loads(store.get(documents.LATEST, 0, 1024))["version"]
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return 0  # Only a hint: a damaged one costs no more than requests.
    return version if type(version) is int and 0 <= version < 10**18 else 0


def _no_commits(store: Store) -> NotFoundError:
    return NotFoundError(
        f"the log at {store.url} has no commits: everything but {documents.LOG_FILE} was deleted,"
        " or its files are still being copied; restore them, or delete the rest"
    )


def try_read(store: Store, version: int) -> Commit | None:
    """Returns the commit of this version, None if there is none; one GET."""
    try:
        return read_commit(store, version)
    except FileNotFoundError:
        return None


def block_body(first: int, ids: dict[int, str] | None = None) -> dict[str, object]:
    """Returns the content of a block's file; only its first version while the block is open."""
    named = None if ids is None else {str(version): commit_id for version, commit_id in ids.items()}
    return {"block": first, "ids": named}


def read_block(store: Store, version: int) -> Block | None:
    """Returns the block of a version, None if it has no file; one GET."""
    path = documents.block_path(version)
    try:
        data = documents.fetch(store, "block", path)
    except FileNotFoundError:
        return None
    body = documents.decode("block", data, where=f"{path} of {store.url}")
    try:
        if (first := body["block"]) != documents.block_of(version):
            raise ValueError(f"it belongs to block {first!r:.80}")
        ids = body["ids"]
        return Block(None if ids is None else {int(v): str(i) for v, i in ids.items()})
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise CorruptionError(f"{path} of {store.url} violates the format: {e}") from e


def is_closed(store: Store, version: int) -> dict[int, str] | None:
    """Returns the commit ids of the block of a version that the caller takes for committed; None
    while the block is open. One GET. Raises CorruptionError if the block has no file: the log was
    deleted, or is damaged (`StandingLog.unless_gone`).
    """
    block = read_block(store, version)
    if block is None:
        raise _block_missing(store, version)
    return block.ids


def check_open(store: Store, version: int) -> None:
    """Raises if what was just read of a version may not be what was committed: in a closed block, a
    committer that slept may have left files, and they may fit (COMMIT.md §4). One GET.
    """
    if is_closed(store, version) is not None:
        raise version_expired(store.url, version, why=", its block is closed")


def _block_missing(store: Store, version: int) -> CorruptionError:
    path = documents.block_path(version)
    return CorruptionError(
        f"{path} of {store.url} is missing, so it is unknown which commits from version"
        f" {documents.block_of(version)} on were made; read again later if the log is still being"
        " copied, restore it from a back-up, or recover what the commits have into a copy with"
        ' "clog verify --repair"'
    )


def first_open_version(store: Store) -> int:
    """Returns the first version after the closed blocks."""
    first, block = _first_not_closed(store)
    if block is None:
        raise _block_missing(store, first)
    return first


def _first_not_closed(store: Store) -> tuple[int, Block | None]:
    """Returns the first version after the closed blocks, and its block, None if it has no file."""
    blocks: dict[int, Block | None] = {}

    def is_closed_at(at: int) -> bool:
        block = blocks[at] = read_block(store, at * documents.BLOCK_VERSIONS)
        return block is not None and block.ids is not None

    if not is_closed_at(0):
        return 0, blocks[0]
    low, step = 0, 1
    while is_closed_at(low + step):
        low, step = low + step, step * 2
    while step > 1:
        step //= 2
        if is_closed_at(low + step):
            low += step
    first = low + 1
    # A slow process may have probed it before it was made, and then seen the previous one closed.
    if blocks[first] is None:
        while is_closed_at(first):
            first += 1
    return first * documents.BLOCK_VERSIONS, blocks[first]


def edits_back_to(
    store: Store, newer: Sequence[EditRecord], first: int, read: Callable[[int], Commit]
) -> tuple[Sequence[EditRecord], int]:
    """Returns the edits from version ``first``, or an earlier one, up to the newest of ``newer``,
    and the oldest version that was read for them.

    Few commits are read, because an even version carries the edit before it and a multiple of 4 all
    edits since the snapshot. If one carries less, the rest is in the commits themselves.
    """
    records, oldest = newer, newer[-1].version
    while records[0].version > first:
        oldest = records[0].version - 1
        commit = read(oldest)
        if records[0].parent not in (None, commit.record.commit_id):
            check_open(store, oldest)
            raise mixed_histories(store.url, f"version {oldest}")
        records = (*commit.earlier, commit.record, *records)
    return records, oldest


@dataclass(frozen=True, slots=True)
class RecentEdits:
    """Edits without a gap up to a tip, reaching back about two snapshots. A value.

    Attributes:
        known: all of them, oldest first.
    """

    tip: Commit
    known: Sequence[EditRecord]
    _weights: dict[str, int] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, tip: Commit) -> "RecentEdits":
        """Returns the edits that a commit carries, and its own."""
        return cls(tip, (*tip.earlier, tip.record))

    def then(self, tip: Commit) -> "RecentEdits":
        """Returns the edits up to another, usually newer, commit. Edits that do not connect with it
        are dropped: beyond a gap, or of a version that was never committed (COMMIT.md §4).
        """
        if tip.record.commit_id == self.tip.record.commit_id:
            return self
        fresh = (*tip.earlier, tip.record)
        known = {r.version: r.commit_id for r in self.known}
        before = fresh[0].version - 1
        if tip.parent == self.tip.record.commit_id and self.known[0].version <= fresh[0].version:
            records = (*self.known, tip.record)
        elif any(known.get(r.version) == r.commit_id for r in fresh):
            records = (*(r for r in self.known if r.version <= before), *fresh)
        else:
            records = fresh
        weights, last = self._weights, self.tip.head.snapshot
        if last is not None and tip.head.snapshot != last:
            records = tuple(r for r in records if r.version > last.version) or records[-1:]
            weights = {r.commit_id: weights[r.commit_id] for r in records if r.commit_id in weights}
        return RecentEdits(tip, records, weights)

    def after(self, version: int) -> list[EditRecord] | None:
        """Returns the edits from ``version`` + 1 to the tip, None unless all are known."""
        if version < self.known[0].version - 1:
            return None
        return [record for record in self.known if record.version > version]

    def weight(self, record: EditRecord) -> int:
        """Returns the size of the edit in bytes, as JSON or as the document that holds it."""
        if record.commit_id not in self._weights:
            at = record.stored.get("edit_at")
            self._weights[record.commit_id] = at["bytes"] if at else len(body_json(record.stored))
        return self._weights[record.commit_id]


@dataclass(frozen=True, slots=True)
class _View:
    """What is known of the log, as of one moment.

    Attributes:
        commit: the newest commit.
        recent: the edits up to it.
        read: commits read while searching for it at the last opening, by version.
        is_settled: whether it is known to have been committed (`Tip.settle`).
        before_losses: the newest commit known to have been committed, if the tip won a race.
        confirmed, looked: when the tip was last seen in the store, and newer ones were looked for.
        stood_ms: when the log was last seen at its root, by the monotonic clock.
        seen_ms: when the newest commit was found, by the same clock.
        vain_looks: how many looks in a row found nothing.
        ahead: estimated versions above the tip when newer ones were looked for (`Tip.behind`).
        leapt_from: the tip before, if versions in between were skipped.
    """

    commit: Commit
    recent: RecentEdits
    read: dict[int, Commit]
    confirmed: Moment
    looked: Moment
    stood_ms: int
    seen_ms: int
    is_settled: bool = False
    before_losses: Commit | None = None
    vain_looks: int = 0
    ahead: float = 0.0
    leapt_from: EditRecord | None = None


class Tip:
    """The newest known commit of one log. Not safe for threads.

    What it knows is one value, which each step replaces at its end, so that an interrupt or another
    thread sees the value from before or after a step.

    Attributes:
        commit: the newest known commit.
        recent: the edits up to it.
        read: commits read while searching for it at the last opening, by version.
    """

    def __init__(self, log: StandingLog, *, clock: Clock) -> None:
        self.log = log
        self._store = log.store
        self._clock = clock
        stood_ms, began = clock.monotonic_ms(), self.now()
        found = find_newest(log.store, check_block=False)
        try:
            commit = self._whole(found.tip)
        except CorruptionError:
            found = find_newest(log.store)  # The hint led to files that sleeping committers left.
            commit = self._whole(found.tip)
        recent = RecentEdits.of(found.read[min(found.read)])
        self._view = _View(commit, recent, found.read, began, began, stood_ms, stood_ms)
        self._take(found, began)

    commit: Commit = attribute("_view.commit")
    recent: RecentEdits = attribute("_view.recent")
    read: dict[int, Commit] = attribute("_view.read")

    @property
    def settled(self) -> Commit | None:
        """The newest known commit, if it is certain to have been committed."""
        view = self._view
        return view.commit if view.is_settled else None

    def edits_from(self, first: int) -> list[EditRecord]:
        """Returns the edits from version ``first`` to the tip; reads the commits that carry unknown
        ones, and the file of the oldest one's block.
        """
        recent = self._view.recent
        if recent.known[0].version > first:
            read = partial(read_commit, self._store)
            known, oldest = edits_back_to(self._store, recent.known, first, read)
            check_open(self._store, oldest)
            recent = replace(recent, known=known)
            self._note(recent=recent)
        return [record for record in recent.known if record.version >= first]

    def now(self) -> Moment:
        """Returns the present moment; what is found from now on is at least as recent."""
        # The monotonic clock stops while a machine sleeps, and the wall clock may be set back.
        return self._clock.monotonic_ms(), self._clock.now_ms()

    def made(self, commit: Commit, began: Moment) -> None:
        """Takes our commit, whose creation began then, as the tip: it and all versions before it
        were committed. Its block may be closed by now if this machine slept.
        """
        self._see(
            commit, confirmed=began, looked=began, ahead=0.0, is_settled=True, before_losses=None
        )

    def lost_to(self, winner: Commit | None) -> None:
        """Takes the commit that won a race as the tip if it follows ours; otherwise searches again.
        It may be a file that a sleeping committer left in a closed block, so the tip before it
        stays the last one known to have been committed.
        """
        if winner is not None and winner.parent == self.commit.record.commit_id:
            self._see(winner, before_losses=self._view.before_losses or self.commit)
        else:
            self.open_anew()

    def refresh(self, *, steps: int | None = None) -> Commit:
        """Looks for newer versions; one GET if there is none. Returns the tip, which is at least as
        new as the newest version when the call began, or that many ``steps`` further.
        """
        self._check_standing()
        self.settle()
        was_stale = self.is_stale()
        for _ in range(steps or FOLLOW_STEPS_MAX):
            began, behind = self.now(), self.behind()
            newer = try_read(self._store, self.commit.version + 1)
            vain_looks = self._view.vain_looks + 1 if newer is None else 0
            # A walk from an old tip may reach a block that was closed in the meantime.
            is_end = was_stale and newer is None
            if is_end or self.is_stale() or vain_looks >= VAIN_LOOKS_MAX:
                began = self.now()
                if self._is_left_behind(newer):
                    self._note(vain_looks=vain_looks)
                    return self.open_anew()
                vain_looks = 0
            seen = {"looked": began, "ahead": 0.0, "vain_looks": vain_looks}
            if newer is None:
                self._note(**seen)
                self.confirm()
                return self.commit
            seen["ahead"] = _left(behind, 1)
            if newer.parent != self.commit.record.commit_id:
                self._note(**seen)
                return self.open_anew()
            self._see(newer, confirmed=began, **seen)
            if not steps and FOLLOW_STEPS_MAX < behind < math.inf:
                break  # Too far to walk.
        if steps:
            return self.commit
        began = self.now()
        try:
            found = self._found(lambda: find_newer(self._store, self.commit.version))
        except NotFoundError:  # The log is gone, or days passed between two requests.
            return self.open_anew()
        if self.is_stale():  # Days may have passed, and what was found be in a closed block.
            return self.open_anew()
        self._take(found, began)
        return self.commit

    def behind(self) -> float:
        """Returns how many versions are above the tip if they came as fast as the last ones, also
        during the last look. No request.
        """
        view = self._view
        if math.isinf(pace := self.pace()):
            return pace
        return view.ahead + (self._clock.monotonic_ms() - view.looked[0]) * pace

    def pace(self) -> float:
        """Returns at how many versions per ms the last ones came; infinite if their times stand
        still. No request.
        """
        view, last = self._view, self._view.commit.record
        first = view.recent.known[-_PACE_VERSIONS:][0]
        if view.leapt_from is not None and view.leapt_from.version < first.version:
            first = view.leapt_from
        took_ms, made = last.time_ms - first.time_ms, last.version - first.version
        none_ms = view.looked[0] - view.seen_ms  # For this long, nothing followed.
        return made / max(took_ms, none_ms) if took_ms > 0 else math.inf

    def step(self, meanwhile: Callable[[], None] | None = None) -> Commit:
        """Looks once for a newer version: the next one, or one further on if the last ones came
        fast; again, half as far, if that does not exist. Calls ``meanwhile`` during the request.
        Returns the tip.
        """
        behind = self.behind()
        ahead = self._leap(behind) if behind < _LEAP_MAX else 1
        if self.is_stale() or self._is_old(self._view.stood_ms) or (ahead == 1 and not meanwhile):
            if meanwhile:
                meanwhile()
            return self.refresh(steps=1 if behind < _LEAP_MAX else None)
        began, known = self.now(), self.commit
        look: Callable[[], Commit | None] = partial(try_read, self._store, known.version + ahead)
        if meanwhile:
            look = self._store.begin(look)
            meanwhile()
        while (found := look()) is None and ahead > 1:
            behind = ahead - 1
            ahead = self._leap(ahead / 2 / _SURELY)
            look = partial(try_read, self._store, known.version + ahead)
        if self.is_stale():  # As in `refresh`; nor does absent mean newest then.
            return self.refresh(steps=1)
        if found is None:
            self._note(looked=began, ahead=0.0)
            return known
        if ahead > 1:
            self._take(Found(found, {found.version: found}), began)
            self._note(ahead=_left(behind, ahead), leapt_from=known.record)
        elif found.parent != known.record.commit_id:
            return self.open_anew()
        else:
            self._see(found, confirmed=began, looked=began, ahead=_left(behind, 1))
        return self.commit

    def _leap(self, behind: float) -> int:
        """Returns how far ahead to look, so that the version found carries the edits up to it."""
        known = self.commit.version
        newest = known + max(1, int(_SURELY * behind))
        whole = (newest - newest % stride for stride in (HINT_STRIDE, 2))
        return next((version for version in whole if version > known), newest) - known

    def recently(self, *, settled: bool = False) -> Commit:
        """Returns the tip; looks for newer versions only if the last look is minutes old.
        ``settled``: it must be certain to have been committed.
        """
        if self.is_stale():
            return self.refresh()
        self.confirm()
        if settled:
            self.settle()
        return self.commit

    def is_recent(self, *, settled: bool = False) -> bool:
        """Returns whether `recently` would make no request."""
        view, now = self._view, self.now()
        is_due = now[0] - min(view.stood_ms, view.confirmed[0]) >= CONFIRM_MS
        return not (_is_stale(view, now) or is_due or (settled and not view.is_settled))

    def is_stale(self) -> bool:
        """Returns whether the last look is so old that the block may have been closed since."""
        return _is_stale(self._view, self.now())

    def confirm(self) -> None:
        """Raises if the log that was opened is gone (S47) or was replaced by a copy with another
        history; two GETs, at most every `CONFIRM_MS`.
        """
        self._check_standing()
        if self._is_old(self._view.confirmed[0]):
            began, behind = self.now(), self.behind()
            if self._is_there(try_read(self._store, self.commit.version)):
                self._note(confirmed=began, looked=began, ahead=_left(behind, 0))
            else:
                self.open_anew()  # Deleted with its block: there are newer versions.

    def settle(self, *, lost: bool = False) -> None:
        """Makes sure that the tip was committed; one GET, once after opening, or if a race was
        ``lost`` to it: its author may be about to notice that the log is gone. If the tip's block
        is closed, the hint led to files that sleeping committers left, so this searches again. If
        the block has no file, another handle may have left the tip in a deleted log.
        """
        if self._view.is_settled and not lost:
            return
        self._note(is_settled=False)
        if self._is_closed(self.commit.version):
            began = self.now()
            found = self._found(lambda: find_newest(self._store))
            self._take(found, began, read=found.read)
        self._note(is_settled=True, before_losses=None)

    def open_anew(self) -> Commit:
        """Searches for the newest version from the hint; one more GET, to check the history."""
        began = self.now()
        found = self._found(lambda: find_newest(self._store))
        version = self.commit.version
        self._is_there(found.read.get(version) or try_read(self._store, version))
        self._check_successor(found)
        self._take(found, began, read=found.read)
        return self.commit

    def doubt(self) -> None:
        """Makes the next look check that the log still exists."""
        self._note(stood_ms=self._clock.monotonic_ms() - CONFIRM_MS)

    def _is_left_behind(self, newer: Commit | None) -> bool:
        """Returns whether the block of the version after the tip, ``newer``, is closed."""
        after = self.commit.version + 1
        if newer is not None or after != documents.block_of(after):
            return self._is_closed(after)
        block = read_block(self._store, after)
        return block is not None and block.ids is not None

    def _is_closed(self, version: int) -> bool:
        try:
            return is_closed(self._store, version) is not None
        except CorruptionError:
            self.log.check_there(max(0, self.commit.version - 1))
            raise

    def _found(self, search: Callable[[], Found]) -> Found:
        try:
            return search()
        except (NotFoundError, CorruptionError):
            self.log.check()
            raise

    def _is_there(self, there: Commit | None) -> bool:
        """Returns whether the commit read in the tip's place is the tip; may raise as `confirm`."""
        ours = self.commit.record.commit_id
        if there is not None and there.record.commit_id == ours:
            return True
        self.log.check()
        for known in (self.commit, self._view.before_losses or self.commit):
            block = read_block(self._store, known.version)
            if block is None:
                raise _no_commits(self._store)
            if block.ids is None:
                break  # Sleeping committers leave files in closed blocks only.
            if block.ids.get(known.version) == known.record.commit_id:
                return False
        raise LogReplacedError(
            f"version {known.version} of {self._store.url} is not the one read before: the log"
            " was restored from a copy; nothing was written to it; open it again to continue"
        )

    def _check_successor(self, found: Found) -> None:
        """Raises if the version after the tip follows another one, as after a restore."""
        after = self.commit.version + 1
        commit = found.read.get(after)
        if commit is None and found.tip.version > after:
            commit = try_read(self._store, after)
        is_other = commit is not None and commit.parent != self.commit.record.commit_id
        # In a closed block, a sleeping committer may have left the tip.
        if is_other and not self._is_closed(self.commit.version):
            self.log.check()  # Old handles may have left both in a deleted log.
            raise mixed_histories(self._store.url, f"version {self.commit.version}")

    def _check_standing(self) -> None:
        """Raises if ``_clog/log`` names another log, whose leftovers may look like news."""
        if self._is_old(self._view.stood_ms):
            self.log.check()
            self._note(stood_ms=self._clock.monotonic_ms())

    def _is_old(self, then_ms: int) -> bool:
        return self._clock.monotonic_ms() - then_ms >= CONFIRM_MS

    def _note(self, **changed: Any) -> None:
        self._view = replace(self._view, **changed)

    def _see(self, commit: Commit, **changed: Any) -> None:
        """Takes a newer commit as the tip; no request if its parent is the tip before."""
        recent, whole = self.recent.then(commit), self._whole(commit, self.commit)
        seen_ms = self._clock.monotonic_ms()
        self._note(commit=whole, recent=recent, seen_ms=seen_ms, **changed)

    def _take(self, found: Found, began: Moment, **changed: Any) -> None:
        # Commits read while searching carry edits, too, which may connect the known with the tip.
        try:
            whole = self._whole(found.tip, self.commit)
        except CorruptionError:
            # After a sleep, the version may be swept with its columns; only the newest counts.
            began = self.now()
            found, before = self._found(lambda: find_newest(self._store)), found
            if found.tip.record.commit_id == before.tip.record.commit_id:
                raise
            changed["read"] = found.read
            whole = self._whole(found.tip, self.commit)
        recent = self.recent
        last = recent.known[-1].version
        for version in sorted(found.read):
            if version > last:
                recent = recent.then(found.read[version])
        self._note(
            commit=whole,
            recent=recent.then(whole),
            before_losses=None,
            confirmed=began,
            looked=began,
            seen_ms=self._clock.monotonic_ms(),
            ahead=0.0,
            **changed,
        )

    def _whole(self, commit: Commit, *known: Commit) -> Commit:
        """Returns the commit with all columns of its head; one GET if no known one has them."""
        columns = [(one.version, one.head.partitions) for one in known]
        try:
            head = with_columns(self._store, commit.head, *columns)
        except FileNotFoundError as e:
            self.log.check()
            raise CorruptionError(f"version {commit.version} needs a missing file: {e}") from e
        return commit if head is commit.head else replace(commit, head=head)


def _is_stale(view: _View, now: Moment) -> bool:
    then = view.looked
    return max(now[0] - then[0], now[1] - then[1]) > TRUST_MS


def _left(behind: float, seen: int) -> float:
    """Returns how many versions are still above the tip after ``seen`` more."""
    return 0.0 if math.isinf(behind) else max(0.0, behind - seen)
