"""Bugs to plant in combining (COMMIT.md §14): each leaves out one of the rules that decision 0052
and ``tests/models/combining.py`` name; see `planted`.
"""

from dataclasses import replace

from limits import Patch

import clog.cleaner.duties.sweep
import clog.storage.commit.appends
import clog.storage.commit.combining
import clog.storage.commit.tip
import clog.storage.format.writers
from clog.storage.commit.combining import Combiner, Operation
from clog.storage.commit.committer import NothingToCommit
from clog.storage.errors import CommitStateUnknownError
from clog.storage.format import documents
from clog.storage.format.transactions import Combined

cleaner, storage = clog.cleaner, clog.storage
combining = storage.commit.combining


def _with_combined(tip, change):
    """The tip as if its head had other answers."""
    combined = change(tip.head.combined or Combined())
    return replace(tip, head=replace(tip.head, combined=combined))


def proposals_live_on(patch: Patch) -> None:
    """A proposal is taken though answers up to its stamp are forgotten."""
    listed = Combiner._listed

    def all_listed(self, tip, **given):
        return listed(self, _with_combined(tip, lambda c: replace(c, first=0)), **given)

    patch(Combiner, "_listed", all_listed)


def known_by_name(patch: Patch) -> None:
    """What was taken is known by the names of its proposals, not by author and number: a retry is
    taken beside what it repeats.
    """
    listed, taken = Combiner._listed, combining.Combiner._taken
    names: set[str] = set()

    def not_taken(self, tip, **given):
        bare = _with_combined(tip, lambda c: replace(c, authors=()))
        found, least = listed(self, bare, **given)
        return [p for p in found if p.path not in names], least

    def noted(self, *given, **named):
        found, least = taken(self, *given, **named)
        names.update(proposal.path for proposal in found)
        return found, least

    patch(Combiner, "_listed", not_taken)
    patch(Combiner, "_taken", noted)
    _answer_anything(patch)


def lower_numbers_taken(patch: Patch) -> None:
    """Not only numbers above the one that is answered: all but that."""
    listed = Combiner._listed

    def unlike(self, tip, **given):
        known = {a.author: a.number for a in (tip.head.combined or Combined()).authors}
        bare = _with_combined(tip, lambda c: replace(c, authors=()))
        found, least = listed(self, bare, **given)
        return [p for p in found if known.get(p.author) != p.number], least

    patch(Combiner, "_listed", unlike)
    _answer_anything(patch)


def _answer_anything(patch: Patch) -> None:
    """Heads take answers in any order."""
    after = Combined.after

    def lenient(self, given, **named):
        coming = {one.author: one.number for one in given.authors}
        kept = tuple(a for a in self.authors if coming.get(a.author, a.number + 1) > a.number)
        return after(replace(self, authors=kept), given, **named)

    patch(Combined, "after", lenient)


def absence_is_proof(patch: Patch) -> None:
    """No answer means "not applied", however much was forgotten meanwhile (H-W4)."""
    answer = Operation.answer

    def trusting(self, tip):
        try:
            return answer(self, tip)
        except CommitStateUnknownError:
            return None

    patch(Operation, "answer", trusting)


def withdrawals_live_on(patch: Patch) -> None:
    """Who gives up does not ask whether answers are forgotten (H-W23)."""
    decided, answer = Combiner._decided, Operation.answer
    ending: set[Operation] = set()

    def noted(self, op, prepare, *, lost):
        if prepare == op.withdraw:
            ending.add(op)
        return decided(self, op, prepare, lost=lost)

    def trusting(self, tip):
        try:
            return answer(self, tip)
        except CommitStateUnknownError:
            if self not in ending:
                raise
            return None

    patch(Combiner, "_decided", noted)
    patch(Operation, "answer", trusting)


def given_up_by_deleting(patch: Patch) -> None:
    """Who gives up deletes its proposals, and commits nothing."""
    decided = Combiner._decided

    def deleting(self, op, prepare, *, lost):
        if prepare == op.prepare:
            return decided(self, op, prepare, lost=lost)
        for path in op.posted:
            self._store.delete(path)
        self._settled(op)
        return NothingToCommit()

    patch(Combiner, "_decided", deleting)


