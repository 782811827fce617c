"""The tip, the newest version of a log that one knows: which log stands at a root, where its newest
version is, and how to follow it and believe what a probe says (COMMIT.md §4, §6).

A log is its id, not its path (S47). ``_clog/log`` names the id, and everything else of the log lies
in ``_clog/<id>/``. The file is created if absent, after the log's first commit, and never
rewritten: its creation is that of the log. So a handle that was opened on a log which was deleted
and recreated cannot touch the new one: it knows the old folder only. It learns of it when

- it commits: the file of the block it committed to is gone (`committer`, K5);
- it looks for newer versions, at most `CONFIRM_MS` later: ``_clog/log`` names another log, or its
  newest commit is gone.

The newest version is found by reads of commits whose bodies are of use afterwards; nothing is
listed. Cold, from a hint H (divisible by 4), it takes at most three probes: H+2, then H+1 or H+3,
then H+4, which is there only when the hint is old. What is found was the newest at some moment
since the search began. Others commit meanwhile, and a search does not chase them: it gallops once,
so it ends however fast they are.

`Tip` knows the newest commit, and the edits up to it (`RecentEdits`): the next commit carries them
along, and a manifest catches up by them. What it learns replaces one value.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from typing import Any

from clog.storage.env import Clock, dataclass
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
"""A handle further behind than this searches from the hint instead of walking."""
TRUST_MS = 600_000
"""After so long without a look, ask whether the block was closed before a probe is trusted. Commits
are deleted only a day after they were newest.
"""
CONFIRM_MS = 10_000
"""After so long a handle looks whether its log still stands, and whether its newest commit is still
there: the log may have been deleted, recreated, or replaced by a copy.
"""
VAIN_LOOKS_MAX = 64
"""After so many looks in a row that found nothing the block is asked for as well: where it was
closed too early, whoever polls finds that out.
"""
_BEFORE_IDS = ("_clog/commits/00000000000000000000.json", "_clog/latest")
"""What logs had that were written before there were ids in paths."""
_READS_MAX = 5
_PACE_VERSIONS = 16
_LEAP_MAX = 256
_SURELY = 0.8
"""Where versions come evenly this part of those that are expected is there."""

Moment = tuple[int, int]
"""By the monotonic clock and by the wall clock, in ms."""


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
        """Raises if another log stands at the root by now, or none; one GET."""
        there = read_log_file(self.root)
        if there.log_id != self.log_id:
            raise LogReplacedError(
                f"the log at {self.root.url} was deleted and recreated since it was opened"
                f" (its id was {self.log_id}, now it is {there.log_id}); nothing was written into"
                " the new one; open it to go on"
            )

    @contextmanager
    def unless_gone(self) -> Iterator[None]:
        """Raises as `check` in place of damage that the body finds where the log is gone."""
        try:
            yield
        except CorruptionError:
            self.check()
            raise

    def check_there(self, version: int) -> None:
        """Raises as `check`, or if all is gone that ``_clog/log`` leads to."""
        self.check()
        store = self.store
        # Where all but the file of a closed block is there, the hint is.
        if not (try_read(store, version) or read_block(store, version) or _read_hint(store)):
            raise _no_commits(store)


@dataclass(frozen=True, slots=True)
class Found:
    """The newest commit, and the commits read on the way to it, by version."""

    tip: Commit
    read: dict[int, Commit]


@dataclass(frozen=True, slots=True)
class Block:
    """What the file of a block says (FORMAT.md §7). ``ids``: of its commits, once it is closed."""

    ids: dict[int, str] | None


def standing_log(root: Store) -> StandingLog:
    """Returns the log at a root; one GET."""
    log_id = read_log_file(root).log_id
    return StandingLog(root, log_id, store_of(root, log_id))


def store_of(root: Store, log_id: str) -> Store:
    """Returns the folder of the log with this id, as a store."""
    return Within(root, documents.folder_of(log_id))


def read_log_file(root: Store) -> LogFile:
    """Returns what ``_clog/log`` says; one GET where it is there."""
    where = f"{documents.LOG_FILE} of {root.url}"
    try:
        data = documents.fetch(root, "log", documents.LOG_FILE)
    except FileNotFoundError:
        _refuse_older(root)
        raise NotFoundError(
            f'no log at {root.url}; create one with Log.create or "clog create"'
        ) from None
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
            f"the log at {root.url} was written by a clog before release 0.1.0, which this one"
            " does not read; nothing was changed; pipe what the clog that wrote it prints with"
            ' "clog consume URL --json" into "clog produce NEW_URL --format jsonl" of this one'
        )


def create_log_file(root: Store, made: LogFile, clock: Clock) -> LogFile:
    """Creates ``_clog/log``; returns what stands there then: ours, or that of another creator."""
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
            f"{documents.LOG_FILE} of {root.url} can neither be created nor read, as if a folder"
            " had its name, or another creation were under way; look what is there, and delete the"
            " folder, or create the log again"
        ) from refused
    raise CommitStateUnknownError(
        f"a log may have been created at {root.url}: {cause}; open it before you create it again"
    ) from cause


def find_newest(store: Store, *, check_block: bool = True) -> Found:
    """Returns the newest version, from cold. ``check_block``: asks last whether its block is open;
    who does not ask must not believe the version before he does (`Tip.settle`).
    """
    hint = _read_hint(store)
    search = _Search(store)
    base = hint - hint % HINT_STRIDE
    if search.descend(base) or (base and search.descend(0)):
        found = search.found()
        if not check_block or is_closed(store, found.tip.version) is None:
            return found
    # The hint leads into deleted blocks, where only files of committers that slept can be.
    first = -1
    while True:
        before, (first, block) = first, _first_not_closed(store)
        if block is None and search.read:
            raise _block_missing(store, first)
        search = _Search(store)
        # Where the block was closed and deleted since it was looked at, days went by.
        if first in (0, before) or search.descend(first):
            return search.found()


def find_newer(store: Store, known: int) -> Found:
    """Finds the newest version, given one that was it minutes ago: no block since was closed. At
    most 4 requests, and 2·log2(d) where the hint is d versions old.
    """
    hint = _read_hint(store)
    search = _Search(store)
    if hint < known or not search.descend(hint - hint % HINT_STRIDE):
        search.descend(known - known % HINT_STRIDE)
    return search.found()


class _Search:
    """Probing forward; keeps every commit it read."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.read: dict[int, Commit] = {}

    def found(self) -> Found:
        """Returns the newest that was read. Raises NotFoundError where none was."""
        if not self.read:
            raise _no_commits(self.store)
        return Found(self.read[max(self.read)], self.read)

    def descend(self, base: int) -> bool:
        """Finds the newest version from ``base`` (divisible by 4) on; False when there is none."""
        if not self._has(base + 2):
            return self._has(base + 1) or self._has(base)
        if self._has(base + 3) and self._has(base + HINT_STRIDE):
            base = self._gallop(base + HINT_STRIDE)
            # What came after base + 3 came since the search began: it is for the next one.
            self._has(base + 3 if self._has(base + 2) else base + 1)
        return True

    def _gallop(self, low: int) -> int:
        """Returns the last multiple of 4 that is there, from one that is."""
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
    """Returns the version that ``latest`` names, 0 where it is missing or damaged; one GET."""
    try:
        version = json.loads(store.get(documents.LATEST, 0, 1024))["version"]
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return 0  # Only a hint: a damaged one costs requests, nothing else.
    return version if type(version) is int and 0 <= version < 10**18 else 0


