"""Bugs to plant in transactions over several logs, and visible ones; see `planted`."""

from dataclasses import replace

from limits import Patch, patching

import clog.cleaner.selection
import clog.storage.cuts
import clog.storage.format.chunks
import clog.storage.format.commits
import clog.storage.read.cleanable
import clog.storage.transactions.deferred
import clog.storage.transactions.ids
import clog.storage.transactions.several
from clog.storage.format.commits import Head
from clog.storage.format.transactions import ABORTED, COMMITTED, find_unended

storage = clog.storage
_transactions = storage.transactions


def late_prepare(patch: Patch) -> None:
    """A participant takes records of a transaction of whose end it has heard (H-T3)."""
    prepared = _transactions.ids.prepared_part

    def lenient(part, name, home_url, **given):
        prepare = prepared(part, name, home_url, **given)

        def unasked(tip, time_ms):
            if find_unended(tip.head.unended, name) is not None:
                return prepare(tip, time_ms)
            with patching() as inner:
                inner(_transactions.ids, "_part_state", lambda *_: None)
                return prepare(tip, time_ms)

        return unasked

    patch(_transactions.deferred, "prepared_part", lenient)


def outcome_guessed(patch: Patch) -> None:
    """Where the home cannot be read, a participant is told that it was aborted (S50)."""
    finish = _transactions.several._finish_part

    def guess(handle, entry, *, abort, force):
        del force
        return finish(handle, entry, abort=abort, force=True)

    patch(_transactions.several, "_finish_part", guess)


def abort_forgotten(patch: Patch) -> None:
    """The home keeps no outcome of what was aborted, whoever waits for it (X5)."""
    ended = storage.format.commits.ended

    def forgetful(unended, ending):
        left = ended(unended, ending)
        if ending.outcome == ABORTED:
            left = tuple(entry for entry in left if entry.name != ending.name)
        return left

    patch(storage.format.commits, "ended", forgetful)


def fenced_end_obeyed(patch: Patch) -> None:
    """Who takes an id up leaves open what was, and an end is not asked for its epoch (S48)."""
    find = _transactions.ids.find_commit

    def lenient(state, ours, *, url, tried):
        if state is not None:
            state = replace(state, epoch=ours.epoch)
        return find(state, ours, url=url, tried=tried)

    patch(_transactions.ids, "left_of", lambda _head, _id: [])
    patch(_transactions.deferred, "find_commit", lenient)


def undecided_dropped(patch: Patch) -> None:
    """A pass goes beyond the stable offset, and takes what is undecided for aborted (S11)."""
    bounds = storage.read.cleanable.first_uncleanable

    def beyond(manifest, partition, config, first_dirty, *, now_ms):
        with patching() as inner:
            inner(Head, "stable_offset", lambda head, p: head.partitions.end[p])
            return bounds(manifest, partition, config, first_dirty, now_ms=now_ms)

    def taken(r, inside):
        undecided = [replace(c, outcome=ABORTED) if c.undecided else c for c in inside]
        return marks(r, undecided)

    marks = storage.format.chunks._with_marks
    patch(storage.read.cleanable, "first_uncleanable", beyond)
    patch(storage.format.chunks, "_with_marks", taken)
    patch(storage.format.chunks, "_check_kept", lambda _r, _inside: None)


def stable_of_another_log(patch: Patch) -> None:
    """The stable offset knows the transactions of which this log is the home alone (S51)."""
    stable = Head.stable_offset

    def narrow(head, p):
        mine = [entry for entry in head.unended if entry.name.home == head.log.log_id]
        return stable(replace(head, unended=tuple(mine)), p)

    patch(Head, "stable_offset", narrow)


