"""Bugs to plant in what keeps masks of superseded rows up (FORMAT.md §13); see `planted`."""

from dataclasses import replace

import numpy as np
from limits import Patch

import clog.cleaner.masks

_masks = clog.cleaner.masks


def row_too_many(patch: Patch) -> None:
    """Of new chunks the mask hides one row more, the first: it may be the last of its key."""
    judge = _masks.new_rows

    def eager(store, chunks, schema):
        judged = judge(store, chunks, schema)
        judged.superseded[0][0] = True
        return judged

    patch(_masks, "new_rows", eager)


def older_not_asked(patch: Patch) -> None:
    """New chunks are judged among themselves, and no older one is asked for their keys (M1b)."""
    patch(_masks, "superseded_in", lambda *_: ())


def aborted_supersedes(patch: Patch) -> None:
    """Records that were aborted are judged as others are (S53)."""
    marks = _masks.MaskMaker.marks

    def blind(self, partition, older, fresh):
        return marks(self, partition, older, [replace(c, outcome=None) for c in fresh])

    patch(_masks.MaskMaker, "marks", blind)


def not_renewed(patch: Patch) -> None:
    """What a pass writes counts as covered, and has no bit of the rows that it took over."""
    patch(_masks.MaskCarrier, "_bits", lambda *_: None)


def carried_by_place(patch: Patch) -> None:
    """Bits are carried over by their place, as if a rewrite kept each row where it was."""

    def by_place(_store, chunk, _schema):
        return np.arange(chunk.base, chunk.base + chunk.rows)

    patch(_masks, "offsets_of", by_place)


MASK_BUGS = {
    "mask hides a row too many": row_too_many,
    "mask of older rows not renewed": older_not_asked,
    "aborted record supersedes": aborted_supersedes,
    "mask not renewed after a pass": not_renewed,
    "mask carried over by place": carried_by_place,
}
"""By name; worlds whose logs have masks must find them."""