def _no_commits(store: Store) -> NotFoundError:
    return NotFoundError(
        f"the log at {store.url} has no commits: it was deleted but for {documents.LOG_FILE}, or"
        " its files are being copied; restore them, or delete what is left"
    )


def try_read(store: Store, version: int) -> Commit | None:
    """Returns the commit of this version, None where there is none; one GET."""
    try:
        return read_commit(store, version)
    except FileNotFoundError:
        return None


def block_body(first: int, ids: dict[int, str] | None = None) -> dict[str, object]:
    """Returns what the file of a block holds: nothing but its first version while it is open."""
    named = None if ids is None else {str(version): commit_id for version, commit_id in ids.items()}
    return {"block": first, "ids": named}


def read_block(store: Store, version: int) -> Block | None:
    """Returns the block that holds a version; None: it has no file. One GET."""
    path = documents.block_path(version)
    try:
        data = documents.fetch(store, "block", path)
    except FileNotFoundError:
        return None
    body = documents.decode("block", data, where=f"{path} of {store.url}")
    try:
        if (first := body["block"]) != documents.block_of(version):
            raise ValueError(f"it is of block {first!r:.80}")
        ids = body["ids"]
        return Block(None if ids is None else {int(v): str(i) for v, i in ids.items()})
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise CorruptionError(f"{path} of {store.url} violates the format: {e}") from e


def is_closed(store: Store, version: int) -> dict[int, str] | None:
    """Returns the commit ids of the block of a version that was committed, as far as the caller can
    say; None while it is open. One GET. Raises CorruptionError where the block has no file: the log
    was deleted, or is damaged (`StandingLog.unless_gone`).
    """
    block = read_block(store, version)
    if block is None:
        raise _block_missing(store, version)
    return block.ids


