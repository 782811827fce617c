"""Group commit: appends that wait on one handle at the same time become one commit (COMMIT.md §2,
decision 0010).

Q1. An append queues what prepares it, and waits for the lock of the queue. Where it is done by
    then, that was all.
Q2. Who holds the lock leads: takes the group, the appends that have waited longest, up to a bound,
    and commits their edits as one. Each is prepared against the head as those before it leave it,
    so offsets, rolls and duplicates are as if they had been committed one after the other.
Q3. Each append gets its own part, or its own error: one that is refused fails alone, and only the
    newest version refuses. What is said of an append (it is a duplicate) holds once the group is
    committed: then its tip was, and those before it in the group are. Where that fails it is asked
    again; where nothing was to be committed, it fails as well.
Q4. An outcome that is unknown is told to all that were in the commit. What a group says of its
    members is one value, which is replaced by a single step: from when they are prepared until
    their outcome is known it says that this is unknown. So wherever a leader is interrupted, those
    that were on their way to the store are told so, none of them is committed twice, and the others
    are still in the queue: the next one that holds the lock leads.

No threads of its own, no waiting for company: a lone append is a group of one, and costs what it
did. Nothing says that somebody leads but the lock, which an interrupt releases (`forks`).
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TypeVar, cast

from clog.storage import forks
from clog.storage.commit.committer import REFUSALS, NothingToCommit, Prepare
from clog.storage.errors import CommitStateUnknownError
from clog.storage.format.commits import Commit
from clog.storage.format.edits import Append, AppendedBy, Edit
from clog.storage.format.head import advance

GROUP_APPENDS_MAX = 64
"""Appends in one commit: as many writers may enter the head at once."""
GROUP_CHUNKS_MAX = 4096
"""Chunks in one commit, but for an append that has more: a commit stays one small PUT."""

_Nothing = TypeVar("_Nothing", bound=NothingToCommit)
_Commit = Callable[[Prepare[NothingToCommit]], Commit | NothingToCommit]


@dataclass(frozen=True, slots=True)
class Appended:
    """One append's own part of the commit that holds it."""

    version: int
    edit: Edit


_UNKNOWN = CommitStateUnknownError(
    "this append was part of a commit whose thread was interrupted, and its outcome is unknown;"
    " read the log before you repeat it"
)
_Outcome = Appended | NothingToCommit | Exception


@dataclass(slots=True, eq=False)
class _Waiting:
    """One append, until it has an outcome; ``group``: the last one it was in."""

    prepare: Prepare[NothingToCommit]
    chunks: int
    group: "_Group | None" = None

    @property
    def outcome(self) -> _Outcome | None:
        return None if self.group is None else self.group.outcomes.get(self)


class AppendQueue:
    """The appends of one handle. Safe for threads.

    Args:
        commit: commits what a function prepares (`Handle.commit`).
    """

    def __init__(self, commit: _Commit) -> None:
        self._commit = commit
        self._lock = forks.lock()
        self._waiting: dict[_Waiting, None] = {}
        self._is_led = False
        forks.register(self)

    def after_fork(self) -> None:
        """Forgets, in a forked child, the appends of threads that are not there."""
        self._waiting, self._is_led = {}, False

    def append(self, prepare: Prepare[_Nothing], *, chunks: int) -> Appended | _Nothing:
        """Commits an append of so many chunks, perhaps together with others; returns its own part,
        or what ``prepare`` returned in its place.

        Raises:
            what ``prepare`` raised, and as `Committer.commit`.
        """
        mine = _Waiting(prepare, chunks)
        try:
            self._waiting[mine] = None
            with self._lock:
                self._lead(mine)
        finally:
            self._waiting.pop(mine, None)  # One step, in C: no interrupt comes before it.
        outcome = mine.outcome
        if isinstance(outcome, Exception):
            raise copy(outcome) if outcome is _UNKNOWN else outcome
        return cast("Appended | _Nothing", outcome)

    def _lead(self, mine: _Waiting) -> None:
        """Commits groups until an append has its outcome; others than its own only where no append
        is under way around this one, as a signal's handler may append, too.
        """
        is_inner, self._is_led = self._is_led, True
        try:
            while mine.outcome is None:
                group = _Group([mine] if is_inner else self._first())
                for one in group.members:
                    one.group = group
                group.commit(self._commit)
        finally:
            self._is_led = is_inner

    def _first(self) -> list[_Waiting]:
        """Returns the next group. They stay in the queue until their own threads take them out, so
        that none is lost where the leader is interrupted.
        """
        group: list[_Waiting] = []
        chunks = 0
        for one in list(self._waiting):  # In one step, as others queue meanwhile.
            if one.outcome is not None:
                continue
            chunks += one.chunks
            if group and (chunks > GROUP_CHUNKS_MAX or len(group) == GROUP_APPENDS_MAX):
                break
            group.append(one)
        return group


