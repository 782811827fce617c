"""What is published: the log's table at a version, as objects and the rows that they do not show.

Whoever publishes computes it from the keys and the masks that the log has (`read.view_masks`), and
hands it to a format, which says it in its own words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash

from clog.storage.commit.handle import Handle
from clog.storage.errors import InvalidInputError
from clog.storage.format.chunks import NONE
from clog.storage.format.columns import CHANGED, END, START
from clog.storage.format.head import Head
from clog.storage.format.manifest import Manifest
from clog.storage.format.object_ref import ObjectRef
from clog.storage.format.schema import LogSchema, schema_to_json
from clog.storage.publications.roaring import to_roaring64
from clog.storage.read.view_masks import ViewMask, view_masks

WITHDRAWN: Final = "withdrawn"
"""What a version without files says of itself, with the time."""


@dataclass(frozen=True, slots=True)
class Source:
    """Which table a view shows: that of ``log_id`` at ``version``, made by ``commit_id``.

    ``content`` is equal for versions between which nothing came that could change the table or its
    objects, ``starts`` for those with the same log start offsets.
    """

    log_id: str
    version: int
    commit_id: str
    content: str
    starts: str


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """Rows of an object that a view must not show: ``roaring`` is the set of them, ``rows`` their
    number, ``digest`` equal for equal sets.
    """

    rows: int
    roaring: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class ShownObject:
    """An object of which a view shows rows, all but ``hidden``."""

    object: ObjectRef
    hidden: HiddenRows | None

    @property
    def digest(self) -> str:
        """What tells the hidden rows from others; empty where there are none."""
        return "" if self.hidden is None else self.hidden.digest


@dataclass(frozen=True, slots=True)
class TableState:
    """The table at one version."""

    source: Source
    time_ms: int
    schema: LogSchema | None
    objects: Sequence[ShownObject]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at a view found: its newest version, and what that says. A value: what a thread
    decides from one is not changed by what another looks at, and the version that it makes is the
    one after ``newest``, or none.

    Attributes:
        newest: the newest version; that before the format's first one where there is none.
        modified_ms: when each version that is there was written, by the store's clock.
        is_there: whether there is any.
        is_foreign: whether there is a table that clog did not write.
        log_id: the log whose publisher wrote the newest version; None where none did.
        source: what that shows; None where it shows nothing of a log.
        withdrawn_ms: when it was withdrawn, by the clock of whoever did it; None where it was not.
    """

    newest: int
    modified_ms: Mapping[int, int]
    is_there: bool
    is_foreign: bool
    log_id: str | None
    source: Source | None
    withdrawn_ms: int | None

    def written_ms(self, view: int) -> int | None:
        """Returns when a version was written, by the store's clock: 0 where it was cleaned up, None
        where it is not there yet.
        """
        return None if view > self.newest else self.modified_ms.get(view, 0)


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What a version without files says: that the view was withdrawn, at which version of the log,
    by its commit, and when.
    """

    log_id: str
    version: int
    commit_id: str
    now_ms: int


def source_of(head: Head, *, version: int, commit_id: str) -> Source:
    """Returns which table is to be published, from the head alone."""
    columns = head.partitions.folded()
    content = xxhash.xxh3_128(columns[[START, END, CHANGED]].tobytes())
    content.update(repr(schema_to_json(head.log.schema)).encode())
    starts = xxhash.xxh3_64_hexdigest(columns[START].tobytes())
    return Source(head.log.log_id, version, commit_id, content.hexdigest(), starts)


def table_state(handle: Handle, manifest: Manifest) -> TableState:
    """Returns the table at the manifest's version; reads keys where no masks tell.

    Raises:
        VersionExpiredError: the version has expired.
    """
    head = manifest.head
    masks = view_masks(handle.store, manifest, handle.tip.head.partitions.start)
    shown = [_shown(mask) for mask in masks if mask.shown]
    return TableState(
        source_of(head, version=manifest.version, commit_id=manifest.commit_id),
        manifest.time_ms,
        head.log.schema,
        sorted(shown, key=lambda one: one.object.path),
    )


def _shown(mask: ViewMask) -> ShownObject:
    rows = int(np.count_nonzero(mask.hidden))
    if not rows:
        return ShownObject(mask.object, None)
    roaring = to_roaring64(mask.hidden)
    hidden = HiddenRows(rows, roaring, xxhash.xxh3_128_hexdigest(roaring))
    return ShownObject(mask.object, hidden)


def check_times(manifest: Manifest, *, url: str) -> None:
    """Raises if a chunk overrides the timestamps of its rows: readers of the objects alone would
    see others (FORMAT.md §14).

    Raises:
        InvalidInputError: one does.
    """
    overridden = sum(chunk.append_time_ms != NONE for _, chunk in manifest.chunks())
    if overridden:
        raise InvalidInputError(
            f"{overridden} chunks of {url} have the time of their commit as timestamp"
            " (message.timestamp.type=LogAppendTime), which their objects do not say; set it to"
            " CreateTime, and let a pass of the cleaner rewrite them before the log is published;"
            " nothing was changed"
        )
