"""When to look for what was never committed: the log itself knows when that was done last, since
cleaners come and go.

A sweep raises the orphan floor to what was the newest version `ORPHAN_AGE_MS` before it
(`objects`). So when it was done the version after the floor was younger than that, and once this
one is `SWEEP_MS` older still the last sweep is at least `SWEEP_MS` ago, whoever did it.

A log on which nothing happened since but sweeps is left alone: what bears the stamp of its newest
version may still be committed (FORMAT.md §6).
"""

from dataclasses import replace

from clog.cleaner.sweep.objects import ORPHAN_AGE_MS
from clog.cleaner.sweep.store_times import written_ms
from clog.storage.commit.handle import Handle
from clog.storage.format.commits import edit_of, read_commit
from clog.storage.format.edits import Edit

SWEEP_MS = 86_400_000
"""Sweeps of one log are at least so far apart."""


class SweepSchedule:
    """Tells when a log is due. Remembers what cannot change, so that most looks cost nothing."""

    def __init__(self) -> None:
        self._after_floor = (-1, 0)
        self._quiet_version = -1

    def is_due(self, handle: Handle, *, now_ms: int) -> bool:
        """Tells whether the last sweep was long enough ago. Costs one request for each floor, once
        the log is old enough, and one for each commit since of which only sweeps are the reason.
        """
        tip, before_ms = handle.tip, now_ms - ORPHAN_AGE_MS - SWEEP_MS
        floor = tip.head.orphan_floor
        is_young = before_ms < tip.head.log.created_ms <= now_ms  # Else a clock was ahead.
        if tip.version <= floor or is_young:
            return False
        if self._after_floor[0] != floor:
            # One that is gone went with its block, so long ago was it written.
            self._after_floor = (floor, written_ms(handle, handle.store, floor + 1) or 0)
        if self._after_floor[1] > before_ms or tip.version == self._quiet_version:
            return False
        if all(_is_by_a_sweep(handle, v) for v in range(floor + 1, tip.version + 1)):
            self._quiet_version = tip.version
            return False
        return True


def _is_by_a_sweep(handle: Handle, version: int) -> bool:
    try:
        edit = edit_of(handle.store, read_commit(handle.store, version).record)
    except FileNotFoundError:
        return False
    return replace(edit, orphan_floor=None) == Edit()
