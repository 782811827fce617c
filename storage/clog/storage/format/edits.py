"""Edits: a change of a log as a value (FORMAT.md §3.2, §3.3).

An edit says what changed and decides nothing: `head.advance` and `manifest.apply` apply it.

Not here: their JSON (`edit_json`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from clog.storage.format.bitmaps.masks import MaskMark
from clog.storage.format.chunks import NONE, Chunk
from clog.storage.format.dead_rows import DeadRows
from clog.storage.format.features import NO_FEATURES, FeatureNames
from clog.storage.format.schema import LogSchema
from clog.storage.format.transactions import TransactionState
from clog.storage.format.undecided import Ending, Joining
from clog.storage.format.views.pins import Pins


@dataclass(frozen=True, slots=True)
class LogInfo:
    """What a log is; of it the features grow and the schema evolves. ``seed`` (16 hex digits) is
    for the hashes that it keeps (S19); ``schema`` is None for a log of bytes.
    """

    log_id: str
    created_ms: int
    partitions: int
    partitioner: str
    seed: str
    features: FeatureNames = NO_FEATURES
    schema: LogSchema | None = None

    @property
    def key_seed(self) -> int:
        """The seed as a number."""
        return int(self.seed, 16)


@dataclass(frozen=True, slots=True)
class WriterEntry:
    """The last thing a writer committed. ``kind``: producer, stream, txn or transaction, whose
    entry has the state of its id (FORMAT.md §3.4, §11).
    """

    writer_id: str
    kind: str
    query_id: str | None
    sequence: int
    content: str | None
    version: int = NONE
    transaction: TransactionState | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The kind and the id: what tells one writer from another."""
        return self.kind, self.writer_id


@dataclass(frozen=True, slots=True)
class AppendedBy:
    """Who appended the objects ``[first, next)`` of an edit's `Append`, counted from 0: one commit
    may hold the appends of several writers.
    """

    entry: WriterEntry
    first: int = 0
    next: int = 0


