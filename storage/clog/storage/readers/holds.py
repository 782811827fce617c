"""Holds: named readers that are waited for, for a bounded time (FORMAT.md §18, S64).

A reader that asks for it *holds* what it has not come to: tombstones at or above its offsets, and
its version. It holds until ``hold_ms`` after its file was written, by the store's times, and
nothing for longer than ``max_ms`` after it would have gone. So whatever readers, files and clocks
say, and however many they are, what they hold back goes with a known delay.

Who removes a tombstone or a version asks here before. In a log whose readers may not hold, nobody
asks the store for anything; else each look is a LIST, and what `read_reader` costs for each file
that is young enough to hold something.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clog.storage.commit.handle import Handle
from clog.storage.config.definitions import LONG_MAX
from clog.storage.config.log_config import LogConfig
from clog.storage.format.features import FEATURES, READER_HOLDS, FeatureNames, lists_of
from clog.storage.format.head import Head
from clog.storage.numpy_arrays import Mask, Offsets
from clog.storage.readers.documents import ReaderDocument, StrayReaderError, readers_of


@dataclass(frozen=True, slots=True)
class HeldTombstones:
    """Which tombstones of a partition are held at a moment: those from ``start`` on whose delete
    horizon is later than ``after_ms``.
    """

    start: int = LONG_MAX
    after_ms: int = LONG_MAX

    def mask(self, offsets: Offsets, horizons_ms: Offsets) -> Mask:
        """Returns which of these rows would be held, were they tombstones."""
        held: Mask = (offsets >= self.start) & (horizons_ms > self.after_ms)
        return held

    def may_hold(self, next_offset: int, horizon_ms: int) -> bool:
        """Tells whether tombstones below an offset with horizons up to this one may be held."""
        return next_offset > self.start and horizon_ms > self.after_ms


NOTHING_HELD = HeldTombstones()


@dataclass(frozen=True, slots=True)
class Hold:
    """What one reader holds: what is at or above its ``offsets``, and versions from ``version`` on,
    until ``until_ms``.
    """

    name: str
    version: int
    offsets: Mapping[int, int]
    until_ms: int


@dataclass(frozen=True, slots=True)
class Holds:
    """What readers of a log hold; nothing for longer than ``max_ms`` after it would have gone."""

    holds: tuple[Hold, ...] = ()
    max_ms: int = 0

    def until_ms(self, name: str) -> int:
        """Returns until when this reader holds; 0: it does not."""
        return next((h.until_ms for h in self.holds if h.name == name), 0)

    def of_partition(self, partition: int, *, now_ms: int) -> HeldTombstones:
        """Returns which tombstones of a partition are held now."""
        starts = [h.offsets[partition] for h in self.holds if h.until_ms > now_ms]
        if not starts:
            return NOTHING_HELD
        return HeldTombstones(min(starts), max(-1, now_ms - self.max_ms))

    def keeps_version(self, version: int, due_ms: int, *, now_ms: int) -> bool:
        """Tells whether ``oldest_readable`` may not become this version now, which without holds it
        could from ``due_ms`` on.
        """
        return now_ms < due_ms + self.max_ms and any(
            h.version < version and h.until_ms > now_ms for h in self.holds
        )

    def tombstone_ms(self, partition: int, next_offset: int, horizon_ms: int) -> int:
        """Returns when tombstones below an offset with this horizon may go, as far as is known."""
        held = [h.until_ms for h in self.holds if h.offsets[partition] < next_offset]
        return max(horizon_ms, min(max(held, default=0), horizon_ms + self.max_ms))

    def version_ms(self, version: int, due_ms: int) -> int:
        """Returns when ``oldest_readable`` may become this version, as far as is known, which
        without holds it could from ``due_ms`` on.
        """
        held = [h.until_ms for h in self.holds if h.version < version]
        return max(due_ms, min(max(held, default=0), due_ms + self.max_ms))


NO_HOLDS = Holds()


def features_of_holds(config: LogConfig) -> FeatureNames:
    """Returns the features that a log with these configs has, for its readers may hold."""
    return lists_of([FEATURES[READER_HOLDS]] if config.reader_hold_max_ms else [])


def hold_max_ms(head: Head, config: LogConfig) -> int:
    """Returns for how long readers of the log may hold anything; 0: they may not."""
    if READER_HOLDS not in head.log.features:
        return 0
    return min(config.reader_hold_max_ms, config.max_compaction_lag_ms)


def hold_of(reader: ReaderDocument, *, written_ms: int, max_ms: int, now_ms: int) -> Hold | None:
    """Returns what a reader holds whose file was written at a time; None where it is nothing."""
    until_ms = min(written_ms, now_ms) + min(reader.hold_ms, max_ms)
    if until_ms <= now_ms:
        return None
    return Hold(reader.name, reader.version, dict(reader.offsets), until_ms)


def read_holds(handle: Handle, config: LogConfig, *, now_ms: int) -> Holds:
    """Returns what readers of the log hold; no request where they may not."""
    max_ms = hold_max_ms(handle.tip.head, config)
    if not max_ms:
        return NO_HOLDS
    young = readers_of(handle, after_ms=now_ms - max_ms)
    return holds_of(young, max_ms=max_ms, now_ms=now_ms)


def holds_of(
    readers: Iterable[tuple[str, int, ReaderDocument | StrayReaderError]],
    *,
    max_ms: int,
    now_ms: int,
) -> Holds:
    """Returns what these readers hold, which are as `readers_of` yields them."""
    found = [
        hold_of(reader, written_ms=written_ms, max_ms=max_ms, now_ms=now_ms)
        for _, written_ms, reader in readers
        if not isinstance(reader, StrayReaderError)
    ]
    return Holds(tuple(hold for hold in found if hold is not None), max_ms)
