"""Deleting what no readable version needs (COMMIT.md §5).

Two kinds of garbage, two functions: *released* objects are known from the manifest, so they go
without listing anything; *orphans* were never committed, or belong to nobody any more, and are
found by listing, once in a long while.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from clog.cleaner.sweep.clock_skew import SKEW_MS_MAX, check_clock, is_comparable
from clog.cleaner.sweep.documents import unneeded_documents
from clog.cleaner.sweep.other_logs import sweep_other_logs
from clog.cleaner.sweep.readers import expired_readers
from clog.cleaner.sweep.store_times import newest_by
from clog.cleaner.sweep.strays import sweep_strays
from clog.cleaner.sweep.views import unneeded_view_files
from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import NO_DEFAULTS, LogConfig, with_defaults
from clog.storage.errors import CorruptionError, VersionExpiredError
from clog.storage.format import paths
from clog.storage.format.commits import Commit
from clog.storage.format.edits import Edit
from clog.storage.format.manifest import Manifest, Released
from clog.storage.format.views.pins import lowest_pinned
from clog.storage.readers.holds import Holds, read_holds
from clog.storage.store.base import Store, StoredObject

Track = Callable[[Sequence[str]], Iterable[str]]
"""Yields the paths that are deleted, so that somebody can watch it."""
ORPHAN_AGE_MS = 86_400_000
"""An object that was written so long ago and is in no manifest will never be committed."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep deleted, or would."""

    objects: tuple[str, ...]
    size_bytes: int


def sweep_released(
    handle: Handle,
    *,
    now_ms: int,
    dry_run: bool = False,
    defaults: Mapping[str, str] = NO_DEFAULTS,
    store: Store | None = None,
    track: Track = iter,
) -> Swept:
    """Deletes objects that nothing refers to and that were released longer than
    ``file.delete.delay.ms`` ago (S27). ``defaults`` are the process's (S45); ``store`` is the
    handle's own, perhaps metered.

    Raises:
        ClockSkewError: this machine's clock and the store's differ too much.
    """
    manifest = handle.manifest()
    config = with_defaults(manifest.head.config, defaults)
    due = due_objects(manifest, config, now_ms=now_ms)
    if due:
        holds = read_holds(handle, config, now_ms=now_ms)
        due = not_held(due, config, holds, now_ms=now_ms)
    swept = Swept(tuple(r.path for r in due), sum(r.size_bytes for r in due))
    if dry_run or not due:
        return swept
    if is_comparable(handle.clock):
        check_clock(handle, now_ms=now_ms)
    through = max(r.version for r in due)

    oldest = raise_oldest(handle, through)  # W4
    due = [r for r in due if r.version <= oldest]  # A view may have been published meanwhile.
    swept = Swept(tuple(r.path for r in due), sum(r.size_bytes for r in due))
    for path in track(swept.objects):
        (store or handle.store).delete(path)  # W5
    handle.commit(lambda _tip, _ms: Edit(forget=swept.objects), operation="sweep")  # W6
    return swept


def raise_oldest(handle: Handle, version: int) -> int:
    """Commits that versions before this one are no longer readable, unless that is so already, as
    far as no published view needs them; returns which is the oldest readable one then.
    """

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        pinned = lowest_pinned(tip.head.pins)
        oldest = version if pinned is None else min(version, pinned)
        if tip.head.oldest_readable >= oldest:
            return NothingToCommit()
        return Edit(oldest_readable=oldest)

    handle.commit(prepare, operation="sweep")
    return handle.tip.head.oldest_readable


def due_objects(manifest: Manifest, config: LogConfig, *, now_ms: int) -> list[Released]:
    """Returns released objects to which no chunk refers, nor a published view, released long enough
    ago. Pure.

    A dead object never comes back to life: a replacement may only refer to chunks that are there.
    One that lost its chunks bit by bit is dead since it lost the last (FORMAT.md §6).
    """
    alive = manifest.files()
    last = {r.path: r for r in manifest.released}  # in the order of their versions
    pinned = lowest_pinned(manifest.head.pins)
    return [
        r
        for r in last.values()
        if r.path not in alive
        and now_ms - r.time_ms > config.file_delete_delay_ms
        and (pinned is None or r.version <= pinned)
    ]


