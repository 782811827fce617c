"""Many writers of one log, with no coordinator: a writer that meets rivals stops racing and
*proposes* its append, and whoever commits next includes all proposals (COMMIT.md §14, FORMAT.md
§21, decision 0052). ``tests/models/combining.py`` models the rules; dropping any of them breaks it.

An *author* is a handle in one process, with a random id that a forked child draws anew. Its appends
under contention are its *operations* 1, 2, 3 …, one at a time; a group of appends that wait
together is one operation. The *answer* to an operation, applied or withdrawn, is in the head from
the commit that gives it, for some time; there the author finds it.

F1. *Propose*, after a lost race or while others combine, under a name that contains the *stamp*, a
    version at which the operation was known not to be applied.
F2. *Wait*, following the commits. One of the waiting authors combines, by an order drawn for each
    version, or the next one in its place; correctness does not depend on this order.
F3. *Combine.* Take the newest proposals in order, each prepared on the head that the ones before it
    leave; what the head refuses is left out. While writers combine, every commit does this.
F4. *Learn.* If the head has the answer, the operation is done. No answer means that it has not been
    applied, unless answers since the last look were already forgotten: then the outcome is unknown.
    A writer that cannot propose, such as the cleaner, asks for a *turn*: the author waits once.
F5. *Give up* with a commit that withdraws the operation, if the author's own head refuses it. If
    that fails, the outcome is unknown. An interrupt makes no requests; the next commit does this.

Like a duplicate, an answer counts only in a version that is certain to be committed (COMMIT.md §1,
§4). Deleting a proposal is always safe: its author posts it again, or commits it.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import Any

from clog.storage.commit.appends import (
    GROUP_CHUNKS_MAX,
    AppendRequest,
    Group,
    Joined,
    OperationOutcome,
)
from clog.storage.commit.committer import (
    AHEAD_MS_MAX,
    APPEND,
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
    ELIGIBLE_MS,
    TURN,
    Proposal,
    Waits,
    encode_proposal,
    is_small,
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
from clog.storage.format.commits import Commit, Edit, edit_of, read_commit
from clog.storage.format.documents import PROPOSALS, proposal_of
from clog.storage.format.transactions import Answer, Answered, Combined, Combining
from clog.storage.store.contract import (
    ObjectExistsError,
    Store,
    StoredObject,
    StoreRefusedError,
    ahead,
)

ANSWERS_MAX = 1000
"""Answers in a head; about 60 KB."""
ANSWERED_VERSIONS = 64
ANSWERED_MS = 60_000
"""An answer is kept for that many versions, and that long unless `ANSWERS_MAX` forbids."""
FORGOTTEN_MS = 3_600_000
"""No older answer is kept, however few versions came since: the head of a quiet log stays small."""
RECENT_VERSIONS = 16
"""An author that combines was answered by one of the last 16 commits. Times alone do not show it:
they stand still after a clock that was ahead.
"""
_READ_BYTES_MAX = 1 << 20
"""Bytes of proposals read for one commit: about 1,500 proposals of one small object each."""
_NAMES_MAX = 1000
"""Names that one LIST may return: a page."""
_NEAR, _NEAR_MAX = 10, 100
"""Versions after its stamp for which a proposal is found at least, and then posted again: few where
a LIST returns a page at a time and writers may not delete; on a disk as many as it ever may be."""
_FOUND_MS = 3_000
"""Where versions come fast, a proposal is found for that long, as its author may be slow."""
_CALLS_MAX = 128
"""Proposals read concurrently."""
_NEARLY = 8
"""A combining author does not wait for the slowest eighth of the proposals."""
_LATE = 2.0
"""Waiting authors that do not list immediately list this many times the time of combining apart."""
_LOOKS = 4
"""Looks of each waiting author at the tip during the time that combining takes."""
_INSTEAD = 0.75
"""After this part of it, the next waiting author combines in place of the one before it."""
_LATE_MAX = 4.0
"""After this many times the time that combining takes, every author looks: most of those expected
before it are not waiting."""
_KEPT_OUT = 4
"""An author that was not let in for so many versions, by writers that do not combine, races."""
_BEHIND = 0.5
"""An author that is probably this many versions behind reads them before it lists proposals."""
_CYCLE_MS_MAX = 4_000
_TURN_VERSIONS = 8
"""Versions after which a turn is asked for again."""
_SLOW_MS_MAX = 10_000
"""The longest pause for a turn."""
_UNREADABLE = (ClogError, FileNotFoundError)


@dataclass(frozen=True, slots=True)
class Author:
    """A handle of this process as others know it. Its operations up to ``number`` are used;
    ``owes``: others may still commit one of them, and nobody waits for it.
    """

    id: str
    number: int = 0
    owes: bool = False


class NotAsPostedError(CommitConflictError):
    """An operation cannot be committed as it was posted."""


def recent_answers(tip: Commit) -> list[Answer]:
    """Returns the answers in the 10 s and the 16 versions before the newest commit."""
    answers = () if tip.head.combined is None else tip.head.combined.authors
    first_ms, first = tip.record.time_ms - RIVAL_MS, tip.version - RECENT_VERSIONS
    return [answer for answer in answers if answer.time_ms >= first_ms and answer.version > first]


def is_crowded(tip: Commit, now_ms: int) -> bool:
    """Returns whether writers combine at the moment: the newest commit is at most 10 s old, and at
    least two authors were answered in the 10 s and the 16 versions before it.
    """
    if tip.head.combined is None or now_ms - tip.record.time_ms > RIVAL_MS:
        return False
    return len(recent_answers(tip)) > 1


def first_after(
    before: Combined, coming: Sequence[Answered], *, version: int, time_ms: int, least: int
) -> int:
    """Returns the version up to which the commit ``version`` forgets answers. It keeps those of 64
    versions and of 60 s, but none that is an hour old, and all from the stamp ``least`` on. If the
    ``coming`` answers would make too many, those of 60 s are not kept.
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
    """Returns a number below 1 for an author and a version; all processes draw the same."""
    return ((int(author, 16) * (2 * version + 1)) & ((1 << 64) - 1)) / (1 << 64)


