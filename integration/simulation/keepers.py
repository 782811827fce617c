"""Keepers of a simulated world: cleaners, coalescer, sweeper, and an operator."""

from actors import Actor
from records import PARTITIONS

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.commit_blocks import close_blocks
from clog.cleaner.duties.layout import coalesce, trim
from clog.cleaner.duties.sweep import sweep_orphans, sweep_released
from clog.storage.env import SeededIds
from clog.storage.errors import AlreadyExistsError, VersionExpiredError

HOUR_MS = 3_600_000
_MAPS_BYTES = (4 * 24, 1 << 12)
"""A map of three keys, fewer than a partition has, and one for all."""


class Keeper(Actor):
    """Works from a version that may be gone before it is done: others were faster, by hours."""

    def act(self) -> None:
        try:
            self.work()
        except (FileNotFoundError, VersionExpiredError):
            if self.oracle.is_over:
                raise

    def work(self) -> None:
        """One round."""
        raise NotImplementedError


class CleanerActor(Keeper):
    """Rounds of a cleaner: sealing, retention, trimming, passes, coalescing, deletion."""

    may_be_late = True

    def start_process(self) -> None:
        super().start_process()
        self._cleaner = None

    def reopen(self) -> None:
        super().reopen()
        self._cleaner = None

    def work(self) -> None:
        if self._cleaner is None:
            map_bytes = _MAPS_BYTES[self.world.roll(2)]
            self._cleaner = Cleaner(self.log, dedupe_buffer_bytes=map_bytes)
        self._cleaner.run_once(force=self.world.roll(4) > 0)


class ZombieCleaner(CleanerActor):
    """One that sleeps for days before it creates a version."""

    sleeps = True
    may_be_late = False


class Coalescer(Keeper):
    """Merges small objects, trims what lies below the log start."""

    def work(self) -> None:
        handle = self.log.handle
        handle.refresh()
        now_ms = self.clock.now_ms()
        coalesce(Work(handle, now_ms), force=self.world.roll(2) == 0)
        trim(Work(handle, 0))


class Sweeper(Keeper):
    """All that deletes."""

    may_be_late = True

    def work(self) -> None:
        sweep(self.log.handle)


def sweep(handle) -> None:
    """Deletes what is due, of every kind."""
    handle.refresh()
    now_ms = handle.clock.now_ms()
    sweep_released(Work(handle, now_ms))
    sweep_orphans(Work(handle, now_ms))
    close_blocks(Work(handle, now_ms))


class Operator(Actor):
    """Deletes records, seals segments, changes configs."""

    def act(self) -> None:
        log, p = self.log, self.world.roll(PARTITIONS)
        choice = self.world.roll(6)
        if self.world.is_ordered and choice < 2:
            if choice == 0:  # A log that compares orders refuses what would take winners away.
                log.alter(self.world.order_config(log.handle.recent().head.config))
        elif self.world.is_fleeting and choice < 2:
            log.delete_records(dict.fromkeys(range(PARTITIONS), -1))
        elif choice < 2:
            end = log.end_offsets()[p]
            asked = -1 if self.world.roll(4) == 0 else self.world.roll(end + 1)
            start = log.delete_records({p: asked})[p]
            if self.oracle.is_over:
                return
            now = self.oracle.manifest.head.partitions.start[p]
            assert max(asked, 0) <= start <= now, f"start {start} is told, it is {now}"
        elif choice < 5:
            log.roll()
        else:
            log.alter({"delete.retention.ms": HOUR_MS // 2 * (1 + self.world.roll(3))})


class Changer(Actor):
    """An operator who changes how records are compared, again and again."""

    def act(self) -> None:
        log = self.log
        if self.world.roll(3) == 0:
            log.alter(self.world.order_config(log.handle.recent().head.config))


class Recreator(Actor):
    """Deletes the log, all of it, and makes another in its place: at once, or while others act."""

    works_on_log = False

    def act(self) -> None:
        world, site = self.world, self.site
        logs = site.logs
        if logs.is_stable:
            if world.roll(4):
                return
            logs.end()
        store = site.disk if world.roll(2) else self.store
        while left := logs.left():
            for path in reversed(left) if world.roll(2) else left:
                (store if world.roll(8) == 0 else site.disk).delete(path)
        try:
            world.create_log(site, store, self.clock, SeededIds(world.roll(1 << 40)))
        except AlreadyExistsError:
            pass  # An attempt before this one was done after all.
