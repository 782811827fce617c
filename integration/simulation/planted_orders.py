"""Bugs to plant where the record with the highest order wins (FORMAT.md §15); see `planted`."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from limits import Patch

import clog.cleaner.passes.offset_map
import clog.cleaner.passes.ordered
import clog.cleaner.passes.run_pass
import clog.storage.keys.latest
import clog.storage.log
import clog.storage.read.ordered

_ordered, _run_pass = clog.cleaner.passes.ordered, clog.cleaner.passes.run_pass
_reading = clog.storage.read.ordered
_latest = clog.storage.keys.latest
_Ranking = clog.cleaner.passes.offset_map.Ranking


def reader_by_offset(patch: Patch) -> None:
    """Tables compare offsets, as in any other log (S56)."""
    compared = _reading._compared

    def last(rows, order, seed):
        words, offsets, ranks = compared(rows, order, seed)
        return words, offsets, _latest.ranks_of(offsets, _latest.counted(ranks))

    patch(_reading, "_compared", last)


def cleaner_by_offset(patch: Patch) -> None:
    """Passes keep the last record of a key (S56)."""

    def last(self, rows):
        del self
        orders = np.zeros(rows.num_rows, np.int64)
        none = np.zeros(rows.num_rows, np.bool_)
        return _latest.ranks_of(orders, ~none), none

    patch(_Ranking, "of", last)


def clean_part_not_asked(patch: Patch) -> None:
    """A pass compares what is dirty alone: an older record of a higher order is superseded."""
    patch(_ordered, "_ask_clean", lambda _, __, mapped, **___: mapped.offset_map)


def tombstone_leaves_losers(patch: Patch) -> None:
    """A tombstone goes at its horizon, whoever lost to it and is still there (H-O7)."""
    sole = _ordered._sole_tombstones

    def any_due(store, plan, best, *, ranking, hasher):
        del best
        blind = SimpleNamespace(knows=lambda h: np.zeros(len(h), bool), latest_offset=1 << 60)
        return sole(store, plan, blind, ranking=ranking, hasher=hasher)

    patch(_ordered, "_sole_tombstones", any_due)
    patch(_ordered.SoleTombstones, "left_alone", lambda *_: True)


def tombstone_not_asked_again(patch: Patch) -> None:
    """A tombstone goes though a record of its key came since that was asked."""
    patch(_ordered.SoleTombstones, "left_alone", lambda *_: True)


def removed_order_not_kept(patch: Patch) -> None:
    """A tombstone goes and leaves no pair: nothing is late (S57)."""
    patch(_ordered, "with_removed", lambda pairs, _order, _end: pairs)


def newest_pair_alone(patch: Patch) -> None:
    """Of the pairs the newest counts alone (H-O8)."""

    def newest(pairs, order, end):
        return ((order, end),) if order >= 0 else pairs

    patch(_ordered, "with_removed", newest)


def late_dropped_under_keep(patch: Patch) -> None:
    """Late records are dropped wherever there are some, also where they are to be kept."""
    ranking = _run_pass._ranking

    def eager(plan):
        found = ranking(plan)
        return None if found is None else replace(found, stops=True)

    patch(_run_pass, "_ranking", eager)


def late_shield_one_another(patch: Patch) -> None:
    """A late record stays where its key has another one, though that is late itself (H-O9)."""
    of = _Ranking.of

    def shielding(self, rows):
        _, suspect = of(self, rows)
        orders = self.order.values(rows)
        return _latest.ranks_of(orders, np.ones(len(orders), bool)), suspect

    patch(_Ranking, "of", shielding)


def reader_shows_late(patch: Patch) -> None:
    """Readers show a late record until a pass drops it (H-O12)."""
    compared = _reading._compared

    def trusting(rows, order, seed):
        return compared(rows, replace(order, removed=()), seed)

    patch(_reading, "_compared", trusting)


def pass_over_a_change(patch: Patch) -> None:
    """A pass that was planned before the strategy changed is committed after it (H-O18)."""
    patch(_run_pass, "order_text", lambda _config: "")
    patch(_ordered, "order_text", lambda _config: "")


ORDER_BUGS = {
    "table compares offsets": reader_by_offset,
    "pass compares offsets": cleaner_by_offset,
    "clean part is not asked": clean_part_not_asked,
    "tombstone goes before its losers": tombstone_leaves_losers,
    "tombstone is not asked for again": tombstone_not_asked_again,
    "removed order is not kept": removed_order_not_kept,
    "newest pair counts alone": newest_pair_alone,
    "late record dropped under keep": late_dropped_under_keep,
    "late records shield one another": late_shield_one_another,
    "reader shows late records": reader_shows_late,
    "pass of the old strategy": pass_over_a_change,
}
"""By name; each is found by worlds that are made for orders."""