def withdrawn_unseen(patch: Patch) -> None:
    """Who gives up tells its caller so without a look at what was committed meanwhile."""
    decided = Combiner._decided

    def unseen(self, op, prepare, *, lost):
        done = decided(self, op, prepare, lost=lost)
        return NothingToCommit() if prepare == op.withdraw else done

    patch(Combiner, "_decided", unseen)


def committed_otherwise(patch: Patch) -> None:
    """What was posted is committed as a plain append by its author (H-W8)."""

    def plain(self, tip, time_ms):
        return self.group.prepare(tip, time_ms)

    def told(self, op, done):
        self._settled(op)
        return done

    patch(Operation, "prepare", plain)
    patch(Combiner, "_outcome", told)


def floor_unchecked(patch: Patch) -> None:
    """Who commits what others proposed does not ask whether their data may be swept by now."""
    patch(storage.commit.appends, "_check_floor", lambda *_: None)


def data_swept_with_proposals(patch: Patch) -> None:
    """The sweep takes a proposal's data with it, once it is an hour old, whatever the floor is."""
    old = cleaner.duties.sweep._old_proposals

    def with_data(handle, *, before_ms):
        found = old(handle, before_ms=before_ms)
        for one in found:
            body = documents.decode("proposal", handle.store.get(one.path), where=one.path)
            for appended in body.get("appends", ()):
                for obj in appended["objects"]:
                    handle.store.delete(obj["path"])
        return found

    patch(cleaner.duties.sweep, "_old_proposals", with_data)


def unsettled_answers(patch: Patch) -> None:
    """An answer is believed wherever it is found, also in what was left in a closed block."""
    patch(storage.commit.tip.Tip, "settle", lambda _self, *, lost=False: None)
    patch(storage.commit.tip.Tip, "_is_left_behind", lambda _self, _newer: False)


def one_author_for_all(patch: Patch) -> None:
    """Each process draws the same author's id, as a forked child would (H-W9)."""
    next_author = Combiner._next_author

    def shared(self):
        if self._author is None:
            self._author = combining.Author("5" * 16)
        return next_author(self)

    patch(Combiner, "_next_author", shared)


def epoch_not_compared_by_others(patch: Patch) -> None:
    """Who commits a proposal of a transaction does not ask whether its epoch is fenced."""
    patch(storage.commit.appends, "_is_next", lambda _known, _ours: True)


def zombies_wake(patch: Patch) -> None:
    """A proposal is taken along however long ago it was posted (H-W1)."""
    listed = Combiner._listed

    def ageless(self, tip, **given):
        until_ms = self._time_ms(tip) + combining.ELIGIBLE_MS
        found, least = listed(self, tip, **given)
        return [replace(p, until_ms=until_ms) for p in found], least

    patch(Combiner, "_listed", ageless)


def nothing_owed(patch: Patch) -> None:
    """A handle's next commit does not end what it left behind (H-W1)."""
    patch(Combiner, "_owed", lambda _self, _combined: ())


def sequence_ends_nothing(patch: Patch) -> None:
    """Who reads a sequence, to go on from it, ends nothing that is pending of it (H-W15)."""
    patch(Combiner, "end", lambda _self, _keys: None)


def forgets_at_once(patch: Patch) -> None:
    """Answers are forgotten as soon as they are given, and "not applied" is said all the same:
    what was applied is applied again.
    """

    def at_once(before, coming, *, version, **_):
        del coming
        return max(before.first, version - 1)

    patch(combining, "first_after", at_once)
    absence_is_proof(patch)


PROPOSAL_BUGS = {
    "proposals live on after forgetting": proposals_live_on,
    "retry known by its name": known_by_name,
    "lower numbers are taken": lower_numbers_taken,
    "no answer is proof": absence_is_proof,
    "applied again after forgetting": forgets_at_once,
    "withdrawals live on": withdrawals_live_on,
    "given up by deleting": given_up_by_deleting,
    "withdrawn without a look": withdrawn_unseen,
    "posted and committed otherwise": committed_otherwise,
    "floor not checked of proposals": floor_unchecked,
    "data swept with proposals": data_swept_with_proposals,
    "answers of an unsettled tip": unsettled_answers,
    "one author's id for all": one_author_for_all,
    "fenced proposal is taken": epoch_not_compared_by_others,
    "zombies wake": zombies_wake,
    "nothing is owed": nothing_owed,
    "a sequence ends nothing": sequence_ends_nothing,
}
"""By name; worlds of authors must find them."""
