"""Group commit: appends that wait on one handle at the same time become one commit (COMMIT.md §2,
decision 0010).

Q1. An append queues what prepares it, and waits until it is done or nobody leads.
Q2. Who finds that nobody leads does: takes the group, the appends that have waited longest, up to a
    bound, and commits their edits as one. Each is prepared against the head as those before it
    leave it, so offsets, rolls and duplicates are as if they had been committed one after the
    other.
Q3. Each append gets its own part, or its own error: one that is refused fails alone, and only the
    newest version refuses. What is said of an append (it is a duplicate) holds once the group is
    committed: then its tip was, and those before it in the group are. Where that fails it is asked
    again; where nothing was to be committed, it fails as well.
Q4. An outcome that is unknown is told to all that were in the commit. A leader that is interrupted
    before it began to commit leaves the others in the queue: the next one leads.

No threads of its own, no waiting for company: a lone append is a group of one, and costs what it
did. Leading is for order only: commits are serialised by the handle's lock.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
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


@dataclass(slots=True, eq=False)
class _Waiting:
    """One append, until it has an outcome."""

    prepare: Prepare[NothingToCommit]
    chunks: int
    outcome: Appended | NothingToCommit | BaseException | None = None


class AppendQueue:
    """The appends of one handle. Safe for threads.

    Args:
        commit: commits what a function prepares (`Handle.commit`).
    """

    def __init__(self, commit: _Commit) -> None:
        self._commit = commit
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._is_led = False
        forks.register(self)

    def after_fork(self) -> None:
        """Forgets, in a forked child, the appends of threads that are not there."""
        self._changed = threading.Condition()
        self._waiting = deque()
        self._is_led = False

    def append(self, prepare: Prepare[_Nothing], *, chunks: int) -> Appended | _Nothing:
        """Commits an append of so many chunks, perhaps together with others; returns its own part,
        or what ``prepare`` returned in its place.

        Raises:
            what ``prepare`` raised, and as `Committer.commit`.
        """
        mine = _Waiting(prepare, chunks)
        with self._changed:
            self._waiting.append(mine)
        try:
            while mine.outcome is None:
                self._lead_or_wait(mine)
        except BaseException:
            with self._changed:
                if mine in self._waiting:  # its caller is gone
                    self._waiting.remove(mine)
            raise
        if isinstance(mine.outcome, BaseException):
            raise mine.outcome
        return cast("Appended | _Nothing", mine.outcome)

    def _lead_or_wait(self, mine: _Waiting) -> None:
        group = _Group(())
        leads = False
        try:
            with self._changed:
                self._changed.wait_for(lambda: mine.outcome is not None or not self._is_led)
                if mine.outcome is not None:
                    return
                leads = self._is_led = True
                group = _Group(self._first())
            group.commit(self._commit)
        finally:
            if leads:
                with self._changed:
                    self._is_led = False
                    self._waiting = deque(one for one in self._waiting if one.outcome is None)
                    self._changed.notify_all()

    def _first(self) -> list[_Waiting]:
        """Returns the next group. They stay in the queue until they have an outcome, so that none
        is lost where the leader is interrupted.
        """
        group: list[_Waiting] = []
        chunks = 0
        for one in islice(self._waiting, GROUP_APPENDS_MAX):
            chunks += one.chunks
            if group and chunks > GROUP_CHUNKS_MAX:
                break
            group.append(one)
        return group


@dataclass(slots=True)
class _Group:
    """Appends on their way to one commit.

    Attributes:
        accepted: those that are in the commit as it was prepared last, with their edits.
        declined: what was said of others.
        refusal: what a member was refused with last; of an older tip, perhaps.
        final: a refusal holds: the tip was looked for since.
    """

    members: Sequence[_Waiting]
    accepted: list[tuple[_Waiting, Edit]] = field(default_factory=list)
    declined: list[tuple[_Waiting, NothingToCommit | Exception]] = field(default_factory=list)
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
        except BaseException as e:
            if self.accepted:
                self._fail(_unknown(e))
            raise
        else:
            for one, said in self.declined:
                one.outcome = said
            if isinstance(done, Commit):
                for one, edit in self.accepted:
                    one.outcome = Appended(done.version, edit)

    def prepare(self, tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        """Returns the edits of all members that have one, as one."""
        self.accepted, self.declined = [], []
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
        self.accepted, self.declined = accepted, declined
        return _joined([edit for _, edit in accepted]) if accepted else NothingToCommit()

    def _fail(self, error: Exception) -> None:
        """Tells an error of the commit to those in it; others, of whom something else was said, are
        asked again. To all where none was in it: nobody knows whether what was said is so.
        """
        told = error
        declined = {id(one) for one, _ in self.declined} if self.accepted else set()
        for one in self.members:
            if id(one) not in declined:
                one.outcome, told = told, _like(error)


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


def _unknown(cause: BaseException) -> CommitStateUnknownError:
    return CommitStateUnknownError(
        "this append was part of a commit whose thread was interrupted"
        f" ({type(cause).__name__}), and its outcome is unknown; read the log before you repeat it"
    )


def _like(error: Exception) -> Exception:
    """Returns an error for another thread: what is raised collects the trace of its raiser."""
    other = copy(error)
    other.__cause__ = error
    return other
