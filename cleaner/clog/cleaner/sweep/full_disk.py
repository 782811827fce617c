"""Making room on a disk that is full: deleting begins with a commit, and there is no room for one.

D1. What bounds that are committed allow goes without a byte written: released objects that no
    readable version needs, objects below the floor that were never committed, temporary files that
    are a day older than the newest commit. A sweep that died left them.
D2. The reserve is given up (`reserve`).
D3. What is due by now goes as ever (`sweep_released`), in the room that this made.
"""

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from clog.cleaner.sweep.objects import ORPHAN_AGE_MS, sweep_released
from clog.storage.commit.handle import Handle
from clog.storage.commit.reserve import give_up_reserve
from clog.storage.config.log_config import NO_DEFAULTS
from clog.storage.format import paths
from clog.storage.store.base import Store, StoredObject, StoreFullError

_LOGGER = logging.getLogger(__name__)

_T = TypeVar("_T")


def with_room(
    handle: Handle,
    step: Callable[[], _T],
    *,
    store: Store | None = None,
    defaults: Mapping[str, str] = NO_DEFAULTS,
) -> _T:
    """Does a step of maintenance; where the disk is full makes room, and does it once more.
    ``defaults`` and ``store`` as of `sweep_released`.

    Raises:
        StoreFullError: no room could be made, or too little.
    """
    try:
        return step()
    except StoreFullError as e:
        freed = _delete_allowed(handle, store or handle.store)  # D1
        has_given = give_up_reserve(handle.store)  # D2
        if not (freed or has_given):
            raise
        now_ms = handle.clock.now_ms()
        swept = sweep_released(handle, now_ms=now_ms, defaults=defaults, store=store)  # D3
        _LOGGER.warning(
            "the disk of %s is full; deleted %d files of %d bytes that nobody needs%s (%s)",
            *(handle.store.url, len(freed) + len(swept.objects)),
            sum(found.size_bytes for found in freed) + swept.size_bytes,
            ", and gave the reserve up" if has_given else "",
            e,
        )
        return step()


def _delete_allowed(handle: Handle, store: Store) -> list[StoredObject]:
    """Does D1, and returns what was deleted. No clock has a part in it but the disk's own."""
    handle.refresh()
    manifest = handle.manifest()
    alive, head = manifest.files(), manifest.head
    last = {r.path: r.version for r in manifest.released}  # in the order of their versions
    dead: list[StoredObject] = []
    for found in store.list(paths.DATA):
        stamp = paths.stamp_of(found.path)
        if found.path in alive or stamp is None:
            continue
        released = last.get(found.path)
        if stamp < head.orphan_floor if released is None else released <= head.oldest_readable:
            dead.append(found)
    written = [found.modified_ms for found in store.list(paths.commit_path(manifest.version))]
    before_ms = max(written, default=0) - ORPHAN_AGE_MS
    dead += [found for found in store.list_temporary("") if found.modified_ms < before_ms]
    for found in dead:
        store.delete(found.path)
    return dead