def check_open(store: Store, version: int) -> None:
    """Raises if what was just read of a version may not be what was committed: once its block is
    closed, a committer that slept may have left files in it, and they may fit (COMMIT.md §4). One
    GET.
    """
    if is_closed(store, version) is not None:
        raise version_expired(store.url, version, why=", its block is closed")


def _block_missing(store: Store, version: int) -> CorruptionError:
    path = documents.block_path(version)
    return CorruptionError(
        f"{path} of {store.url} is missing, so that nobody can say which commits from version"
        f" {documents.block_of(version)} on were made; restore it from a back-up, or write what the"
        ' commits tell into a copy with "clog verify --repair"'
    )


def first_open_version(store: Store) -> int:
    """Returns the first version after the closed blocks, of which the newest is none."""
    first, block = _first_not_closed(store)
    if block is None:
        raise _block_missing(store, first)
    return first


def _first_not_closed(store: Store) -> tuple[int, Block | None]:
    """Returns the first version after the closed blocks, and its block; None: no file."""
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
    # Who was held up may have looked for it before it came, and then seen the one before it closed.
    if blocks[first] is None:
        while is_closed_at(first):
            first += 1
    return first * documents.BLOCK_VERSIONS, blocks[first]


def edits_back_to(
    store: Store, newer: Sequence[EditRecord], first: int, read: Callable[[int], Commit]
) -> tuple[Sequence[EditRecord], int]:
    """Returns the edits from version ``first`` on, or earlier ones, up to the newest of ``newer``,
    and the oldest version that was read for them.

    An even version carries the one before it, a multiple of 4 all since the snapshot: so few are
    read. Where one carries less, what it lacks is in the commits themselves.
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
    """Edits without gap up to a tip, reaching back about two snapshots. A value.

    Attributes:
        known: all that are here, oldest first.
    """

    tip: Commit
    known: Sequence[EditRecord]
    _weights: dict[str, int] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, tip: Commit) -> "RecentEdits":
        """Returns those that a commit carries, and its own."""
        return cls(tip, (*tip.earlier, tip.record))

    def then(self, tip: Commit) -> "RecentEdits":
        """Returns those up to another commit, as a rule a newer one. What does not connect with it
        is dropped: a gap, or a version that was never committed (COMMIT.md §4).
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
        """Returns the edits from ``version`` + 1 to the tip where all are here, else None."""
        if version < self.known[0].version - 1:
            return None
        return [record for record in self.known if record.version > version]

    def weight(self, record: EditRecord) -> int:
        """Returns the bytes of the edit, as JSON or as the document that holds it."""
        if record.commit_id not in self._weights:
            at = record.stored.get("edit_at")
            self._weights[record.commit_id] = at["bytes"] if at else len(body_json(record.stored))
        return self._weights[record.commit_id]