@dataclass(frozen=True, slots=True)
class RowTexts:
    """By which rules rows become the texts of a log of bytes (FORMAT.md §19).

    ``time_zone`` is that of encoding 1; ``keys`` are the names in the JSON of keys, in their order
    and as they were spelled first, a tuple for each set of columns that ever made a key.
    """

    encoding: int
    time_zone: str | None = None
    keys: tuple[tuple[str, ...], ...] = ()

    def spelled(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """Returns the names of a key's JSON as they are kept, of those that are the same but for
        case and order; None where there are none.
        """
        wanted = sorted(map(str.lower, names))
        return next((own for own in self.keys if sorted(map(str.lower, own)) == wanted), None)


@dataclass(frozen=True, slots=True)
class PageRef:
    """A page of older writers; ``count`` entries are in it, or below it where it has a level above
    0 (`writer_pages`).
    """

    path: str
    size_bytes: int
    count: int
    level: int = 0


@dataclass(frozen=True, slots=True)
class PagedWriters:
    """Writers who left the head for pages, of which ``root`` is the new root: those at the places
    ``left`` of the head's list, the edit's own writers in it.
    """

    root: PageRef
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Append:
    """Fresh chunks as (partition, chunk), object by object, in offset order.

    ``rolls`` are (partition, base, jitter_ms): the active segment is sealed before that chunk.
    """

    chunks: tuple[tuple[int, Chunk], ...]
    rolls: tuple[tuple[int, int, int], ...] = ()

    def by_object(self) -> list[list[tuple[int, Chunk]]]:
        """Returns the chunks of each object, in the order of the objects."""
        grouped = groupby(self.chunks, lambda pair: pair[1].object)
        return [list(pairs) for _, pairs in grouped]


@dataclass(frozen=True, slots=True)
class Replacement:
    """``chunks`` in place of the ``sources`` (identities) in ``[base, next)`` of a partition.

    ``segments`` (base, next, created_ms), when given, tile the range anew.
    """

    partition: int
    base: int
    next: int
    sources: tuple[tuple[str, int], ...]
    chunks: tuple[Chunk, ...]
    segments: tuple[tuple[int, int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class ChunkHorizon:
    """A delete horizon for tombstones below ``up_to`` of a chunk that was left as it is (S23)."""

    partition: int
    object_path: str
    first_row: int
    horizon_ms: int
    up_to: int


@dataclass(frozen=True, slots=True)
class DeadMark:
    """The dead rows of a chunk, in place of those it had before, which are among them."""

    partition: int
    object_path: str
    first_row: int
    dead: DeadRows


@dataclass(frozen=True, slots=True)
class Uncleanable:
    """Why a partition is not cleaned for now (S28)."""

    reason: str
    time_ms: int
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One change. Absent parts are None or empty.

    They are applied in the order of the table in FORMAT.md §3.2, which is that of the fields.
    """

    create: LogInfo | None = None
    features: FeatureNames | None = None
    config: Mapping[str, str] | None = None
    schema: LogSchema | None = None
    start: Mapping[int, int] = field(default_factory=dict)
    seal: tuple[tuple[int, int], ...] = ()
    drop: Mapping[int, int] = field(default_factory=dict)
    replace: tuple[Replacement, ...] = ()
    horizons: tuple[ChunkHorizon, ...] = ()
    dead: tuple[DeadMark, ...] = ()
    marked: tuple[tuple[int, int, int], ...] = ()
    unmarked: tuple[tuple[int, int], ...] = ()
    ends: tuple[Ending, ...] = ()
    unended: tuple[Joining, ...] = ()
    masks: tuple[MaskMark, ...] = ()
    covered: Mapping[int, int] = field(default_factory=dict)
    first_dirty: Mapping[int, int] = field(default_factory=dict)
    tombstones_removed: Mapping[int, int] = field(default_factory=dict)
    uncleanable: Mapping[int, Uncleanable | None] = field(default_factory=dict)
    add: Append | None = None
    writers: tuple[AppendedBy, ...] = ()
    older_writers: PagedWriters | None = None
    orphan_floor: int | None = None
    oldest_readable: int | None = None
    forget: tuple[str, ...] = ()
    pins: Pins = field(default_factory=dict)
    row_texts: RowTexts | None = None
    reset_times: bool = False

    def partitions(self) -> set[int]:
        """Returns every partition that the edit names."""
        named = self.changed_partitions()
        named.update(self.first_dirty, self.tombstones_removed, self.uncleanable, self.covered)
        named.update(mark.partition for mark in self.masks)
        named.update(p for p, _ in self.seal)
        named.update(p for p, *_ in (*self.marked, *self.unmarked))
        if self.add is not None:
            named.update(p for p, _ in self.add.chunks)
        return named

    def names_undecided(self) -> bool:
        """Tells whether the edit is about undecided records or markers."""
        return bool(self.ends or self.unended or self.marked or self.unmarked)

    def first_of(self, joining: Joining) -> dict[int, int]:
        """Returns the first offset, by partition, of the records that a transaction appends."""
        first: dict[int, int] = {}
        for p, chunk in self.chunks_of(joining):
            first.setdefault(p, chunk.base)
        return first

    def chunks_of(self, part: AppendedBy | Joining) -> list[tuple[int, Chunk]]:
        """Returns those chunks that it appends that are a writer's, or a transaction's."""
        return [pair for pairs in self.by_object()[part.first : part.next] for pair in pairs]

    def by_object(self) -> list[list[tuple[int, Chunk]]]:
        """Returns the chunks that it appends, object by object."""
        return [] if self.add is None else self.add.by_object()

    def changed_partitions(self) -> set[int]:
        """Returns the partitions changed otherwise than by appending or sealing: what voids a
        planned clean.
        """
        return {*self.start, *self.first_dirty, *self._cleaned_partitions()}

    def rewritten_partitions(self) -> set[int]:
        """Returns the partitions whose sealed segments change: those that must not lie in pages to
        apply it.
        """
        masked = (mark.partition for mark in self.masks)
        unmasked = (p for p, offset in self.covered.items() if offset == 0)
        return self._cleaned_partitions().union(masked, unmasked)

    def _cleaned_partitions(self) -> set[int]:
        cleaned = {*self.drop}
        cleaned.update(r.partition for r in self.replace)
        cleaned.update(h.partition for h in self.horizons)
        cleaned.update(mark.partition for mark in self.dead)
        return cleaned
