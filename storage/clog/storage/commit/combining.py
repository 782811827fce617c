"""Many writers on one log, and nobody in charge: who meets rivals stops racing and *proposes*, and
whoever commits next takes along all that was proposed (COMMIT.md §14, FORMAT.md §21, decision
0052). The model in ``tests/models/combining.py`` has its rules; without any of them it breaks.

An *author* is a handle in one process: an id drawn at random, anew in a forked child. Its
appends under contention are its *operations* 1, 2, 3 …, one outstanding at a time; a group of
appends that wait together is one. Its *answer*, applied or withdrawn, stands in the head from the
commit on that gives it, for some time; the author learns it there.

F1. *Propose.* After a lost race, or while others combine: the objects are written as ever; what a
    commit must know of them is posted under a name with the *stamp*, a version at which the
    operation was known not to be applied.
F2. *Wait*, and follow what is committed. A few of those who wait list who else does; the first of
    them, in an order that is drawn for the version, combines, and the next one in its place where
    nothing comes of it. This decides nothing.
F3. *Combine.* List the newest proposals, take those that are eligible, in turn, each prepared upon
    the head as those before it leave it; what the head refuses is left out, and nothing is said of
    it. Any commit does so while writers combine, the cleaner's too.
F4. *Learn.* The head answers: done. It does not: not applied so far, as long as no answer is
    forgotten that came after the last look; else nobody can say. An operation whose stamp is old is
    posted anew, under its number.
    Who cannot propose what it commits, the cleaner among them, asks for a *turn* after a lost race:
    a proposal of that kind, upon which who combines waits once.
F5. *Give up* by a commit that withdraws it, where its own head refuses what was posted. What can
    neither be committed nor withdrawn is told to be unknown; an interrupt makes no requests. Then
    the author's next commit, of whatever kind, ends what may still be taken.

An answer counts only in a version that was committed for sure, as a duplicate does (COMMIT.md §1,
§4). Deleting a proposal is always safe: it is left out, and its author posts it anew, or commits
it.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import Any, Protocol

from clog.storage.commit.committer import (
    LOSSES_MAX,
    REFUSALS,
    RIVAL_MS,
    Committer,
    LostRaceError,
    NothingToCommit,
    Prepare,
    is_on_disk,
)
from clog.storage.commit.proposals import (
    APPEND,
    ELIGIBLE_MS,
    TURN,
    AppendRequest,
    Proposal,
    Proposed,
    Waits,
    encode_proposal,
    is_small,
    joined,
    paths_of,
    read_proposal,
    waits_of,
)
from clog.storage.commit.tip import Tip, try_read
from clog.storage.env import Clock, Ids, dataclass, register
from clog.storage.errors import (
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    NotFoundError,
    StoreUnavailableError,
)
from clog.storage.format.answers import Answer, Answered, Combined, Combining
from clog.storage.format.commits import Commit, Edit, Head, advance, edit_of, read_commit
from clog.storage.format.documents import PROPOSALS, proposal_of
from clog.storage.format.log_info import PROPOSALS as FEATURE
from clog.storage.store.contract import (
    ObjectExistsError,
    Store,
    StoredObject,
    StoreRefusedError,
    ahead,
)

CLOCKS_MS = 900_000
"""So far may clocks differ (COMMIT.md, K2)."""
ANSWERS_MAX = 1000
"""Answers in a head: some 60 KB."""
ANSWERED_VERSIONS = 64
ANSWERED_MS = 60_000
"""An answer is kept for so many versions, and for so long; the time gives way to `ANSWERS_MAX`."""
FORGOTTEN_MS = 3_600_000
"""So old no answer is kept, after however few versions: a quiet log is to have a small head."""
RECENT_VERSIONS = 16
"""Who combines was answered by one of the last so many commits: their times stand still where a
clock has taken them ahead.
"""
COMBINED_CHUNKS_MAX = 4096
"""Chunks that a commit takes along."""
_READ_BYTES_MAX = 1 << 20
"""Bytes of proposals that are read for one commit: of those of one small object some 1,500."""
_NAMES_MAX = (0, 2000, 1000)
"""Names that one LIST is to show, in two pages or one, of stamps that differ in so many digits."""
_NEAR, _NEAR_ON_DISK = 10, 100
_FOUND_MS, _NEAR_MAX = 3_000, (_NEAR, 3 * _NEAR, 10 * _NEAR)
"""Where versions come fast a proposal is found for so long, as its author may be slow; as far as
few LISTs show stamps that differ in so many digits."""
_REPOST_AFTER = 100
"""Versions after its stamp at which an operation is posted anew, at the latest."""
_CALLS_MAX = 128
"""Proposals that are read at once."""
_NEARLY = 8
"""One of so many proposals may be late."""
_LATE = 2.0
"""So much of the time that combining takes is between those who wait and do not list at once."""
_OFTEN, _SELDOM = 8, 3
"""Such a part of the time that combining takes is between two looks: of those who are likely to
list next, and of the others.
"""
_INSTEAD = 0.75
"""After such a part of it each of those who wait combines in place of the one before him."""
_LATE_MAX = 4.0
"""After so many times as long as combining takes all look: then most of those who were expected do
not wait."""
_BEHIND = 0.5
"""Who is likely behind by so many versions looks for them before he looks who else waits."""
_CYCLE_MS_MAX = 4_000
_TURN_VERSIONS = 8
"""Who asked for a turn asks again after so many versions."""
_PAUSE_MS_MAX, _SLOW_MS_MAX = 2_000, 10_000
_UNREADABLE = (ClogError, FileNotFoundError)


@dataclass(frozen=True, slots=True)
class Author:
    """A handle of this process as others know it: its operations up to ``number`` are used;
    ``owes``: one of them may still be taken along by somebody, and nobody waits for it.
    """

    id: str
    number: int = 0
    owes: bool = False


@dataclass(frozen=True, slots=True)
class Told(NothingToCommit):
    """An operation was applied by the commit of a version, with this edit, which is empty where it
    was swept; or it was withdrawn.
    """

    version: int
    is_applied: bool
    edit: Edit = field(default_factory=Edit)


class NotAsPostedError(CommitConflictError):
    """What was posted cannot be committed as it was posted."""


def recent_answers(tip: Commit) -> list[Answer]:
    """Returns the answers of the last 10 s before the newest commit, of the last versions."""
    answers = () if tip.head.combined is None else tip.head.combined.authors
    first_ms, first = tip.record.time_ms - RIVAL_MS, tip.version - RECENT_VERSIONS
    return [answer for answer in answers if answer.time_ms >= first_ms and answer.version > first]


def is_crowded(tip: Commit, now_ms: int) -> bool:
    """Tells whether writers combine at this moment: the newest commit is of the last 10 s, and two
    authors or more were answered in the 10 s and the 16 versions before it.
    """
    if tip.head.combined is None or now_ms - tip.record.time_ms > RIVAL_MS:
        return False
    return len(recent_answers(tip)) > 1


def first_after(
    before: Combined, coming: Sequence[Answered], *, version: int, time_ms: int, least: int
) -> int:
    """Returns up to which version the commit ``version`` forgets answers, as far as it may: it
    keeps those of 64 versions and of 60 s, but none of an hour ago, and what bears the stamp
    ``least``. The time gives way where the ``coming`` answers would make them too many.
    """
    newest, ancient_ms = version - ANSWERED_VERSIONS, time_ms - FORGOTTEN_MS
    may_go = [
        a
        for a in before.authors
        if a.version <= least and (a.version <= newest or a.time_ms <= ancient_ms)
    ]
    old = [a.version for a in may_go if a.time_ms <= time_ms - ANSWERED_MS]
    over = len({*(a.author for a in before.authors), *(a.author for a in coming)}) - ANSWERS_MAX
    if over > len(old):
        old = sorted(a.version for a in may_go)[:over]
    return max([before.first, *old])


def _share(author: str, version: int) -> float:
    """Returns a number below 1 that is drawn for an author and a version, the same by all."""
    return ((int(author, 16) * (2 * version + 1)) & ((1 << 64) - 1)) / (1 << 64)


class Appends(Protocol):
    """Appends that wait together (`handle`)."""

    def prepare(self, tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        """Returns their edits as one, given the tip."""
        ...

    def proposed(self) -> tuple[Proposed, ...] | None:
        """Returns those that were prepared last, for others to commit; None where they cannot."""
        ...

    def post(self) -> None:
        """Notes that others may commit them."""
        ...

    def withdraw(self) -> None:
        """Notes that nobody can but who appends them."""
        ...


class Operation:
    """One operation of an author, until it is answered: appends that wait together.

    Attributes:
        author, number: which one.
        since: the version at which it began.
        unapplied_at: the last version at which it was known not to be applied.
        posted: the names under which it was posted, the last until which time.
        appends: what was posted.
        is_proven: whether an answer counts before a version follows the one that gives it.
    """

    def __init__(
        self,
        author: Author,
        tip: Commit,
        group: Appends,
        *,
        url: str,
        is_proven: bool,
    ) -> None:
        self.author, self.number = author.id, author.number
        self.since = self.unapplied_at = tip.version
        self.posted: list[str] = []
        self.until_ms = 0
        self.group, self.appends = group, group.proposed() or ()
        self._url, self.is_proven = url, is_proven

    def answer(self, tip: Commit) -> Answer | None:
        """Returns its answer at a version; None where it was not applied by then. Raises
        CommitStateUnknownError where nobody can say any more.
        """
        combined = tip.head.combined or Combined()
        found = combined.of(self.author)
        if found is not None and found.number == self.number:
            return found
        if found is not None and found.number > self.number:
            raise self.unknown("a later one of its author was answered")
        if combined.first > self.unapplied_at:
            raise self.unknown(
                f"it was last seen undecided at version {self.unapplied_at}, and answers up to"
                f" version {combined.first} are forgotten"
            )
        return None

    def prepare(self, tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        """Returns the edit that applies it, where it has no answer yet."""
        if (told := self._told(tip)) is not None:
            return told
        edit = self.group.prepare(tip, time_ms)
        if isinstance(edit, NothingToCommit) or self.group.proposed() != self.appends:
            raise NotAsPostedError(
                f"an append to {self._url} changed while it waited; append again"
            )
        return replace(edit, combined=self._answered(is_applied=True))

    def withdraw(self, tip: Commit, _time_ms: int) -> Edit | NothingToCommit:
        """Returns the edit that withdraws it, where it has no answer yet."""
        told = self._told(tip)
        return Edit(combined=self._answered(is_applied=False)) if told is None else told

    def unknown(self, why: object) -> CommitStateUnknownError:
        """Makes the error of an operation of which nobody can say what became of it."""
        return CommitStateUnknownError(
            f"the outcome of an append to {self._url} that others may commit is unknown: {why};"
            " read the log before you repeat it"
        )

    def _told(self, tip: Commit) -> Edit | Told | None:
        found = self.answer(tip)
        if found is None:
            return None
        if found.version == tip.version and not self.is_proven:
            return Edit()  # Believed once a later version follows the one that says so.
        return Told(found.version, found.is_applied)

    def _answered(self, *, is_applied: bool) -> Combining:
        return Combining(0, (Answered(self.author, self.number, is_applied),))


class Combiner:
    """Proposes the appends of one handle, and takes along those of others. Not safe for threads.

    Attributes:
        owes: whether the next commit may have to end an operation of this author.
    """

    def __init__(self, committer: Committer, tip: Tip, *, clock: Clock, ids: Ids) -> None:
        self._committer = committer
        self._tip = tip
        self._store: Store = tip.log.store
        self._clock, self._ids = clock, ids
        self._cycle_ms = 0.0
        self._may_post = True
        self._author: Author | None = None
        self.owes = self._waits = False
        self._known: dict[str, Proposal | None] = {}
        self._seen: tuple[int, list[StoredObject]] | None = None
        self._honoured: set[str] = set()
        self._pause_ms = 0.0
        self._asked_at = -_TURN_VERSIONS
        register(self)

    def after_fork(self) -> None:
        """Forgets, in a forked child, the author that its parent is."""
        self._author, self.owes, self._waits, self._known = None, False, False, {}
        self._committer.known_as(self._ids.new_id())

    def append(self, group: Appends, *, lost: bool) -> Commit | NothingToCommit:
        """Commits appends, by whoever does so first; ``lost``: a race for the tip was just lost."""
        while True:
            op = self._begun(group, lost=lost)
            if op is None:
                return self._committer.commit(group.prepare, operation=APPEND)
            self._waits = True
            try:
                done = self._committed(op, lost=lost)
            except NotFoundError:
                self._committer.withdraw(op.posted)
                raise
            finally:
                self._waits = False
            if done is not None and not (isinstance(done, Told) and not done.is_applied):
                return done
            group.withdraw()

    def with_others(self, tip: Commit, edit: Edit, time_ms: int, *, lost: bool) -> Edit:
        """Returns an edit with what others proposed, while writers combine, and where a race for
        the tip was ``lost``: else who only races, and is faster, lets nobody in. With the end of
        what this author owes; and forgets what is old enough (F3, F5).
        """
        head, combined = tip.head, tip.head.combined
        is_given = (
            edit.reached or edit.reached_after or (edit.add is not None and edit.add.is_given)
        )
        if edit.reset_times or is_given or FEATURE not in head.log.features:
            return edit
        mine = () if edit.combined is None else edit.combined.authors
        if not mine:
            mine = self._owed(combined)
        edits, answers, least = [edit], [*mine], tip.version
        before = combined or Combined()
        if lost or edit.combined is not None or is_crowded(tip, time_ms):
            taken, least = self._taken(tip, edit, time_ms, answering=len(mine))
            edits += [made for _, made in taken]
            answers += [Answered(p.author, p.number, is_applied=True) for p, _ in taken]
        first = first_after(before, answers, version=tip.version + 1, time_ms=time_ms, least=least)
        if not answers and first == before.first:
            return edit
        told = Combining(first if first > before.first else 0, tuple(answers))
        return replace(joined(edits), combined=told)

    def is_crowded(self, tip: Commit) -> bool:
        """Tells whether writers combine at this moment."""
        return is_crowded(tip, self._time_ms(tip))

    def waits(self) -> Waits:
        """Returns how long those wait who proposed something near the tip; one LIST, or two."""
        tip = self._tip.commit
        files = self._files(tip, looks=False, whole=True) or ()
        return waits_of(files, tip.head.combined, now_ms=self._clock.now_ms())

    def end(self, keys: Collection[tuple[str, str]]) -> None:
        """Withdraws what is pending of writers, given as kind and id, as far as a LIST shows any,
        and what this author owes (H-W15). Whoever waits for it still appends it anew.
        """

        def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
            ended = [Answered(*operation, is_applied=False) for operation in self._of(keys, tip)]
            ended += self._owed(tip.head.combined)
            return Edit(combined=Combining(0, tuple(ended))) if ended else NothingToCommit()

        if not self._waits and FEATURE in self._tip.commit.head.log.features:
            self._committer.commit(prepare, operation="sequence")

    def _of(self, keys: Collection[tuple[str, str]], tip: Commit) -> Iterator[tuple[str, int]]:
        """Yields author and number of what is pending; LISTs, a GET for each proposal."""
        files = self._files(tip, looks=False, whole=True) or ()
        there = sorted(self._newest(files, tip).values(), key=lambda found: found.path)
        sizes = accumulate(found.size_bytes for found in there)
        placed = zip((size // _READ_BYTES_MAX for size in sizes), there, strict=True)
        for _, some in groupby(placed, key=itemgetter(0)):
            paths = [found.path for _, found in some]
            self._known = {path: self._known[path] for path in paths if path in self._known}
            fresh = [path for path in paths if path not in self._known]
            self._fetch(fresh, tip.head.log.partitions, whole=True)
            known = (one for one in self._known.values() if one is not None and one.is_of(keys))
            yield from [(one.author, one.number) for one in known]

    def ask_for_a_turn(self, tip: Commit, *, takes_ms: int) -> bool:
        """Asks those who combine to let a version pass, where any do; the commit ends that."""
        if self._waits or not self.is_crowded(tip):
            return False
        if tip.version - self._asked_at >= _TURN_VERSIONS:
            self._asked_at = tip.version
            asks = self._proposal(self._next_author(), tip, stamp=tip.version, kind=TURN)
            self._put(replace(asks, takes_ms=takes_ms))
        return True

    def _owed(self, combined: Combined | None) -> tuple[Answered, ...]:
        if (author := self._author) is None or not author.owes or self._waits:
            return ()
        known = None if combined is None else combined.of(author.id)
        if known is not None and known.number >= author.number:
            self._author = replace(author, owes=False)
            self.owes = False
            return ()
        return (Answered(author.id, author.number, is_applied=False),)

    # F1, F2, F4, F5: this author's own operation.

    def _begun(self, group: Appends, *, lost: bool) -> Operation | None:
        """Returns what is to be proposed; None where it has to be committed as ever."""
        if self._waits:
            return None
        tip = self._tip.commit
        if not lost and self._tip.behind() >= self._near / 2:
            tip = self._tip.step()
        if FEATURE not in tip.head.log.features:
            return None
        try:
            if isinstance(group.prepare(tip, self._time_ms(tip)), NothingToCommit):
                return None
        except REFUSALS:
            return None
        appends = group.proposed()
        if appends is None or not is_small(appends):
            return None
        url, is_proven = self._store.url, self._store.create_is_proven
        author = self._next_author()
        group.post()
        return Operation(author, tip, group, url=url, is_proven=is_proven)

    def _next_author(self) -> Author:
        """Returns this author with the number of its next operation."""
        if (author := self._author) is None:
            author = Author(self._ids.new_id()[:16])
            self._committer.known_as(author.id)
        self.owes = True
        self._author = replace(author, number=author.number + 1, owes=True)
        return self._author

    def _committed(self, op: Operation, *, lost: bool) -> Commit | NothingToCommit | None:
        """Returns what became of an operation; None where it was withdrawn, to be begun anew."""
        try:
            return self._decided(op, op.prepare, lost=lost)
        except (CommitStateUnknownError, NotFoundError):
            raise
        except _UNREADABLE as e:
            refusal = e
        if not op.posted:
            self._settled(op)  # Nobody else knows of it.
        elif not isinstance(refusal, (*REFUSALS, CommitConflictError)):
            raise op.unknown(refusal) from refusal
        else:
            try:
                done = self._decided(op, op.withdraw, lost=False)  # F5
            except (CommitStateUnknownError, NotFoundError):
                raise
            except _UNREADABLE as e:
                raise op.unknown(e) from refusal
            if isinstance(done, Told) and done.is_applied:
                return done
        op.group.withdraw()
        if isinstance(refusal, NotAsPostedError):
            return None
        raise refusal

    def _decided(
        self, op: Operation, prepare: Prepare[NothingToCommit], *, lost: bool
    ) -> Commit | NothingToCommit:
        """Commits the operation, or its end, or waits until another did."""
        posts = prepare == op.prepare
        for _ in range(LOSSES_MAX):
            began_ms = self._await(op, lost=lost, posts=posts)
            try:
                done = self._committer.commit(
                    prepare, operation=APPEND, losses_max=1, lost=lost, yields=False
                )
            except LostRaceError:
                lost = True
                continue
            if isinstance(done, Commit):
                self._took(began_ms)
            return self._told(op, done)
        raise CommitConflictError(
            f"an append to {self._store.url} was not committed in {LOSSES_MAX} tries of many"
            " writers; append again"
        )

    def _told(self, op: Operation, done: Commit | NothingToCommit) -> Commit | NothingToCommit:
        """Returns what became of an operation, once that is sure."""
        if isinstance(done, Commit):
            answer = op.answer(done)
            assert answer is not None, "a commit of it answers it"
            self._settled(op)
            if answer.version == done.version:
                return done
            done = Told(answer.version, answer.is_applied)
        if isinstance(done, Told):
            self._settled(op)
            return replace(done, edit=self._edit_of(done.version))
        return done

    def _settled(self, op: Operation) -> None:
        """Notes that nobody can take an operation along any more."""
        self._author = Author(op.author, op.number)
        self.owes = False
        if op.posted and is_on_disk(self._store):
            with suppress(StoreUnavailableError):
                for path in op.posted:
                    self._store.delete(path)

    def _edit_of(self, version: int) -> Edit:
        known = (r for r in self._tip.recent.known if r.version == version)
        try:
            record = next(known, None) or read_commit(self._store, version).record
            return edit_of(self._store, record)
        except FileNotFoundError:
            return Edit()  # Swept since: where it was appended nobody knows any more.

    def _await(self, op: Operation, *, lost: bool, posts: bool) -> int:
        """Waits until the operation is answered, or it is for this author to combine (F2); returns
        when it began with that.
        """
        pause_ms, self._pause_ms = self._pause_ms, 0.0
        due_ms = max(self._due_ms(op), self._clock.monotonic_ms() + pause_ms)
        looked, is_near = False, pause_ms > 0
        while op.answer(tip := self._tip.commit) is None:
            began_ms = self._clock.monotonic_ms()
            is_behind = not is_near and self._may_post and _BEHIND <= self._tip.behind() < math.inf
            if due_ms <= began_ms and not (lost or is_behind):
                place = 0 if looked else self._place(op, tip)
                if place == 0:
                    return began_ms
                looked = place is not None
                late_ms = (place or 0) * _INSTEAD * self._cycle_ms
                due_ms = self._clock.monotonic_ms() + late_ms
            if posts and self._is_due(op):
                newer = self._tip.step(partial(self._post, op, tip))
            else:
                if looked or is_near:
                    is_likely = self._turn(op, tip.version + 1) <= 1
                    often_ms = self._cycle_ms / (_OFTEN if is_likely else _SELDOM)
                    left_ms = due_ms - self._clock.monotonic_ms()
                    self._clock.sleep_ms(int(max(1, min(left_ms, often_ms))))
                newer = self._tip.step()
            lost, is_near = False, is_near or newer.version == tip.version
            if op.answer(newer) is not None:
                break
            op.unapplied_at = newer.version
            if newer.version != tip.version:
                due_ms, looked = self._due_ms(op), False
        self._follow_answer(op)
        return self._clock.monotonic_ms()

    def _follow_answer(self, op: Operation) -> None:
        """Waits for a version behind the one that answers the operation, where it is not believed
        before: those who were answered with it come in turn, or each of them would commit one.
        """
        tip, answer = self._tip.commit, op.answer(self._tip.commit)
        if answer is None or answer.version < tip.version or op.is_proven:
            return
        mine = _share(op.author, tip.version)
        together = (a.author for a in recent_answers(tip) if a.version == tip.version)
        before = sum(_share(author, tip.version) < mine for author in together)
        due_ms = self._clock.monotonic_ms() + before * _INSTEAD * self._cycle_ms
        while (left_ms := due_ms - self._clock.monotonic_ms()) > 0:
            self._clock.sleep_ms(int(max(1, min(left_ms, self._cycle_ms / _SELDOM))))
            if self._tip.step().version > tip.version:
                return

    def _due_ms(self, op: Operation) -> float:
        """Returns when to look who else waits upon the tip: a few do at once, others later."""
        version = self._tip.commit.version
        late = _LATE * max(0.0, self._turn(op, version) - 1)
        late = min(late, _LATE_MAX + _share(op.author, version))
        return self._clock.monotonic_ms() + late * self._cycle_ms

    def _turn(self, op: Operation, version: int) -> float:
        """Returns an author's place in a version's order, about: the root of all have up to 1."""
        return _share(op.author, version) * math.sqrt(self._pending(self._tip.commit))

    def _place(self, op: Operation, tip: Commit) -> int | None:
        """Lists what is proposed; returns how many of those who wait come before this author in the
        order of the version; None where another commit came first.
        """
        files = self._files(tip, looks=True)
        if files is None:
            return None
        self._seen = tip.version, files
        mine, waiting = _share(op.author, tip.version), self._newest(files, tip)
        return sum(_share(author, tip.version) < mine for author in waiting)

    def _pending(self, tip: Commit) -> int:
        """Returns how many wait, about: as many as one of the last commits answered."""
        return max(Counter(answer.version for answer in recent_answers(tip)).values(), default=1)

    def _is_due(self, op: Operation) -> bool:
        """Tells whether an operation is to be posted: it was not yet, or a while ago (F1)."""
        last = proposal_of(op.posted[-1]) if op.posted else None
        is_near = last is not None and self._tip.commit.version - last[0] < min(
            self._near, _REPOST_AFTER
        )
        is_late = self._time_ms(self._tip.commit) > op.until_ms - ELIGIBLE_MS // 2
        return self._may_post and (is_late or not is_near)

    def _post(self, op: Operation, tip: Commit) -> None:
        """Posts an operation (F1)."""
        author = Author(op.author, op.number)
        proposal = replace(
            self._proposal(author, tip, stamp=op.unapplied_at, kind=APPEND),
            attempt=len(op.posted),
            since=op.since,
            appends=op.appends,
        )
        op.until_ms = proposal.until_ms
        op.posted.append(proposal.path)  # First: wherever this ends, it may be there.
        began_ms = self._clock.monotonic_ms()
        self._put(proposal)
        if not self._cycle_ms:
            took_ms = self._clock.monotonic_ms() - began_ms
            self._cycle_ms = min(_CYCLE_MS_MAX, 4.0 * max(1, took_ms))
        self._clock.sleep_ms(1)

    def _proposal(self, author: Author, tip: Commit, *, stamp: int, kind: str) -> Proposal:
        return Proposal(
            author=author.id,
            number=author.number,
            stamp=stamp,
            since=stamp,
            until_ms=self._time_ms(tip) + ELIGIBLE_MS,
            kind=kind,
        )

    def _put(self, proposal: Proposal) -> None:
        """Creates a proposal, as far as the store lets it."""
        try:
            self._store.create(proposal.path, encode_proposal(proposal))
        except ObjectExistsError:
            pass  # A client repeated it: the name is nobody else's.
        except StoreRefusedError:
            self._may_post = False  # Then it is committed by its author, who waits for nobody.
        except StoreUnavailableError:
            pass

    def _took(self, began_ms: int) -> None:
        took_ms = min(_CYCLE_MS_MAX, max(1, self._clock.monotonic_ms() - began_ms))
        self._cycle_ms += (took_ms - self._cycle_ms) / 4 if self._cycle_ms else took_ms

    def _time_ms(self, tip: Commit) -> int:
        return max(self._clock.now_ms(), tip.record.time_ms)

    # F3: what others proposed.

    def _taken(
        self, tip: Commit, edit: Edit, time_ms: int, *, answering: int
    ) -> tuple[list[tuple[Proposal, Edit]], int]:
        """Returns the proposals that go along with an edit, each with its own; and the lowest stamp
        of those that were left for want of room. ``answering``: how many the edit answers.
        """
        version = tip.version + 1
        head = advance(tip.head, edit, version=version, time_ms=time_ms)
        known = {
            answer.author: answer.version > version - ANSWERED_VERSIONS
            for answer in (tip.head.combined or Combined()).authors
        }
        room = ANSWERS_MAX - answering - sum(known.values())
        objects, chunks = paths_of(edit), 0
        ended = set() if edit.combined is None else {one.author for one in edit.combined.authors}
        taken: list[tuple[Proposal, Edit]] = []
        own = self._waits and ended != set()
        eligible, least = self._eligible(tip, head, time_ms, own=own)
        for proposal in eligible:
            if proposal.author in ended:
                continue
            more = sum(one.chunks for one in proposal.appends)
            needs = not known.get(proposal.author, False)
            if (needs and room <= 0) or (taken and chunks + more > COMBINED_CHUNKS_MAX):
                least = min(least, proposal.stamp)
                continue
            made = self._made(replace(tip, head=head), proposal, time_ms)
            if made is None or objects & paths_of(made):
                continue
            room, chunks = room - needs, chunks + more
            objects |= paths_of(made)
            head = advance(head, made, version=version, time_ms=time_ms)
            taken.append((proposal, made))
        return taken, least

    def _eligible(
        self, tip: Commit, head: Head, time_ms: int, *, own: bool
    ) -> tuple[list[Proposal], int]:
        """Returns the proposals that a commit upon the tip may take; a stamp as `_listed`."""
        combined = tip.head.combined or Combined()
        answered = {answer.author: answer.version for answer in combined.authors}
        listed, least = self._listed(tip, own=own)
        turns = {p.path: p for p in listed if p.kind == TURN and time_ms <= p.until_ms}
        if own and (asked := turns.keys() - self._honoured):
            self._honoured = set(turns)
            self._pause_ms = max(self._turn_ms(turns[path]) for path in asked)
            raise LostRaceError("another asked to let a version pass")
        found = [
            p
            for p in listed
            if p.kind == APPEND
            and time_ms <= p.until_ms <= time_ms + ELIGIBLE_MS + CLOCKS_MS
            and all(obj.ref.stamp >= head.orphan_floor for one in p.appends for obj in one.objects)
        ]
        return sorted(found, key=lambda p: (p.since, answered.get(p.author, -1), p.author)), least

    def _turn_ms(self, asked: Proposal) -> float:
        """Returns for how long to give a turn: as long as its author needs, whose requests may be
        slower; once among all, where that is long, as he may be dead.
        """
        usual_ms = min(_PAUSE_MS_MAX, 4 * self._cycle_ms)
        slow_ms = min(_SLOW_MS_MAX, 1.25 * asked.takes_ms)
        since = [r.time_ms for r in self._tip.recent.known if r.version >= asked.stamp]
        given_ms = max((b - a for a, b in pairwise(since)), default=0)
        return slow_ms if slow_ms > max(usual_ms, given_ms) else usual_ms

    def _listed(self, tip: Commit, *, own: bool) -> tuple[list[Proposal], int]:
        """Returns the newest proposal of each other author that is not answered, as far as a LIST
        shows them, and the lowest stamp of those that are too many bytes to be read now; one or two
        LISTs, and a GET for each that is new here. ``own``: with an operation of this author, who
        gives way where another commit came first meanwhile.
        """
        seen, self._seen = self._seen, None
        is_seen = own and seen is not None and seen[0] == tip.version
        files = seen[1] if seen is not None and is_seen else self._files(tip, looks=own)
        if files is None:
            raise LostRaceError("another commit came first while proposals were listed")
        there = sorted(self._newest(files, tip).values(), key=lambda found: found.path)
        self._known = {f.path: self._known[f.path] for f in there if f.path in self._known}
        fresh = [found for found in there if found.path not in self._known]
        sizes = accumulate(found.size_bytes for found in fresh)
        fits = [one for one, size in zip(fresh, sizes, strict=True) if size <= _READ_BYTES_MAX]
        now = fits or fresh[:1]
        self._fetch([found.path for found in now], tip.head.log.partitions)
        named = (proposal_of(found.path) for found in fresh[len(now) :])
        left = [name[0] for name in named if name is not None]
        return [p for p in self._known.values() if p is not None], min([tip.version, *left])

    def _fetch(self, paths: Sequence[str], partitions: int, *, whole: bool = False) -> None:
        """Reads proposals; the slowest are left out, but where a ``whole`` is wanted."""
        done: dict[str, Proposal | StoreUnavailableError | None] = {}

        def read(some: Sequence[str]) -> None:
            try:
                for path in some:
                    done[path] = self._read(path, partitions)
            finally:
                done.update((path, None) for path in some if path not in done)

        calls = [partial(read, paths[n::_CALLS_MAX]) for n in range(min(len(paths), _CALLS_MAX))]
        begun = [call if len(calls) == 1 else self._store.begin(call) for call in calls]
        for call, wait in zip(calls, begun, strict=True):
            if whole or wait is call:  # Nothing is under way where requests are short.
                wait()
        self._wait_for_most(done, len(paths), begun)
        for path, found in list(done.items()):
            if not isinstance(found, StoreUnavailableError):
                self._known[path] = found
            elif whole:
                raise found

    def _wait_for_most(
        self, done: Collection[str], count: int, begun: Sequence[Callable[[], None]]
    ) -> None:
        """Waits until so many reads are ``done``, but for those that take long."""
        began_ms, nearly_ms = self._clock.monotonic_ms(), 0
        while missing := count - len(done):
            took_ms = self._clock.monotonic_ms() - began_ms
            if missing <= count // _NEARLY:
                nearly_ms = nearly_ms or took_ms
                if took_ms > 1.25 * nearly_ms:
                    break
            if took_ms > _CYCLE_MS_MAX:
                for wait in begun:  # A store may make its calls only when they are asked for.
                    wait()
                break
            self._clock.sleep_ms(int(max(1, self._cycle_ms / 32)))

    def _newest(self, files: Iterable[StoredObject], tip: Commit) -> dict[str, StoredObject]:
        """Returns the newest proposal of each other author that is not answered."""
        combined = tip.head.combined or Combined()
        answered = {answer.author: answer.number for answer in combined.authors}
        mine = None if self._author is None else self._author.id
        newest: dict[str, tuple[tuple[int, int], StoredObject]] = {}
        for found in files:
            if (parts := proposal_of(found.path)) is None:
                continue
            stamp, author, number, attempt = parts
            place = (number, attempt)
            if author == mine or stamp < combined.first:
                continue
            if number > answered.get(author, 0) and place > newest.get(author, ((0, 0),))[0]:
                newest[author] = (place, found)
        return {author: found for author, (_, found) in newest.items()}

    def _files(self, tip: Commit, *, looks: bool, whole: bool = False) -> list[StoredObject] | None:
        """Returns the files of proposals with stamps near the tip, as far as LISTs show them;
        ``looks``: None where another commit came first; ``whole``: raises where the store fails.
        """
        near, last, waiting = self._near, tip.version, self._pending(tip)
        fits = (n for n in (2, 1, 0) if near > _NEAR or waiting * 10**n < _NAMES_MAX[n])
        digits = next(fits, 0)
        near = int(max(near, min(_FOUND_MS * self._tip.pace(), _NEAR_MAX[digits])))
        some = range(max(0, last - near) // 10**digits, last // 10**digits + 1)

        def listed(stamps: int) -> list[StoredObject]:
            try:
                return list(self._store.list(f"{PROPOSALS}{stamps:0{20 - digits}d}"))
            except StoreUnavailableError:
                if whole:
                    raise
                return []  # Who may not list commits what is his own.

        calls: list[tuple[Callable[[], Any], int]] = []
        if looks:
            calls.append((partial(try_read, self._store, last + 1), 4096))
        calls += [(partial(listed, stamps), 4096) for stamps in some]
        answers = ahead(self._store, calls)
        if looks and next(answers) is not None:
            return None
        return [found for files in answers for found in files]

    @property
    def _near(self) -> int:
        """So many versions after its stamp a proposal is found, at least, and posted anew: few
        where a LIST shows a thousand names at a time, and who appends may not delete.
        """
        return _NEAR_ON_DISK if is_on_disk(self._store) else _NEAR

    def _read(self, path: str, partitions: int) -> Proposal | StoreUnavailableError | None:
        try:
            return read_proposal(self._store, path, partitions)
        except StoreUnavailableError as e:
            return e  # Perhaps it can be read by the next commit.
        except _UNREADABLE:
            return None  # Swept, damaged, or of a later release: left out.

    def _made(self, tip: Commit, proposal: Proposal, time_ms: int) -> Edit | None:
        """Returns a proposal's edit; None where the head refuses any of it."""
        edits: list[Edit] = []
        version = tip.version + 1
        try:
            for one in proposal.appends:
                request = AppendRequest(
                    *(self._store.url, one.objects, one.writer),
                    *(self._committer.writer_pages, self._ids.uniform),
                    *(one.transaction, self._ids.new_id),
                )
                edit = request.prepare(tip, time_ms)
                if isinstance(edit, NothingToCommit):
                    return None
                edits.append(edit)
                head = advance(tip.head, edit, version=version, time_ms=time_ms)
                tip = replace(tip, head=head)
        except _UNREADABLE:
            return None
        return joined(edits) if edits else None
