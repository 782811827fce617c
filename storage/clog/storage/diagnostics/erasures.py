"""What an erasure waits for, by the newest version alone, and who holds it up (S59)."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from clog.storage.config.log_config import LogConfig
from clog.storage.format.commits import Head
from clog.storage.format.documents import NONE
from clog.storage.format.erasures import ErasureEntry
from clog.storage.format.manifest import Manifest
from clog.storage.readers import Holds

SWEEP_AFTER_MS: Final = 86_400_000
"""What was written so long ago and is in no manifest will never be committed (COMMIT.md §5)."""


def pending_reason(
    manifest: Manifest, one: ErasureEntry, config: LogConfig, holds: Holds, *, now_ms: int
) -> str:
    """Returns what an erasure waits for, in words."""
    if one.reason:
        return one.reason
    if one.kills and (name := undecided_below(manifest, one.bounds)):
        return (
            f"transaction {name!r} has not ended, and may hold such records: clog transactions"
            " shows it, and how to end it"
        )
    if one.killed == NONE:
        return "the cleaner's next round marks its records dead"
    if one.gone == NONE:
        due_ms = tombstones_due_ms(one, config, holds)
        if due_ms > now_ms:
            if name := _tombstone_holder(one, config, holds):
                return f"the reader {name!r} holds its tombstones, until {_at(due_ms)} at most"
            return (
                f"its tombstones stay until {_at(due_ms)}, delete.retention.ms after the records"
                " went, so that followers learn of the delete"
            )
        return "the cleaner's next round removes its tombstones"
    if one.rewritten == NONE:
        return "the cleaner's next round rewrites the objects that held its records"
    left = [r for r in manifest.released if r.version <= one.rewritten]
    if left:
        needed = max(r.version for r in left)
        due_ms = one.rewritten_ms + config.file_delete_delay_ms
        held = _holder(manifest.head, needed, holds, due_ms=due_ms, now_ms=now_ms)
        return held or f"replaced objects stay readable until {_at(due_ms)}, file.delete.delay.ms"
    if one.swept == NONE:
        due_ms = one.rewritten_ms + SWEEP_AFTER_MS
        return f"what was written and never committed is swept after {_at(due_ms)}"
    return "the cleaner's next round writes the receipt"


def undecided_below(manifest: Manifest, bounds: Mapping[int, int]) -> str:
    """Returns the id of a transaction that has undecided records below the bounds; "" for none."""
    for p, chunk in manifest.chunks():
        if chunk.undecided is not None and chunk.base < bounds.get(p, 0):
            return chunk.undecided.id
    return ""


def tombstones_due_ms(one: ErasureEntry, config: LogConfig, holds: Holds) -> int:
    """Returns when the tombstones of an erasure may go, as far as is known."""
    horizon_ms = one.killed_ms + config.delete_retention_ms
    held = (holds.tombstone_ms(p, end, horizon_ms) for p, end in one.told.items())
    return max(held, default=horizon_ms)


def _tombstone_holder(one: ErasureEntry, config: LogConfig, holds: Holds) -> str:
    """Returns the reader that keeps them for longer than followers have anyway; "" for none."""
    horizon_ms = one.killed_ms + config.delete_retention_ms
    held = (hold for p, end in one.told.items() for hold in holds.of_tombstones(p, end))
    return next((hold.name for hold in held if hold.until_ms > horizon_ms), "")


def _holder(head: Head, needed: int, holds: Holds, *, due_ms: int, now_ms: int) -> str:
    """Says who keeps a version below this one, cuts first; "" for nobody."""
    for keep in head.kept.values():
        if keep.version < needed:
            until = "" if keep.until_ms == NONE else f" until {_at(keep.until_ms)}"
            return (
                f"the cut {keep.name!r} of {keep.home_url} keeps version {keep.version}{until};"
                f" clog snapshot {keep.home_url} --drop {keep.name} lets go of it"
            )
    for name, pins in head.pins.items():
        if any(pin.version < needed for pin in pins):
            return (
                f"the {name} view still shows a version from before; it is published anew, and lets"
                f" go of that file.delete.delay.ms later; clog publish --withdraw --format {name}"
                " takes it back"
            )
    for hold in holds.holds:
        if hold.version < needed and hold.until_ms > now_ms:
            until = _at(holds.version_ms(needed, due_ms))
            return f"the reader {hold.name!r} holds version {hold.version}, until {until} at most"
    return ""


def _at(ms: int) -> str:
    """Returns a time as text, in UTC."""
    return str(np.datetime64(ms, "ms")) + "Z"
