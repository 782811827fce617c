"""Following a log: the newest version one knows, and how to believe what a probe says (COMMIT.md
§4, §6).

`TipTracker` knows the *tip*, the newest commit, and the edits up to it (`RecentEdits`): the next
commit carries them along, and a manifest catches up by them. What it learns replaces one value.

Whoever works on a log that somebody deletes writes into a folder that nobody looks into: pages, an
edit, a snapshot, objects, and the commit itself. `withdraw` deletes all of that again, and nothing
else, as what else is there may be a log that is being restored (COMMIT.md §1).
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from clog.storage.commit.versions import (
    FOLLOW_STEPS_MAX,
    Found,
    StandingLog,
    check_open,
    edits_back_to,
    find_newer,
    find_newest,
    is_closed,
    no_commits,
    read_block,
    read_hint,
    try_read,
)
from clog.storage.env import Clock
from clog.storage.errors import (
    CorruptionError,
    LogReplacedError,
    NotFoundError,
    StoreUnavailableError,
)
from clog.storage.format import documents
from clog.storage.format.commits import Commit, EditRecord, read_commit
from clog.storage.format.documents import body_json
from clog.storage.format.head import with_columns
from clog.storage.format.snapshots import mixed_histories
from clog.storage.format.transactions import PositionsAt
from clog.storage.store.contract import Store, WrappingStore

TRUST_MS = 600_000
"""After so long without a look, ask whether the block was closed before a probe is trusted. Commits
are deleted only a day after they were newest.
"""
CONFIRM_MS = 10_000
"""After so long a handle looks whether its log still stands, and whether its newest commit is still
there: the log may have been deleted, recreated, or replaced by a copy.
"""
Moment = tuple[int, int]
"""By the monotonic clock and by the wall clock, in ms."""
VAIN_LOOKS_MAX = 64
"""After so many looks in a row that found nothing the block is asked for as well: where it was
closed too early, whoever polls finds that out.
"""


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
        if tip.parent == self.tip.record.commit_id:
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
        """Returns the edits from ``version`` + 1 to the tip where all of them are here, else None.
        No request.
        """
        if version < self.known[0].version - 1:
            return None
        return [record for record in self.known if record.version > version]

    def back_to(self, store: Store, first: int) -> "RecentEdits":
        """Returns those from version ``first`` on, or earlier ones; reads the commits that carry
        what is not here, and the file of the oldest one's block.

        Raises:
            VersionExpiredError: the block was closed meanwhile.
            CorruptionError: a version is not the one that the newer ones go on from.
        """
        if self.known[0].version <= first:
            return self
        known, oldest = edits_back_to(store, self.known, first, partial(read_commit, store))
        check_open(store, oldest)
        return replace(self, known=known)

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
        tip: the newest commit.
        recent: the edits up to it.
        read: commits read on the way to it at the last opening, by version.
        is_settled: whether it is known to have been committed (`TipTracker.settle`).
        before_losses: the newest that is known to have been committed, where the tip came first in
            a race.
        confirmed, looked: when the tip was last seen in the store, and newer ones were looked for.
        stood_ms: when the log was last seen to stand there, by the monotonic clock.
        vain_looks: how many looks in a row have found nothing.
    """

    tip: Commit
    recent: RecentEdits
    read: dict[int, Commit]
    confirmed: Moment
    looked: Moment
    stood_ms: int
    is_settled: bool = False
    before_losses: Commit | None = None
    vain_looks: int = 0