def number_ignored(patch: Patch) -> None:
    """The end of one transaction is taken for that of another of its id (S48)."""
    parts, ended = storage.format.commits.PARTS, storage.format.commits.ended
    end = parts["ends"].segments

    def loose(unended, name):
        exact = find_unended(unended, name)
        same = (
            entry for entry in unended if (entry.name.home, entry.name.id) == (name.home, name.id)
        )
        return exact or next(same, None)

    def taken(unended, ending):
        entry = loose(unended, ending.name)
        return ending if entry is None else replace(ending, name=entry.name)

    for module in (storage.format.commits, _transactions.several, _transactions.ids):
        patch(module, "find_unended", loose)
    patch(storage.format.commits, "ended", lambda unended, e: ended(unended, taken(unended, e)))

    def end_any(work, given):
        for ending in given:
            end(work, [taken(work.unended, ending)])

    any_ends = replace(parts["ends"], segments=end_any)
    patch(storage.format.commits, "PARTS", {**parts, "ends": any_ends})


def takeover_commits(patch: Patch) -> None:
    """Who takes an id up commits what was left open (S48)."""
    raised = _transactions.ids.raised

    def committing(handle, tip, transaction_id):
        edit = raised(handle, tip, transaction_id)
        return replace(edit, ends=tuple(replace(end, outcome=COMMITTED) for end in edit.ends))

    patch(_transactions.ids, "raised", committing)


def timeout_by_own_clock(patch: Patch) -> None:
    """Whether a transaction took too long is told by the clock of who comes by (S50)."""
    patch(
        _transactions.several,
        "_age_ms",
        lambda home, entry: home.clock.now_ms() - entry.started_ms,
    )


def decided_before_prepared(patch: Patch) -> None:
    """The home decides though a participant could not be prepared (X2 before X3)."""
    prepare = _transactions.deferred.Several.prepare

    def hasty(self, check_time, closable):
        try:
            return prepare(self, check_time, closable)
        except storage.errors.StoreUnavailableError:
            if not self.is_tried:
                raise
            return None

    patch(_transactions.deferred.Several, "prepare", hasty)


def doubt_forgotten(patch: Patch) -> None:
    """A commit that is tried again, and fails, is not committed: the first try may be (T4)."""
    work = _transactions.deferred.Committing
    committed = work._committed

    def certain(self):
        self._in_doubt = False
        return committed(self)

    patch(work, "_committed", certain)


def marker_goes_at_once(patch: Patch) -> None:
    """A marker has but one stage: the first pass that covers it removes it (S53)."""
    marker = storage.format.transactions.Marker
    patch(marker, "may_go", lambda _self, _now_ms: True)


def cut_at_the_newest(patch: Patch) -> None:
    """A cut is the newest version of each log (S74)."""
    patch(storage.cuts, "consistent", lambda bounds, _shown, _firsts: dict(bounds))


def parted(patch: Patch) -> None:
    """The stable offset is that of the first undecided record, whomever it parts (S51)."""

    def first(head, p):
        mine = [entry.first[p] for entry in head.unended if p in entry.first]
        return max(min(mine), head.partitions.start[p]) if mine else head.partitions.end[p]

    patch(Head, "stable_offset", first)


DEAL_BUGS = {
    "late prepare is accepted after the outcome": late_prepare,
    "outcome guessed where the home cannot be read": outcome_guessed,
    "home forgets an abort": abort_forgotten,
    "fenced epoch's end is obeyed": fenced_end_obeyed,
    "cleaner drops an undecided object": undecided_dropped,
    "stable offset taken at the wrong log": stable_of_another_log,
    "end of another transaction is obeyed": number_ignored,
    "takeover commits what was open": takeover_commits,
    "timeout by one's own clock": timeout_by_own_clock,
    "decided before all are prepared": decided_before_prepared,
    "doubt is forgotten by the next try": doubt_forgotten,
    "marker goes at once": marker_goes_at_once,
    "stable offset parts a transaction": parted,
}
"""By name; worlds with several logs must find them."""
CUT_BUGS = {"cut at the newest versions": cut_at_the_newest}
"""By name; worlds that are made for cuts must find them."""