@dataclass(frozen=True, slots=True)
class _View:
    """What is known of the log, all of it as it was at one moment.

    Attributes:
        commit: the newest.
        recent: the edits up to it.
        read: commits read on the way to it at the last opening, by version.
        is_settled: whether it is known to have been committed (`Tip.settle`).
        before_losses: the newest that is known to have been committed, where the tip came first in
            a race.
        confirmed, looked: when the tip was last seen in the store, and newer ones were looked for.
        stood_ms: when the log was last seen to stand there, by the monotonic clock.
        seen_ms: when the newest was found, by the same.
        vain_looks: how many looks in a row have found nothing.
        ahead: how many versions there were above the tip when newer ones were looked for, as far as
            the pace of the last ones tells (`Tip.behind`).
        leapt_from: the tip before, where versions between were passed over.
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
    """The newest commit of one log that is known here. Not safe for threads.

    What it knows is one value, and each step ends by replacing it: an interrupt comes before that
    or after it, and so does what another thread sees.
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
            found = find_newest(log.store)  # The hint led among files of committers that slept.
            commit = self._whole(found.tip)
        recent = RecentEdits.of(found.read[min(found.read)])
        self._view = _View(commit, recent, found.read, began, began, stood_ms, stood_ms)
        self._take(found, began)

    @property
    def commit(self) -> Commit:
        """The newest that is known."""
        return self._view.commit

    @property
    def recent(self) -> RecentEdits:
        """The edits up to it."""
        return self._view.recent

    @property
    def read(self) -> dict[int, Commit]:
        """Commits read on the way to it at the last opening, by version."""
        return self._view.read

    def edits_from(self, first: int) -> list[EditRecord]:
        """Returns the edits from version ``first`` to the tip; reads the commits that carry what is
        not known, and the file of the oldest one's block.
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
        """Returns the present moment, as old as which all is that is found from now on."""
        # The monotonic clock stands still while a machine sleeps, the wall clock may be set back.
        return self._clock.monotonic_ms(), self._clock.now_ms()

    def made(self, commit: Commit, began: Moment) -> None:
        """Takes a commit of ours as the tip, whose creation began then: it was committed, and so
        were all before it. Its block may be closed by now, where we slept meanwhile.
        """
        self._see(
            commit, confirmed=began, looked=began, ahead=0.0, is_settled=True, before_losses=None
        )

    def lost_to(self, winner: Commit | None) -> None:
        """Takes the commit that came first in a race as the tip, where it goes on from it; else
        searches anew. It may be a file that a committer who slept left in a closed block: the tip
        before it is the last that is known to have been committed.
        """
        if winner is not None and winner.parent == self.commit.record.commit_id:
            self._see(winner, before_losses=self._view.before_losses or self.commit)
        else:
            self.open_anew()

    def refresh(self, *, steps: int | None = None) -> Commit:
        """Looks for newer versions; one GET when there is none. Returns the tip, which is at least
        as new as the newest version was when the call began, or so many ``steps`` further.
        """
        self._check_standing()
        self.settle()
        was_stale = self.is_stale()
        for _ in range(steps or FOLLOW_STEPS_MAX):
            began, behind = self.now(), self.behind()
            newer = try_read(self._store, self.commit.version + 1)
            self._note(vain_looks=self._view.vain_looks + 1 if newer is None else 0)
            # Who walks on from an old tip may come to where the block was closed meanwhile.
            is_end = was_stale and newer is None
            if is_end or self.is_stale() or self._view.vain_looks >= VAIN_LOOKS_MAX:
                began = self.now()
                if self._is_left_behind(newer):
                    return self.open_anew()
                self._note(vain_looks=0)
            self._note(looked=began, ahead=0.0 if newer is None else _left(behind, 1))
            if newer is None:
                self.confirm()
                return self.commit
            if newer.parent != self.commit.record.commit_id:
                return self.open_anew()
            self._see(newer, confirmed=began)
            if not steps and FOLLOW_STEPS_MAX < behind < math.inf:
                break  # It would only walk.
        if steps:
            return self.commit
        began = self.now()
        try:
            found = self._found(lambda: find_newer(self._store, self.commit.version))
        except NotFoundError:  # Either the log is gone, or days went by between two requests.
            return self.open_anew()
        self._take(found, began)
        return self.commit

    def behind(self) -> float:
        """Returns how many versions there are above the tip, if they came as fast as the last ones,
        also while it was looked for them. No request.
        """
        view = self._view
        if math.isinf(pace := self.pace()):
            return pace
        return view.ahead + (self._clock.monotonic_ms() - view.looked[0]) * pace

    def pace(self) -> float:
        """Returns how many versions came in each ms, of the last ones; infinite where their times
        stand still. No request.
        """
        view, last = self._view, self._view.commit.record
        first = view.recent.known[-_PACE_VERSIONS:][0]
        if view.leapt_from is not None and view.leapt_from.version < first.version:
            first = view.leapt_from
        took_ms, made = last.time_ms - first.time_ms, last.version - first.version
        none_ms = view.looked[0] - view.seen_ms  # For so long nothing followed.
        return made / max(took_ms, none_ms) if took_ms > 0 else math.inf

    def step(self, meanwhile: Callable[[], None] | None = None) -> Commit:
        """Looks once for a newer version, the next, or one further on where the pace of the last
        ones tells so; again, half as far, where that is not there. What is to be done ``meanwhile``
        is done while the look is under way. Returns the tip.
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
        """Returns how far to look ahead: to a version that carries the edits up to it."""
        known = self.commit.version
        newest = known + max(1, int(_SURELY * behind))
        whole = (newest - newest % stride for stride in (HINT_STRIDE, 2))
        return next((version for version in whole if version > known), newest) - known

    def recently(self, *, settled: bool = False) -> Commit:
        """Returns the tip; looks for newer versions only where the last look is minutes old.
        ``settled``: it must have been committed for sure.
        """
        if self.is_stale():
            return self.refresh()
        self.confirm()
        if settled:
            self.settle()
        return self.commit

    def is_recent(self, *, settled: bool = False) -> bool:
        """Tells whether `recently` would ask the store for nothing."""
        view = self._view
        is_due = self._is_old(view.stood_ms) or self._is_old(view.confirmed[0])
        return not (self.is_stale() or is_due or (settled and not view.is_settled))

    def is_stale(self) -> bool:
        """Tells whether the last look is so old that the block may have been closed since."""
        then, now = self._view.looked, self.now()
        return max(now[0] - then[0], now[1] - then[1]) > TRUST_MS

    def confirm(self) -> None:
        """Raises if the log that was opened does not stand there any more (S47), or was replaced by
        a copy of another history; two GETs, at most each `CONFIRM_MS`.
        """
        self._check_standing()
        if self._is_old(self._view.confirmed[0]):
            began, behind = self.now(), self.behind()
            if self._is_there(try_read(self._store, self.commit.version)):
                self._note(confirmed=began, looked=began, ahead=_left(behind, 0))
            else:
                self.open_anew()  # Deleted with its block: there are newer versions.

    def settle(self, *, lost: bool = False) -> None:
        """Makes sure that the tip was committed; one GET, once after opening, or where it was
        ``lost`` to: then it is another's, who may be about to learn that its log is gone. Where its
        block is closed, the hint led among files of committers that slept: searches anew. Where it
        has no file, the tip may be what another handle left of a log that was deleted.
        """
        if self._view.is_settled and not lost:
            return
        self._note(is_settled=False)
        if self._is_closed(self.commit.version):
            began = self.now()
            found = self._found(lambda: find_newest(self._store))
            self._take(found, began, read=found.read)
        self._note(is_settled=True)

    def open_anew(self) -> Commit:
        """Searches the newest version from the hint on; one GET more, to see that it goes on."""
        began = self.now()
        found = self._found(lambda: find_newest(self._store))
        version = self.commit.version
        self._is_there(found.read.get(version) or try_read(self._store, version))
        self._check_successor(found)
        self._take(found, began, read=found.read)
        return self.commit

    def doubt(self) -> None:
        """Makes the next look ask whether the log still stands."""
        self._note(stood_ms=self._clock.monotonic_ms() - CONFIRM_MS)

    def _is_left_behind(self, newer: Commit | None) -> bool:
        """Tells whether the block of the version after the tip, ``newer``, is closed."""
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
        """Tells whether what is read in the tip's place is the tip; may raise as `confirm`."""
        ours = self.commit.record.commit_id
        if there is not None and there.record.commit_id == ours:
            return True
        self.log.check()
        known = self._view.before_losses or self.commit
        block = read_block(self._store, known.version)
        if block is None:
            raise _no_commits(self._store)
        if block.ids is None or block.ids.get(known.version) != known.record.commit_id:
            raise LogReplacedError(
                f"version {known.version} of {self._store.url} is not the one that was read"
                " before: the log was restored from a copy; nothing was written into it; open"
                " it to go on"
            )
        return False

    def _check_successor(self, found: Found) -> None:
        """Raises if the version after the tip goes on from another one, as after a restore."""
        after = self.commit.version + 1
        commit = found.read.get(after)
        if commit is None and found.tip.version > after:
            commit = try_read(self._store, after)
        is_other = commit is not None and commit.parent != self.commit.record.commit_id
        # In a closed block the tip may be what a committer left there that slept.
        if is_other and not self._is_closed(self.commit.version):
            self.log.check()  # Both may be what old handles left of a log that was deleted.
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
        """Takes a newer commit as the tip; no request where its parent is the one before."""
        recent, whole = self.recent.then(commit), self._whole(commit, self.commit)
        seen_ms = self._clock.monotonic_ms()
        self._note(commit=whole, recent=recent, seen_ms=seen_ms, **changed)

    def _take(self, found: Found, began: Moment, **changed: Any) -> None:
        # Those read on the way carry edits, too: with them, what is known already may connect with
        # the tip.
        try:
            whole = self._whole(found.tip, self.commit)
        except CorruptionError:
            # Who slept may find them swept, with the version; only the newest may be damaged.
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
        """Returns the commit with all columns of its head; a GET where none known leads to them."""
        columns = [(one.version, one.head.partitions) for one in known]
        try:
            head = with_columns(self._store, commit.head, *columns)
        except FileNotFoundError as e:
            self.log.check()
            raise CorruptionError(f"version {commit.version} needs what is gone: {e}") from e
        return commit if head is commit.head else replace(commit, head=head)


def _left(behind: float, seen: int) -> float:
    """Returns how many versions are still above the tip, after those that were ``seen``."""
    return 0.0 if math.isinf(behind) else max(0.0, behind - seen)