class TipTracker:
    """The newest commit of one log that is known here. Not safe for threads.

    What it knows is one value, and each step ends by replacing it: an interrupt comes before that
    or after it, and so does what another thread sees.
    """

    def __init__(self, log: StandingLog, *, clock: Clock) -> None:
        self.log = log
        self.store = log.store
        self._clock = clock
        stood_ms, began = clock.monotonic_ms(), self.now()
        found = find_newest(log.store, check_block=False)
        try:
            tip = self._whole(found.tip)
        except CorruptionError:
            found = find_newest(log.store)  # The hint led among files of committers that slept.
            tip = self._whole(found.tip)
        recent = RecentEdits.of(found.read[min(found.read)])
        self._view = _View(tip, recent, found.read, began, began, stood_ms)
        self._take(found, began)

    @property
    def tip(self) -> Commit:
        """The newest commit that is known."""
        return self._view.tip

    @property
    def recent(self) -> RecentEdits:
        """The edits up to it."""
        return self._view.recent

    @property
    def read(self) -> dict[int, Commit]:
        """Commits read on the way to it at the last opening, by version."""
        return self._view.read

    @property
    def is_settled(self) -> bool:
        """Whether it is known to have been committed (`settle`)."""
        return self._view.is_settled

    def see_winner(self, winner: Commit) -> None:
        """Takes the commit that came first in a race as the tip. It may be a file that a committer
        who slept left in a closed block: the tip before it is the last that is known to have been
        committed.
        """
        self._see(winner, before_losses=self._view.before_losses or self.tip)

    def made(self, commit: Commit, began: Moment) -> None:
        """Takes a commit of ours as the tip, whose creation began then: it was committed, and so
        were all before it. Its block may be closed by now, where we slept meanwhile.
        """
        self._see(commit, confirmed=began, looked=began, is_settled=True, before_losses=None)

    def lost(self) -> None:
        """Notes that the tip is now another's, who may be about to learn that its log is gone."""
        self._note(is_settled=False)

    def edits_from(self, first: int) -> list[EditRecord]:
        """Returns the edits from version ``first`` to the tip; reads those that are not known
        (`RecentEdits.back_to`).
        """
        recent = self.recent.back_to(self.store, first)
        self._note(recent=recent)
        return [record for record in recent.known if record.version >= first]

    def now(self) -> Moment:
        """Returns the present moment: what is found from now on is as old as that, however long
        this process sleeps before it is told.
        """
        # The monotonic clock stands still while a machine sleeps, the wall clock may be set back.
        return self._clock.monotonic_ms(), self._clock.now_ms()

    def refresh(self) -> Commit:
        """Looks for newer versions; one GET when there is none. Returns the tip, which is at least
        as new as the newest version was when the call began.
        """
        self._check_standing()
        self.settle()
        was_stale = self.is_stale()
        for _ in range(FOLLOW_STEPS_MAX):
            began = self.now()
            newer = try_read(self.store, self.tip.version + 1)
            self._note(vain_looks=self._view.vain_looks + 1 if newer is None else 0)
            # Who walks on from an old tip may come to where the block was closed meanwhile.
            is_end = was_stale and newer is None
            if is_end or self.is_stale() or self._view.vain_looks >= VAIN_LOOKS_MAX:
                began = self.now()
                if self._is_left_behind(newer):
                    self.open_anew()
                    return self.tip
                self._note(vain_looks=0)
            self._note(looked=began)
            if newer is None:
                self.confirm()
                return self.tip
            if newer.parent != self.tip.record.commit_id:
                self.open_anew()
                return self.tip
            self._see(newer, confirmed=began)
        began = self.now()
        self._take(self._found(lambda: find_newer(self.store, self.tip.version)), began)
        return self.tip

    def confirm(self) -> None:
        """Raises if the log that was opened does not stand there any more (S47); two GETs, at most
        each `CONFIRM_MS`.

        Raises:
            LogReplacedError: another log, or another history of this one, stands there.
            NotFoundError: the log was deleted.
        """
        self._check_standing()
        if self._is_old(self._view.confirmed[0]):
            began = self.now()
            if self._is_there(try_read(self.store, self.tip.version)):
                self._note(confirmed=began, looked=began)
            else:
                self.open_anew()  # Deleted with its block: there are newer versions.

    def open_anew(self) -> None:
        """Searches the newest version from the hint on; one GET more, to see that it goes on from
        the tip that is known.

        Raises:
            as `confirm`.
        """
        began = self.now()
        found = self._found(lambda: find_newest(self.store))
        version = self.tip.version
        self._is_there(found.read.get(version) or try_read(self.store, version))
        self._check_successor(found)
        self._take(found, began, read=found.read)

    def settle(self) -> None:
        """Makes sure that the tip was committed; one GET, once after opening. Where its block is
        closed, the hint led among files of committers that slept: searches anew. Where it has no
        file, the tip may be what another handle left of a log that was deleted.

        Raises:
            LogReplacedError, NotFoundError: it was.
            CorruptionError: it was not.
        """
        if self.is_settled:
            return
        if self._is_closed(self.tip.version):
            began = self.now()
            found = self._found(lambda: find_newest(self.store))
            self._take(found, began, read=found.read)
        self._note(is_settled=True)

    def _is_left_behind(self, newer: Commit | None) -> bool:
        """Tells whether the block of the version after the tip is closed; before its first commit
        it has no file. ``newer``: what was found there.
        """
        after = self.tip.version + 1
        if newer is not None or after != documents.block_of(after):
            return self._is_closed(after)
        block = read_block(self.store, after)
        return block is not None and block.ids is not None

    def _is_closed(self, version: int) -> bool:
        try:
            return is_closed(self.store, version) is not None
        except CorruptionError:
            check_there(self.log, max(0, self.tip.version - 1))
            raise

    def _found(self, search: Callable[[], Found]) -> Found:
        try:
            with self.log.unless_gone():
                return search()
        except NotFoundError:
            self.log.check()
            raise

    def _is_there(self, there: Commit | None) -> bool:
        """Tells whether what is read in the tip's place is the tip; else it was deleted with its
        block, or this raises as `confirm`.
        """
        ours = self.tip.record.commit_id
        if there is not None and there.record.commit_id == ours:
            return True
        self.log.check()
        known = self._view.before_losses or self.tip
        block = read_block(self.store, known.version)
        if block is None:
            raise no_commits(self.store)
        if block.ids is None or block.ids.get(known.version) != known.record.commit_id:
            raise LogReplacedError(
                f"version {known.version} of {self.store.url} is not the one that was read"
                " before: the log was restored from a copy; nothing was written into it; open"
                " it to go on"
            )
        return False

    def _check_successor(self, found: Found) -> None:
        """Raises if the version after the tip, which is there, goes on from another one: who had
        the log open while it was restored has written above the versions that the copy had.
        """
        after = self.tip.version + 1
        commit = found.read.get(after)
        if commit is None and found.tip.version > after:
            commit = try_read(self.store, after)
        is_other = commit is not None and commit.parent != self.tip.record.commit_id
        # In a closed block the tip may be what a committer left there that slept.
        if is_other and not self._is_closed(self.tip.version):
            self.log.check()  # Both may be what old handles left of a log that was deleted.
            raise mixed_histories(self.store.url, f"version {self.tip.version}")

    def _check_standing(self) -> None:
        """Raises if ``_clog/log`` names another log: what others who hold the old one have left in
        its folder may look like news, and the file of a block that they began like an open one.
        """
        if self._is_old(self._view.stood_ms):
            self.log.check()
            self._note(stood_ms=self._clock.monotonic_ms())

    def doubt(self) -> None:
        """Makes the next look ask whether the log still stands."""
        self._note(stood_ms=self._clock.monotonic_ms() - CONFIRM_MS)

    def is_due(self) -> bool:
        """Tells whether `confirm` would look."""
        view = self._view
        return self._is_old(view.stood_ms) or self._is_old(view.confirmed[0])

    def is_stale(self) -> bool:
        """Tells whether the last look is so old that the block may have been closed since."""
        then, now = self._view.looked, self.now()
        return max(now[0] - then[0], now[1] - then[1]) > TRUST_MS

    def _is_old(self, then_ms: int) -> bool:
        return self._clock.monotonic_ms() - then_ms >= CONFIRM_MS

    def _note(self, **changed: Any) -> None:
        self._view = replace(self._view, **changed)

    def _see(self, tip: Commit, **changed: Any) -> None:
        """Takes a newer commit as the tip; no request where its parent is the one before."""
        recent = self.recent.then(tip)
        self._note(tip=self._whole(tip, self.tip), recent=recent, **changed)

    def _take(self, found: Found, began: Moment, **changed: Any) -> None:
        # Those read on the way carry edits, too: with them, what is known already may connect with
        # the tip.
        try:
            whole = self._whole(found.tip, self.tip)
        except CorruptionError:
            # Who slept may find them swept, with the version; only the newest may be damaged.
            began = self.now()
            found, before = self._found(lambda: find_newest(self.store)), found
            if found.tip.record.commit_id == before.tip.record.commit_id:
                raise
            changed["read"] = found.read
            whole = self._whole(found.tip, self.tip)
        recent = self.recent
        last = recent.known[-1].version
        for version in sorted(found.read):
            if version > last:
                recent = recent.then(found.read[version])
        self._note(
            tip=whole,
            recent=recent.then(whole),
            before_losses=None,
            confirmed=began,
            looked=began,
            **changed,
        )

    def _whole(self, commit: Commit, *known: Commit) -> Commit:
        """Returns the commit with all columns of its head; one GET where they do not follow from
        those of a commit that is known.

        Raises:
            CorruptionError: their document is not there.
            as `confirm`.
        """
        columns = [(one.version, one.head.partitions) for one in known]
        try:
            head = with_columns(self.store, commit.head, *columns)
        except FileNotFoundError as e:
            self.log.check()
            raise CorruptionError(f"version {commit.version} needs what is gone: {e}") from e
        return commit if head is commit.head else replace(commit, head=head)


