"""Which records a pass retains, given the map of its dirty range (S21, S23).

Pure: what to read, what to write and when are decided elsewhere. Control records and records of
aborted transactions (S22, S24) are not rows here.
"""

from dataclasses import dataclass

import numpy as np

from clog.storage.numpy_arrays import Mask, Offsets
from clog.storage.readers.holds import NOTHING_HELD, HeldTombstones


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What becomes of each row, and how many go for which reason.

    Attributes:
        keep: rows that stay.
        new_horizon: kept tombstones whose delete horizon this pass sets: the latest of their
            key, mapped, and without a horizon so far (S23).
        expired: tombstones, latest of their key, dropped because their horizon has come.
        superseded: rows dropped because the map has a higher offset for their key.
        invalid: rows dropped because they have no key.
    """

    keep: Mask
    new_horizon: Mask
    expired: Mask
    superseded: int
    invalid: int

    @property
    def expired_tombstones(self) -> int:
        """Number of rows that are `expired`."""
        return int(np.count_nonzero(self.expired))

    @property
    def dropped(self) -> int:
        """Number of rows that go."""
        return self.superseded + self.expired_tombstones + self.invalid


def decide_retention(
    *,
    offsets: Offsets,
    superseded: Mask,
    key_valid: Mask,
    is_tombstone: Mask,
    delete_horizon_ms: Offsets,
    latest_offset: int,
    now_ms: int,
    held: HeldTombstones = NOTHING_HELD,
) -> Verdict:
    """Decides for each row; the first line that fits counts (S21, S23)::

        offset > map's last offset                    keep    unknown, even without a key
        no key                                        drop    invalid
        map has a higher offset for the key           drop    superseded
        tombstone, horizon come, held by a reader     keep
        tombstone, horizon set and now_ms >= horizon  drop    expired tombstone
        tombstone, horizon not set                    keep    and set it
        anything else                                 keep

    A tombstone is a row with a key and a null value; an empty value is a value. So a tombstone
    survives the first pass that sees it as the latest of its key, whatever the clock says, and
    a horizon is never set again.

    Args:
        offsets: of the rows, in any order.
        superseded: whether the map has a higher offset for the row's key.
        key_valid: whether the row has a key.
        is_tombstone: whether the row's value is null.
        delete_horizon_ms: set by an earlier pass; -1 where none.
        latest_offset: the last one that the map covers.
        now_ms: time of the pass.
        held: tombstones that readers hold back (S64).
    """
    mapped = offsets <= latest_offset
    invalid = mapped & ~key_valid
    latest_tombstone = mapped & key_valid & is_tombstone & ~superseded
    is_set = delete_horizon_ms >= 0
    expired = latest_tombstone & is_set & (delete_horizon_ms <= now_ms)
    if held != NOTHING_HELD:
        expired &= ~held.mask(offsets, delete_horizon_ms)
    return Verdict(
        keep=~(invalid | superseded | expired),
        new_horizon=latest_tombstone & ~is_set,
        expired=expired,
        superseded=int(np.count_nonzero(superseded)),
        invalid=int(np.count_nonzero(invalid)),
    )