@dataclass(slots=True)
class _Group:
    """Appends on their way to one commit.

    Attributes:
        accepted: those that are in the commit as it was prepared last, with their edits.
        declined: what was said of others.
        outcomes: of those that are not to be asked again; replaced as a whole.
        refusal: what a member was refused with last; of an older tip, perhaps.
        final: a refusal holds: the tip was looked for since.
    """

    members: Sequence[_Waiting]
    accepted: list[tuple[_Waiting, Edit]] = field(default_factory=list)
    declined: list[tuple[_Waiting, NothingToCommit | Exception]] = field(default_factory=list)
    outcomes: Mapping[_Waiting, _Outcome] = field(default_factory=dict)
    refusal: Exception | None = None
    final: bool = False

    def commit(self, commit: _Commit) -> None:
        """Commits the group, and gives each member its outcome; none to those to be asked again."""
        try:
            try:
                done = commit(self.prepare)
            except REFUSALS as e:
                if len(self.members) == 1 or e is not self.refusal:
                    raise  # What became of a commit is no refusal: it would be made twice.
                self.final = True
                done = commit(self.prepare)
        except Exception as e:  # noqa: BLE001 - its members raise it, each in its own thread
            self._fail(e)
        else:
            told: dict[_Waiting, _Outcome] = dict(self.declined)
            if isinstance(done, Commit):
                told.update((one, Appended(done.version, edit)) for one, edit in self.accepted)
            self.outcomes = told

    def prepare(self, tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        """Returns the edits of all members that have one, as one."""
        self.accepted, self.declined, self.outcomes = [], [], {}
        accepted: list[tuple[_Waiting, Edit]] = []
        declined: list[tuple[_Waiting, NothingToCommit | Exception]] = []
        objects: set[str] = set()
        for one in self.members:
            try:
                edit = one.prepare(tip, time_ms)
            except Exception as e:
                if isinstance(e, REFUSALS) and not self.final:
                    self.refusal = e
                    raise
                declined.append((one, e))
                continue
            if isinstance(edit, NothingToCommit):
                declined.append((one, edit))
                continue
            mine = {c.object.path for _, c in edit.add.chunks} if edit.add else set()
            if objects & mine:
                continue  # An edit names an object once: this one has to wait.
            objects |= mine
            accepted.append((one, edit))
            head = advance(tip.head, edit, version=tip.version + 1, time_ms=time_ms)
            tip = replace(tip, head=head)
        edit = _joined([edit for _, edit in accepted]) if accepted else NothingToCommit()
        self.accepted, self.declined = accepted, declined
        self.outcomes = dict.fromkeys((one for one, _ in accepted), _UNKNOWN)  # Q4
        return edit

    def _fail(self, error: Exception) -> None:
        """Tells an error of the commit to those in it; others, of whom something else was said, are
        asked again. To all where none was in it: nobody knows whether what was said is so.
        """
        declined = {one for one, _ in self.declined} if self.accepted else set()
        told = [one for one in self.members if one not in declined]
        self.outcomes = {one: _like(error) if n else error for n, one in enumerate(told)}


def _joined(edits: Sequence[Edit]) -> Edit:
    adds = [edit.add or Append(()) for edit in edits]
    before = accumulate((len(add.by_object()) for add in adds), initial=0)
    return Edit(
        add=Append(
            tuple(pair for add in adds for pair in add.chunks),
            tuple(roll for add in adds for roll in add.rolls),
        ),
        writers=tuple(
            _shifted(by, objects)
            for edit, objects in zip(edits, before, strict=False)
            for by in edit.writers
        ),
    )


def _shifted(by: AppendedBy, objects: int) -> AppendedBy:
    return replace(by, first=by.first + objects, next=by.next + objects)


def _like(error: Exception) -> Exception:
    """Returns an error for another thread: what is raised collects the trace of its raiser."""
    other = copy(error)
    other.__cause__ = error
    return other