def not_held(
    due: list[Released], config: LogConfig, holds: Holds, *, now_ms: int
) -> list[Released]:
    """Returns those that are due and that no reader holds with its version (S64). Pure."""
    delay_ms = config.file_delete_delay_ms
    held = (
        r.version
        for r in due
        if holds.keeps_version(r.version, r.time_ms + delay_ms, now_ms=now_ms)
    )
    first = min(held, default=None)
    return due if first is None else [r for r in due if r.version < first]


def sweep_orphans(
    handle: Handle,
    *,
    now_ms: int,
    age_ms: int = ORPHAN_AGE_MS,
    dry_run: bool = False,
    store: Store | None = None,
    track: Track = iter,
) -> Swept:
    """Raises the orphan floor to what was the newest version ``age_ms`` ago, then deletes objects
    with a stamp below it that no readable version refers to, and documents and temporary files as
    old. ``store`` is the handle's own, perhaps metered.

    Raises:
        ClockSkewError: this machine's clock and the store's differ too much.
    """
    if is_comparable(handle.clock):
        check_clock(handle, now_ms=now_ms, dry_run=dry_run)
    store = store or handle.store
    floor = max(newest_by(handle, store, now_ms - age_ms), handle.tip.head.orphan_floor)
    old_ms = now_ms - age_ms
    if not dry_run:
        handle.commit(lambda tip, _: _raised(tip, floor), operation="floor")  # W1
        old_ms = min(old_ms, handle.tip.record.time_ms - SKEW_MS_MAX)
    orphans = _orphans(handle, store, floor, old_ms)  # W2: at or after the floor's commit
    if not dry_run:
        for path in track([found.path for found in orphans]):
            store.delete(path)  # W3
    forgotten = expired_readers(store, before_ms=now_ms - age_ms)
    if not dry_run:
        for found in forgotten:
            store.delete(found.path)
    left = [t for t in store.list_temporary("") if t.modified_ms < now_ms - age_ms]
    if not dry_run:
        for found in left:
            store.delete(found.path)
    swept = [
        *orphans,
        *forgotten,
        *left,
        *sweep_other_logs(handle, before_ms=now_ms - age_ms, dry_run=dry_run),
        *sweep_strays(handle, before_ms=now_ms - age_ms, dry_run=dry_run),
    ]
    return Swept(tuple(o.path for o in swept), sum(o.size_bytes for o in swept))


def _orphans(handle: Handle, store: Store, floor: int, old_ms: int) -> list[StoredObject]:
    """Returns the objects with a stamp below the floor, and documents written before ``old_ms``.

    Raises:
        CorruptionError: what the newest version needs is missing.
        LogReplacedError, NotFoundError: since the log was deleted.
    """
    tip = handle.tip
    try:
        return _orphans_at_tip(handle, store, floor, old_ms)
    except (FileNotFoundError, VersionExpiredError) as e:
        # Another cleaner closed a block or swept: newer versions need it no more.
        if handle.refresh() is tip:
            handle.standing.check()
            raise CorruptionError(
                f"the newest version of {store.url}, {tip.version}, needs what is missing: {e};"
                " nothing was deleted"
            ) from e
        return _orphans_at_tip(handle, store, floor, old_ms)


def _orphans_at_tip(handle: Handle, store: Store, floor: int, old_ms: int) -> list[StoredObject]:
    manifest = handle.manifest()
    needed = set(manifest.files())
    needed.update(r.path for r in manifest.released)
    objects = [
        found
        for found in store.list(paths.DATA)
        if found.path not in needed
        and (stamp := paths.stamp_of(found.path)) is not None
        and stamp < floor
    ]
    documents = unneeded_documents(store, handle.tip, floor, before_ms=old_ms)
    return [*objects, *documents, *unneeded_view_files(handle, store, before_ms=old_ms)]


def _raised(tip: Commit, floor: int) -> Edit | NothingToCommit:
    if tip.head.orphan_floor >= floor:
        return NothingToCommit()
    return Edit(orphan_floor=floor)