class Operation:
    """One operation of an author until it is answered: appends that wait together.

    Attributes:
        author, number: its identity.
        since: the version at which it began.
        unapplied_at: the last version at which it was known not to be applied.
        posted: the names under which it was posted; ``until_ms``: how long the last is eligible.
        appends: what was posted.
        is_proven: whether an answer counts before another version follows the one that gives it.
    """

    def __init__(
        self,
        author: Author,
        tip: Commit,
        group: Group,
        *,
        url: str,
        is_proven: bool,
    ) -> None:
        self.author, self.number = author.id, author.number
        self.since = self.unapplied_at = tip.version
        self.posted: list[str] = []
        self.until_ms = 0
        self.group, self.appends = group, group.proposed()
        self._url, self.is_proven = url, is_proven

    def answer(self, tip: Commit) -> Answer | None:
        """Returns its answer at a version; None if it was not applied by then. Raises
        CommitStateUnknownError if that can no longer be known.
        """
        combined = tip.head.combined or Combined()
        found = combined.of(self.author)
        if found is not None and found.number == self.number:
            return found
        if found is not None and found.number > self.number:
            raise self.unknown("a later append of its author was answered")
        if combined.first > self.unapplied_at:
            raise self.unknown(
                f"it was last seen undecided at version {self.unapplied_at}, and answers up to"
                f" version {combined.first} are forgotten"
            )
        return None

    def prepare(self, tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        """Returns the edit that applies it, or the answer that it already has."""
        if (known := self._known_outcome(tip)) is not None:
            return known
        edit = self.group.prepare(tip, time_ms)
        if isinstance(edit, NothingToCommit) or self.group.proposed() != self.appends:
            raise NotAsPostedError(
                f"an append to {self._url} changed while it waited; append again"
            )
        return replace(edit, combined=self._answered(is_applied=True))

    def withdraw(self, tip: Commit, _time_ms: int) -> Edit | NothingToCommit:
        """Returns the edit that withdraws it, or the answer that it already has."""
        known = self._known_outcome(tip)
        return Edit(combined=self._answered(is_applied=False)) if known is None else known

    def unknown(self, why: object) -> CommitStateUnknownError:
        """Returns the error for an operation whose outcome cannot be known."""
        return CommitStateUnknownError(
            f"the outcome of an append to {self._url} that other writers may commit is unknown:"
            f" {why}; read the log before you repeat it"
        )

    def _known_outcome(self, tip: Commit) -> Edit | OperationOutcome | None:
        found = self.answer(tip)
        if found is None:
            return None
        if found.version == tip.version and not self.is_proven:
            return Edit()  # Believed once another version follows the one that says so.
        return OperationOutcome(found.version, found.is_applied)

    def _answered(self, *, is_applied: bool) -> Combining:
        return Combining(0, (Answered(self.author, self.number, is_applied),))


class Combiner:
    """Proposes the appends of one handle and commits those of others. Not safe for threads.

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
        self.owes = self._waits = self._races = False
        self._known: dict[str, Proposal | None] = {}
        self._seen: tuple[int, list[StoredObject]] | None = None
        self._honoured: set[str] = set()
        self._pause_ms = 0.0
        self._asked_at = -_TURN_VERSIONS
        register(self)

    def after_fork(self) -> None:
        """Forgets, in a forked child, the author, which is its parent."""
        self._author, self.owes, self._waits, self._known = None, False, False, {}
        self._committer.known_as(self._ids.new_id())

    def append(self, group: Group, *, lost: bool) -> Commit | NothingToCommit:
        """Commits appends, or lets another do it; ``lost``: a race for the tip was just lost."""
        while True:
            op = self._begun(group, lost=lost)
            if op is None:
                return self._committer.commit(group.prepare, operation=APPEND, lost=lost)
            self._waits = True
            try:
                done = self._committed(op, lost=lost)
            except NotFoundError:
                self._committer.withdraw(op.posted)
                raise
            finally:
                self._waits = False
            is_withdrawn = isinstance(done, OperationOutcome) and not done.is_applied
            if done is not None and not is_withdrawn:
                return done
            group.withdraw()

    def with_others(self, tip: Commit, edit: Edit, time_ms: int, *, lost: bool) -> Edit:
        """Returns the edit with the proposals of others, if writers combine or a race for the tip
        was ``lost`` (a writer that only races, and is faster, would otherwise let nobody in). Also
        ends what this author owes, and forgets answers that are old enough (F3, F5).
        """
        combined = tip.head.combined
        is_given = (
            edit.reached or edit.reached_after or (edit.add is not None and edit.add.is_given)
        )
        if edit.reset_times or is_given:
            return edit
        mine = () if edit.combined is None else edit.combined.authors
        if not mine:
            mine = self._owed(combined)
        joined, answers, least = Joined(tip, time_ms, edit), [*mine], tip.version
        before = combined or Combined()
        if not self._races and (lost or edit.combined is not None or is_crowded(tip, time_ms)):
            own = self._waits and edit.combined is not None
            taken, least = self._taken(joined, tip, time_ms, answering=mine, own=own)
            answers += [Answered(p.author, p.number, is_applied=True) for p in taken]
        first = first_after(before, answers, version=tip.version + 1, time_ms=time_ms, least=least)
        if not answers and first == before.first:
            return edit
        combining = Combining(first if first > before.first else 0, tuple(answers))
        return replace(joined.edit(), combined=combining)

    def is_crowded(self, tip: Commit) -> bool:
        """Returns whether writers combine at the moment."""
        return is_crowded(tip, self._time_ms(tip))

    def waits(self) -> Waits:
        """Returns how long the proposals near the tip have waited; one LIST, or two."""
        tip = self._tip.commit
        files = self._files(tip, looks=False, whole=True) or ()
        return waits_of(files, tip.head.combined, now_ms=self._clock.now_ms())

    def end(self, keys: Collection[tuple[str, str]]) -> None:
        """Withdraws the pending operations of writers, given as kind and id, that a LIST shows, and
        what this author owes (H-W15). An author that still waits for one appends it again.
        """

        def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
            ended = [Answered(*operation, is_applied=False) for operation in self._of(keys, tip)]
            ended += self._owed(tip.head.combined)
            return Edit(combined=Combining(0, tuple(ended))) if ended else NothingToCommit()

        if not self._waits:
            self._committer.commit(prepare, operation="sequence")

    def _of(self, keys: Collection[tuple[str, str]], tip: Commit) -> Iterator[tuple[str, int]]:
        """Yields author and number of each pending operation; LISTs, and one GET per proposal."""
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
        """Asks the combining authors, if any, to let a version pass; the next commit ends that."""
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

    def _begun(self, group: Group, *, lost: bool) -> Operation | None:
        """Returns the operation to propose; None if the appends must be committed as usual."""
        if self._waits:
            return None
        tip = self._tip.commit
        if not lost and self._tip.behind() >= self._near / 2:
            tip = self._tip.step()
        try:
            if isinstance(group.prepare(tip, self._time_ms(tip)), NothingToCommit):
                return None
        except REFUSALS:
            return None
        if not is_small(group.proposed()):
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
        """Returns the outcome of an operation; None if it was withdrawn and must begin again."""
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
            if isinstance(done, OperationOutcome) and done.is_applied:
                return done
        op.group.withdraw()
        if isinstance(refusal, NotAsPostedError):
            return None
        raise refusal

    def _decided(
        self, op: Operation, prepare: Prepare[NothingToCommit], *, lost: bool
    ) -> Commit | NothingToCommit:
        """Commits the operation or its withdrawal, or waits until another author has."""
        posts = prepare == op.prepare
        for _ in range(LOSSES_MAX):
            began_ms = self._await(op, lost=lost, posts=posts)
            self._races = self._is_kept_out(op, self._tip.commit)
            try:
                done = self._committer.commit(prepare, operation=APPEND, losses_max=1, lost=lost)
            except LostRaceError:
                lost = True
                continue
            finally:
                self._races = False
            if isinstance(done, Commit):
                self._took(began_ms)
            return self._outcome(op, done)
        raise CommitConflictError(
            f"an append to {self._store.url} was not committed in {LOSSES_MAX} tries, because many"
            " writers append; append again"
        )

    def _outcome(self, op: Operation, done: Commit | NothingToCommit) -> Commit | NothingToCommit:
        """Returns the outcome of an operation once it is certain."""
        if isinstance(done, Commit):
            answer = op.answer(done)
            assert answer is not None, "the commit of an operation answers it"
            self._settled(op)
            if answer.version == done.version:
                return done
            done = OperationOutcome(answer.version, answer.is_applied)
        if isinstance(done, OperationOutcome):
            self._settled(op)
            return replace(done, edit=self._edit_of(done.version))
        return done

    def _settled(self, op: Operation) -> None:
        """Notes that others can no longer commit the operation."""
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
            return Edit()  # Swept since: its offsets are no longer known.

    def _await(self, op: Operation, *, lost: bool, posts: bool) -> int:
        """Waits until the operation is answered or this author should combine (F2); returns the
        time at which its look at the tip began.
        """
        pause_ms, self._pause_ms = self._pause_ms, 0.0
        due_ms = max(self._due_ms(op), self._clock.monotonic_ms() + pause_ms)
        looked, is_near = False, pause_ms > 0
        while op.answer(tip := self._tip.commit) is None:
            began_ms = self._clock.monotonic_ms()
            is_behind = not is_near and self._may_post and _BEHIND <= self._tip.behind() < math.inf
            if not lost and self._is_kept_out(op, tip):
                return began_ms
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
                    self._pause_until(due_ms)
                newer = self._tip.step()
            lost, is_near = False, is_near or newer.version == tip.version
            if op.answer(newer) is not None:
                break
            op.unapplied_at = newer.version
            if newer.version != tip.version:
                due_ms, looked = self._due_ms(op), False
        self._follow_answer(op)
        return self._clock.monotonic_ms()

    def _is_kept_out(self, op: Operation, tip: Commit) -> bool:
        """Returns whether writers that do not combine, as they lose to nobody, keep this one out:
        then it races as they do, and whom it beats combines from then on.
        """
        return tip.version - op.since >= _KEPT_OUT and not self.is_crowded(tip)

    def _follow_answer(self, op: Operation) -> None:
        """Waits for a version after the one that answers the operation, if the answer is not
        believed before. The authors answered by that version take turns, or each would commit one.
        """
        tip, answer = self._tip.commit, op.answer(self._tip.commit)
        if answer is None or answer.version < tip.version or op.is_proven:
            return
        mine = _share(op.author, tip.version)
        together = (a.author for a in recent_answers(tip) if a.version == tip.version)
        before = sum(_share(author, tip.version) < mine for author in together)
        due_ms = self._clock.monotonic_ms() + before * _INSTEAD * self._cycle_ms
        while due_ms > self._clock.monotonic_ms():
            self._pause_until(due_ms)
            if self._tip.step().version > tip.version:
                return

    def _pause_until(self, due_ms: float) -> None:
        """Waits for the next look at the tip, but not longer than until a time."""
        left_ms = due_ms - self._clock.monotonic_ms()
        self._clock.sleep_ms(int(max(1, min(left_ms, self._cycle_ms / _LOOKS))))

    def _due_ms(self, op: Operation) -> float:
        """Returns when to list the proposals upon the tip: a few authors now, others later."""
        version = self._tip.commit.version
        late = _LATE * max(0.0, self._turn(op, version) - 1)
        late = min(late, _LATE_MAX + _share(op.author, version))
        return self._clock.monotonic_ms() + late * self._cycle_ms

    def _turn(self, op: Operation, version: int) -> float:
        """Returns about an author's place in a version's order; the square root of all have ≤ 1."""
        return _share(op.author, version) * math.sqrt(self._pending(self._tip.commit))

    def _place(self, op: Operation, tip: Commit) -> int | None:
        """Lists the proposals; returns how many waiting authors precede this one in the order of
        the version; None if another commit came first.
        """
        files = self._files(tip, looks=True)
        if files is None:
            return None
        self._seen = tip.version, files
        mine, waiting = _share(op.author, tip.version), self._newest(files, tip)
        return sum(_share(author, tip.version) < mine for author in waiting)

    def _pending(self, tip: Commit) -> int:
        """Returns roughly how many authors wait: as many as one of the last commits answered."""
        return max(Counter(answer.version for answer in recent_answers(tip)).values(), default=1)

    def _is_due(self, op: Operation) -> bool:
        """Returns whether to post an operation: it was not posted yet, or a while ago (F1)."""
        last = proposal_of(op.posted[-1]) if op.posted else None
        is_near = last is not None and self._tip.commit.version - last[0] < self._near
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
        op.posted.append(proposal.path)  # First: wherever this is interrupted, it may exist.
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
        """Creates a proposal, if the store lets it."""
        try:
            self._store.create(proposal.path, encode_proposal(proposal))
        except ObjectExistsError:
            pass  # The client repeated the request: no one else uses this name.
        except StoreRefusedError:
            self._may_post = False  # From now on this author commits its appends itself.
        except StoreUnavailableError:
            pass

    def _took(self, began_ms: int) -> None:
        took_ms = min(_CYCLE_MS_MAX, max(1, self._clock.monotonic_ms() - began_ms))
        self._cycle_ms += (took_ms - self._cycle_ms) / 4 if self._cycle_ms else took_ms

    def _time_ms(self, tip: Commit) -> int:
        return max(self._clock.now_ms(), tip.record.time_ms)

    # F3: what others proposed.

    def _taken(
        self,
        joined: Joined,
        tip: Commit,
        time_ms: int,
        *,
        answering: Sequence[Answered],
        own: bool,
    ) -> tuple[list[Proposal], int]:
        """Adds what others proposed to a commit; returns these proposals, and the lowest stamp of
        those for which there was no room. ``answering``: what the commit answers anyway.
        """
        newest = tip.version + 1 - ANSWERED_VERSIONS
        known = {a.author for a in (tip.head.combined or Combined()).authors if a.version > newest}
        ended = {one.author for one in answering}
        room, chunks = ANSWERS_MAX - len(ended) - len(known), 0
        taken: list[Proposal] = []
        eligible, least = self._eligible(tip, time_ms, own=own)
        for proposal in eligible:
            if proposal.author in ended:
                continue
            more = sum(one.chunks for one in proposal.appends)
            needs = proposal.author not in known
            if (needs and room <= 0) or (taken and chunks + more > GROUP_CHUNKS_MAX):
                least = min(least, proposal.stamp)
                continue
            try:
                made = joined.add(partial(self._made, proposal))
            except _UNREADABLE:
                continue  # Its author, which follows, raises the refusal.
            if isinstance(made, Edit):
                room, chunks = room - needs, chunks + more
                taken.append(proposal)
        return taken, least

    def _eligible(self, tip: Commit, time_ms: int, *, own: bool) -> tuple[list[Proposal], int]:
        """Returns the proposals that a commit upon the tip may include; a stamp as `_listed`."""
        combined = tip.head.combined or Combined()
        answered = {answer.author: answer.version for answer in combined.authors}
        listed, least = self._listed(tip, own=own)
        turns = {p.path: p for p in listed if p.kind == TURN and time_ms <= p.until_ms}
        if own and (asked := turns.keys() - self._honoured):
            self._honoured = set(turns)
            self._pause_ms = max(self._turn_ms(turns[path]) for path in asked)
            raise LostRaceError("another writer asked to let a version pass")
        found = [
            p
            for p in listed
            if p.kind == APPEND and time_ms <= p.until_ms <= time_ms + ELIGIBLE_MS + AHEAD_MS_MAX
        ]
        return sorted(found, key=lambda p: (p.since, answered.get(p.author, -1), p.author)), least

    def _turn_ms(self, asked: Proposal) -> float:
        """Returns how long to pause for a turn: as long as its author, whose requests may be
        slower, needs. A long pause is made only once by all, as that author may be dead.
        """
        usual_ms = min(_CYCLE_MS_MAX, 4 * self._cycle_ms)
        slow_ms = min(_SLOW_MS_MAX, 1.25 * asked.takes_ms)
        since = [r.time_ms for r in self._tip.recent.known if r.version >= asked.stamp]
        given_ms = max((b - a for a, b in pairwise(since)), default=0)
        return slow_ms if slow_ms > max(usual_ms, given_ms) else usual_ms

    def _listed(self, tip: Commit, *, own: bool) -> tuple[list[Proposal], int]:
        """Returns the newest unanswered proposal of each other author that a LIST shows, and the
        lowest stamp of those that are too many bytes to read now; one or two LISTs, and a GET per
        proposal not read before. ``own``: for an operation of this author, which gives way if
        another commit comes first.
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
        """Reads proposals, without waiting for the slowest unless the ``whole`` is wanted."""
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
            if whole or wait is call:  # Where requests are short, none has been started.
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
        """Waits until ``count`` reads are ``done``, except those that take long."""
        began_ms, nearly_ms = self._clock.monotonic_ms(), 0
        while missing := count - len(done):
            took_ms = self._clock.monotonic_ms() - began_ms
            if missing <= count // _NEARLY:
                nearly_ms = nearly_ms or took_ms
                if took_ms > 1.25 * nearly_ms:
                    break
            if took_ms > _CYCLE_MS_MAX:
                for wait in begun:  # A store may start its calls only when they are waited for.
                    wait()
                break
            self._clock.sleep_ms(int(max(1, self._cycle_ms / 32)))

    def _newest(self, files: Iterable[StoredObject], tip: Commit) -> dict[str, StoredObject]:
        """Returns the newest unanswered proposal of each other author."""
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
        """Returns the files of proposals with stamps near the tip that LISTs show; ``looks``: None
        if another commit came first; ``whole``: raises if the store fails.
        """
        near, last, waiting = self._near, tip.version, self._pending(tip)
        is_whole = near == _NEAR_MAX  # On a disk, a LIST reads the folder anyway.
        digits = next((n for n in (2, 1) if is_whole or waiting * 10**n < _NAMES_MAX), 0)
        near = int(max(near, min(_FOUND_MS * self._tip.pace(), _NEAR_MAX)))
        some = range(max(0, last - near) // 10**digits, last // 10**digits + 1)

        def listed(stamps: int) -> list[StoredObject]:
            try:
                return list(self._store.list(f"{PROPOSALS}{stamps:0{20 - digits}d}"))
            except StoreUnavailableError:
                if whole:
                    raise
                return []  # A writer that may not list commits only its own appends.

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
        return _NEAR_MAX if is_on_disk(self._store) else _NEAR

    def _read(self, path: str, partitions: int) -> Proposal | StoreUnavailableError | None:
        try:
            return read_proposal(self._store, path, partitions)
        except StoreUnavailableError as e:
            return e  # The next commit may be able to read it.
        except _UNREADABLE:
            return None  # Swept, damaged, or from a later release.

    def _made(self, proposal: Proposal, tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        """Returns a proposal's edit; none if an append of it is committed already."""
        joined, pages = Joined(tip, time_ms), self._committer.writer_pages
        for one in proposal.appends:
            request = AppendRequest(one, pages, self._ids)
            if not isinstance(joined.add(request.prepare), Edit):
                return NothingToCommit()
        return joined.edit() if proposal.appends else NothingToCommit()