class NotedWrites(WrappingStore):
    """Passes everything on, and knows what was written.

    Attributes:
        written: the paths, since somebody last emptied it.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.written: list[str] = []

    def put(self, path: str, data: bytes | memoryview) -> None:
        self.written.append(path)
        self.inner.put(path, data)

    def create(self, path: str, data: bytes) -> None:
        self.inner.create(path, data)
        self.written.append(path)  # What is there already is another's.


def withdraw(log: StandingLog, tip: Commit, written: Iterable[str]) -> None:
    """Deletes files that nobody will commit, where the log in whose folder they are does not stand
    any more, as far as possible; ``tip`` is its newest version that is known. None to 4 GET where
    it stands, and nothing else.
    """
    try:
        check_there(log, tip.version)
    except NotFoundError:
        for path in dict.fromkeys(written):
            with suppress(StoreUnavailableError):
                log.store.delete(path)
    except StoreUnavailableError:
        pass  # Nobody can say; the caller's own error is told.


def check_there(log: StandingLog, version: int) -> None:
    """Raises if the log is gone, or all of it that ``_clog/log`` leads to.

    Raises:
        LogReplacedError: another log stands at the root (S47).
        NotFoundError: none does, or nothing is left of it but ``_clog/log``.
    """
    log.check()
    store = log.store
    # Where all but the file of a closed block is there, the hint is.
    if not (try_read(store, version) or read_block(store, version) or read_hint(store)):
        raise no_commits(store)


def files_of(commit: Commit) -> list[str]:
    """Returns the paths of a commit, and of what its edit names that was written before."""
    found = [documents.commit_path(commit.version)]
    if (edit := commit.record.made) is None:
        return found
    chunks = [c for _, c in edit.add.chunks] if edit.add is not None else []
    chunks += [c for r in edit.replace for c in r.chunks]
    found += (c.object.path for c in chunks)
    states = (by.entry.transaction for by in edit.writers)
    positions = (state.positions for state in states if state is not None)
    found += (at.path for at in positions if isinstance(at, PositionsAt))
    return found
