"""Deleting what no readable version needs (COMMIT.md §5).

Two kinds of garbage, two functions: *released* objects are known from the manifest, so they go without listing anything; *orphans* were never committed, or belong to
nobody any more, and are found by listing, once in a long while.
"""

from dataclasses import dataclass

from clog.storage import paths
from clog.storage.commit import Answer
from clog.storage.commits import Commit, read_commit
from clog.storage.config import LogConfig
from clog.storage.edits import Edit
from clog.storage.errors import StoreUnavailableError
from clog.storage.handle import Handle
from clog.storage.manifest import Manifest, Released

ORPHAN_AGE_MS = 86_400_000
"""An object that was written so long ago and is in no manifest will never be committed."""
SKEW_MS_MAX = 300_000
"""Clocks of this machine and of the store that differ by more make the sweep refuse to work."""


class ClockSkewError(StoreUnavailableError):
    """This machine's clock and the store's differ too much to tell how old an object is."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep deleted, or would."""

    objects: tuple[str, ...]
    size_bytes: int


def sweep_released(handle: Handle, *, now_ms: int, dry_run: bool = False) -> Swept:
    """Deletes objects that nothing refers to and that were released longer than ``file.delete.delay.ms`` ago (S27)."""
    manifest = handle.manifest()
    config = LogConfig.from_overrides(manifest.head.config)
    due = due_objects(manifest, config, now_ms=now_ms)
    swept = Swept(tuple(r.path for r in due), sum(r.size_bytes for r in due))
    stale = _still_referred(manifest)
    if dry_run or not (due or stale):
        return swept
    if due:
        through = max(r.version for r in due)

        def raise_oldest(tip: Commit, _: int) -> Edit:
            if tip.head.oldest_readable >= through:
                raise Answer(None)
            return Edit(oldest_readable=through)

        try:
            handle.commit(raise_oldest, operation="sweep")  # W4
        except Answer:
            pass
        for path in swept.objects:
            handle.store.delete(path)  # W5
    forgotten = (*swept.objects, *stale)
    handle.commit(lambda _tip, _ms: Edit(forget=forgotten), operation="sweep")  # W6
    return swept


def due_objects(manifest: Manifest, config: LogConfig, *, now_ms: int) -> list[Released]:
    """Released objects to which no chunk refers, and whose newest release is old enough."""
    alive = {c.object.path for _, c in manifest.chunks()}
    newest: dict[str, Released] = {}
    for released in manifest.released:
        if released.path not in alive:
            newest[released.path] = released  # In the order of versions: the last one stays.
    return [r for r in newest.values() if now_ms - r.time_ms > config.file_delete_delay_ms]


def sweep_orphans(
    handle: Handle, *, now_ms: int, age_ms: int = ORPHAN_AGE_MS, dry_run: bool = False
) -> Swept:
    """Raises the orphan floor to what was the newest version ``age_ms`` ago, then deletes unreferenced objects stamped below it.

    Raises:
        ClockSkewError: this machine's clock and the store's differ too much.
    """
    check_clock(handle, now_ms=now_ms)
    floor = _version_before(handle, now_ms - age_ms)
    if not dry_run and floor > handle.tip.head.orphan_floor:
        handle.commit(lambda tip, _: _floor(tip, floor), operation="floor")  # W1
    floor = max(floor, handle.tip.head.orphan_floor)
    manifest = handle.manifest()  # W2: at or after the commit of the floor
    needed = {c.object.path for _, c in manifest.chunks()}
    needed.update(r.path for r in manifest.released)
    orphans = [
        found
        for found in handle.store.list(paths.DATA)
        if found.path not in needed
        and (stamp := paths.stamp_of(found.path)) is not None
        and stamp < floor
    ]
    if not dry_run:
        for found in orphans:
            handle.store.delete(found.path)  # W3
    return Swept(tuple(o.path for o in orphans), sum(o.size_bytes for o in orphans))


def check_clock(handle: Handle, *, now_ms: int) -> None:
    """Compares this clock with the store's, by the mtime of an object just written."""
    path = f"_clog/clock-{handle.ids.new_id()}"
    handle.store.put(path, b"clock")
    try:
        stamps = [found.modified_ms for found in handle.store.list(path)]
    finally:
        handle.store.delete(path)
    for modified_ms in stamps:
        if modified_ms is not None and abs(modified_ms - now_ms) > SKEW_MS_MAX:
            raise ClockSkewError(
                f"the clock here says {now_ms}, that of {handle.store.url} {modified_ms}:"
                f" {abs(modified_ms - now_ms)} ms apart, more than {SKEW_MS_MAX}; set the clock,"
                " nothing was deleted"
            )


def _floor(tip: Commit, floor: int) -> Edit:
    if tip.head.orphan_floor >= floor:
        raise Answer(None)
    return Edit(orphan_floor=floor)


def _still_referred(manifest: Manifest) -> tuple[str, ...]:
    """Released objects that other chunks still refer to: when the last of those goes, they are released again."""
    alive = {c.object.path for _, c in manifest.chunks()}
    return tuple(dict.fromkeys(r.path for r in manifest.released if r.path in alive))


def _version_before(handle: Handle, time_ms: int) -> int:
    """The newest version committed at or before the time, by halving: commit times are monotone."""
    low, high = handle.tip.head.oldest_readable, handle.tip.version
    while low < high:
        middle = (low + high + 1) // 2
        try:
            before = read_commit(handle.store, middle).record.time_ms <= time_ms
        except FileNotFoundError:
            before = True  # Deleted with its block: older than any that is left.
        low, high = (middle, high) if before else (low, middle - 1)
    return low
