"""Commits: an edit, and the head that it leaves (FORMAT.md §3).

An *edit* says what changed. Each of its parts is one field of `Edit`, which gives the JSON and what
the part does to the head and to the segments. `advance` makes the head of version N+1 from the head
of N and an edit, and `manifest.apply` makes the manifest; `PARTS` lists the parts by name.

The *head* is the state that each commit repeats so that the next append needs nothing else.
`advance` is pure, and every reader runs it too: a head that differs from the derived one is
corruption, wherever the bug was.

A *pin* says which version of the log is needed by a version of a published view and by those after
it, up to the next pin. The head has the pins of each format, so the head alone shows which versions
may expire.

Reading checks everything that the document alone can show: types, columns of equal length, paths in
the folder, rows inside their objects. Whether an edit fits the log is checked when it is applied.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Annotated, Any, ClassVar, Final

from clog.storage.env import attribute, dataclass
from clog.storage.errors import CorruptionError
from clog.storage.format import documents
from clog.storage.format.chunks import (
    UNCLEANABLE,
    Append,
    Chunk,
    ChunkHorizon,
    DeadMark,
    Draft,
    MaskMark,
    Replacement,
    Uncleanable,
    append_from_json,
    append_to_json,
)
from clog.storage.format.columns import (
    CHANGED,
    COLUMNS,
    END,
    PartitionColumns,
    Rows,
    columns_from_json,
    columns_to_json,
    resolved,
)
from clog.storage.format.cuts import (
    CUTS,
    CUTS_GIVEN,
    KEEPS,
    KEEPS_GIVEN,
    MEMBERS,
    MEMBERS_GIVEN,
    CutEntry,
    Cuts,
    Keep,
    Keeps,
    Members,
)
from clog.storage.format.documents import (
    BESIDE,
    FLAG,
    HEX,
    INT,
    KEPT,
    NATURAL,
    NONE,
    PATH,
    SHOWN,
    TEXT,
    Codec,
    Int,
    Natural,
    Offsets,
    Shown,
    by_partition,
    checked,
    commit_path,
    edit_path,
    maybe,
    pair,
    reading,
    record,
    row,
    seq,
    table,
)
from clog.storage.format.erasures import ERASURES_GIVEN, ErasureEntry
from clog.storage.format.log_info import (
    COLUMNS_BY_ID,
    ERASURES,
    FEATURE_NAMES,
    GIVEN_OFFSETS,
    LOG_INFO,
    NEXT_SCHEMA,
    NO_FEATURES,
    OF_EACH_LOG,
    ORDER_VALUES,
    WHOLE_TRANSACTIONS,
    FeatureNames,
    LogInfo,
    LogSchema,
    check_evolution,
)
from clog.storage.format.transactions import (
    APPENDED_BY,
    COMBINED,
    COMBINING,
    ENDING,
    JOINING,
    UNENDED,
    WRITER,
    AppendedBy,
    Combined,
    Combining,
    Ending,
    Joining,
    Unended,
    WriterEntry,
    appended_by_from_json,
    ended,
    find_unended,
    holding,
    joined,
    unended_from_json,
    with_started_reset,
    with_writers,
)
from clog.storage.format.writers import PAGE, PAGED_WRITERS, PagedWriters, PageRef
from clog.storage.store.contract import Store

HINT_STRIDE = 4
"""Commits whose version is divisible by this carry all edits since the snapshot and move the hint.
Part of the format.
"""
INLINE_EDIT_BYTES_MAX = 1 << 20
"""Longer edits are stored as separate documents, so that a commit stays one small PUT."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Versions of a view from ``view`` on need ``version`` of the log. Made at ``time_ms``."""

    view: Natural
    version: Natural
    time_ms: Natural


Pins = Mapping[str, tuple[Pin, ...]]
"""By the view's format."""
_PINS = table(SHOWN, seq(row(Pin)))


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """The newest complete snapshot. ``size_bytes`` is the size of its JSON, and the next snapshot
    is due when the edits since outweigh it; ``commit_id`` is of its version, None if not recorded.
    """

    version: Natural
    size_bytes: Annotated[Natural, "bytes"]
    commit_id: Annotated[str | None, maybe(HEX), "id"] = None


_CONFIG = Codec(dict, lambda value: {name: TEXT.read(text) for name, text in value.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The state that appends need. ``masked`` is the version of the last commit with masks;
    ``gives_offsets`` is the version from which on a log that took offsets assigns them; both are -1
    if there is none. ``extra`` keeps fields of newer writers that are not known here.
    """

    unended: Annotated[tuple[Unended, ...], UNENDED] = ()
    log: Annotated[LogInfo, LOG_INFO]
    config: Annotated[Mapping[str, str], _CONFIG]
    config_epoch: Natural
    snapshot: Annotated[SnapshotRef | None, maybe(record(SnapshotRef))]
    orphan_floor: Natural
    oldest_readable: Natural
    partitions: Annotated[PartitionColumns, Codec(columns_to_json, columns_from_json)]
    writers: Annotated[tuple[WriterEntry, ...], seq(WRITER), KEPT] = ()
    older_writers: Annotated[PageRef | None, maybe(PAGE), KEPT] = None
    pins: Annotated[Pins, _PINS] = field(default_factory=dict)
    masked: Annotated[int, INT] = NONE
    kept: Annotated[Keeps, KEEPS] = field(default_factory=dict)
    members: Annotated[Members, MEMBERS] = field(default_factory=dict)
    cuts: Annotated[Cuts, CUTS] = field(default_factory=dict)
    gives_offsets: Annotated[int, INT] = NONE
    combined: Annotated[Combined | None, maybe(COMBINED)] = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def may_be_swept(self, stamp: int) -> bool:
        """Returns whether objects with this stamp may be gone, unless a commit has them (K2)."""
        return stamp < self.orphan_floor

    def stable_offset(self, partition: int) -> int:
        """Returns the last stable offset: all records below it are decided, and of no transaction
        only some are below those of all partitions (S51).
        """
        held = [
            offsets[partition]
            for entry in self.unended
            for offsets in (entry.first, entry.held)
            if partition in offsets
        ]
        if not held:
            return self.partitions.end[partition]
        return max(min(held), self.partitions.start[partition])

    def lowest_needed(self) -> int | None:
        """Returns the lowest version that is pinned or kept; None if none is."""
        pinned = (pin.version for some in self.pins.values() for pin in some)
        return min((*pinned, *(keep.version for keep in self.kept.values())), default=None)

    @property
    def takes_offsets(self) -> bool:
        """Whether its records come with their offsets (FORMAT.md §16)."""
        return GIVEN_OFFSETS in self.log.features and self.gives_offsets == NONE

    def agrees_with(self, replayed: "Head") -> bool:
        """Returns whether this is the head that the edits before it lead to."""
        return all(getattr(self, name) == getattr(replayed, name) for name in _REPLAYED)


_HEAD = record(Head)
_KNOWN_FIELDS = {f.name for f in fields(Head)} - {"extra"}
_REPLAYED = sorted(_KNOWN_FIELDS - {"snapshot", "masked"})
"""All fields but the one that the committer sets, and `masked`, which older writers left out."""


def head_to_json(head: Head) -> dict[str, Any]:
    """Returns the head as in commits and snapshots."""
    return {**head.extra, **_HEAD.write(head)}


def head_from_json(value: dict[str, Any], *, where: str) -> Head:
    """Returns the head in a document; UnsupportedFormatError if a feature is not known here."""
    with reading(f"the head in {where}"):
        info: LogInfo = LOG_INFO.read(value["log"])
        info.check_readable(where=where)
        info.check_schema()
        head: Head = _HEAD.read(
            value,
            log=info,
            partitions=columns_from_json(value["partitions"], info.partitions),
            unended=unended_from_json(value.get("unended", []), info.partitions),
            extra={name: v for name, v in value.items() if name not in _KNOWN_FIELDS},
        )
        return head


def with_columns(store: Store, head: Head, *known: tuple[int, PartitionColumns]) -> Head:
    """Returns the head with all its columns; one GET if they are not known (`columns.resolved`)."""
    columns = resolved(store, head.partitions, head.log.partitions, *known)
    return head if columns is head.partitions else replace(head, partitions=columns)


class _Next:
    """The head while an edit is applied: its fields as they are ``now``, and its rows."""

    def __init__(self, head: Head, edit: "Edit", version: int, time_ms: int) -> None:
        self.before = head
        self.edit = edit
        self.version = version
        self.time_ms = time_ms
        self.now: dict[str, Any] = {f.name: getattr(head, f.name) for f in fields(head)}
        self.now["unended"] = unended_after(
            head.unended, head.log.features, edit, version=version, time_ms=time_ms
        )
        self.rows = Rows(head.partitions)

    def need(self, feature: str, what: str) -> None:
        """Raises unless the log has the feature that this part of the edit needs."""
        if feature not in self.now["log"].features:
            raise CorruptionError(f"an edit has {what}, but the log lacks feature {feature!r}")

    def need_taken_offsets(self) -> None:
        """Raises unless the log takes offsets (FORMAT.md §16)."""
        if (since := self.now["gives_offsets"]) != NONE:
            raise CorruptionError(
                f"an edit has given offsets, but the log gives them since {since}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a part of an edit does.

    Attributes:
        head: changes the head.
        segments: changes the segments and the rest of a manifest.
        feature: the feature that the log must have, and the name of the part for the message.
        names: whether it names partitions.
        changes: whether it changes them in another way than by appending or sealing, and so voids
            a planned clean.
        rewrites: returns those whose sealed segments change, which must not be in pages.
    """

    head: Callable[[_Next, Any], None] | None = None
    segments: Callable[[Draft, Any], None] | None = None
    feature: tuple[str, str] | None = None
    names: bool = False
    changes: bool = False
    rewrites: Callable[[Any], set[int]] | None = None


def _partitions_of(given: Any) -> set[int]:
    """Returns the partitions that a part names: its keys, or those of its entries."""
    if isinstance(given, Mapping):
        return {*given}
    entries = given.chunks if isinstance(given, Append) else given
    return {one[0] if isinstance(one, tuple) else one.partition for one in entries}


def _create(_: _Next, given: LogInfo) -> None:
    raise CorruptionError(f"an edit creates a log that already exists, as {given.log_id}")


def _add_features(head: _Next, given: FeatureNames) -> None:
    log = head.now["log"]
    head.now["log"] = replace(log, features=log.features.with_added(given))


def _check_erasures(head: _Next, given: Mapping[str, ErasureEntry | None]) -> None:
    count = head.now["log"].partitions
    if any(one.ends_beyond(count) for one in given.values() if one is not None):
        raise CorruptionError(f"an erasure is of partitions beyond the {count} of the log")


def _set_config(head: _Next, given: Mapping[str, str]) -> None:
    head.now.update(config=dict(given), config_epoch=head.version)


def _evolve(head: _Next, given: LogSchema) -> None:
    log = head.now["log"]
    check_evolution(log.schema, given, by_id=COLUMNS_BY_ID in log.features)
    head.now["log"] = replace(log, schema=given)


def _reach(head: _Next, given: Offsets) -> None:
    head.need_taken_offsets()
    head.rows.reach(given)


def _add(head: _Next, given: Append) -> None:
    if given.is_given:
        head.need(*_GIVEN)
        head.need_taken_offsets()
    head.rows.add(given, head.time_ms)


def _give_offsets(head: _Next, _: object) -> None:
    head.need_taken_offsets()
    head.now["gives_offsets"] = head.version


def _end(head: _Next, given: Sequence[Ending]) -> None:
    """Gives offsets to the markers of transactions that ended."""
    unended = head.before.unended
    for ending in given:
        entry = find_unended(unended, ending.name)
        for p in () if entry is None else entry.first:
            head.rows[p][END] += 1
            head.rows[p][CHANGED] = head.version
        unended = ended(unended, ending)


def _mask(head: _Next, _: object) -> None:
    head.now["masked"] = head.version


def _write(head: _Next, given: Sequence[AppendedBy]) -> None:
    head.now["writers"] = with_writers(head.now["writers"], given)


def _page_out(head: _Next, given: PagedWriters) -> None:
    head.now["writers"] = given.removed_from(head.now["writers"])
    head.now["older_writers"] = given.root


def _pin(head: _Next, given: Pins) -> None:
    for name, pins in given.items():
        views = [pin.view for pin in pins]
        if views != sorted({*views}):
            raise CorruptionError(f"pins of {name!r} name views {views}, which do not ascend")
    after = {**head.now["pins"], **given}
    head.now["pins"] = {name: pins for name, pins in after.items() if pins}


def _answer(head: _Next, given: Combining) -> None:
    before, version = head.now["combined"] or Combined(), head.version
    head.now["combined"] = before.after(given, version=version, time_ms=head.time_ms)


def _reset_times(head: _Next, _: object) -> None:
    if (combined := head.now["combined"]) is not None:
        head.now["combined"] = combined.reset(head.time_ms)
    head.rows = head.rows.change_all(head.version)
    head.now["unended"] = with_started_reset(head.now["unended"], head.time_ms)


def _merge(name: str) -> Callable[[_Next, Any], None]:
    """Returns a function that merges entries into an object of the head; None removes one."""

    def merge(head: _Next, given: Mapping[str, Any]) -> None:
        after = {**head.now[name], **given}
        head.now[name] = {key: value for key, value in after.items() if value is not None}

    return merge


def _set(name: str) -> Callable[[_Next, Any], None]:
    return lambda head, given: head.now.update({name: given})


_GIVEN = (GIVEN_OFFSETS, "given offsets")
_TRUE = checked(FLAG, lambda flag: flag, "it is true, or absent")
_CLEANS = {"names": True, "changes": True, "rewrites": _partitions_of}


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One change. Absent parts are None or empty.

    Parts are applied in the order of the fields, which is that of the table in FORMAT.md §3.2.
    """

    create: Annotated[LogInfo | None, LOG_INFO, Part(head=_create)] = None
    features: Annotated[FeatureNames | None, FEATURE_NAMES, Part(head=_add_features)] = None
    config: Annotated[Mapping[str, str] | None, _CONFIG, Part(head=_set_config)] = None
    schema: Annotated[LogSchema | None, NEXT_SCHEMA, Part(head=_evolve)] = None
    reached: Annotated[
        Offsets, Part(head=_reach, segments=Draft.reach, feature=_GIVEN, names=True)
    ] = field(default_factory=dict)
    start: Annotated[
        Offsets,
        Part(
            head=lambda head, given: head.rows.start(given),
            segments=Draft.start,
            names=True,
            changes=True,
        ),
    ] = field(default_factory=dict)
    seal: Annotated[
        tuple[tuple[int, int], ...],
        seq(pair(NATURAL, NATURAL)),
        Part(head=lambda head, given: head.rows.seal(given), segments=Draft.seal, names=True),
    ] = ()
    drop: Annotated[
        Offsets,
        Part(head=lambda head, given: head.rows.drop(given), segments=Draft.drop, **_CLEANS),
    ] = field(default_factory=dict)
    replace: Annotated[
        tuple[Replacement, ...],
        seq(record(Replacement)),
        Part(head=lambda head, given: head.rows.replace(given), segments=Draft.replace, **_CLEANS),
    ] = ()
    horizons: Annotated[
        tuple[ChunkHorizon, ...], seq(row(ChunkHorizon)), Part(segments=Draft.horizons, **_CLEANS)
    ] = ()
    dead: Annotated[
        tuple[DeadMark, ...],
        seq(row(DeadMark)),
        Part(segments=Draft.dead, **_CLEANS),
    ] = ()
    marked: Annotated[
        tuple[tuple[int, int, int], ...],
        seq(pair(NATURAL, NATURAL, NATURAL)),
        Part(names=True),
    ] = ()
    unmarked: Annotated[
        tuple[tuple[int, int], ...],
        seq(pair(NATURAL, NATURAL)),
        Part(names=True),
    ] = ()
    ends: Annotated[tuple[Ending, ...], seq(ENDING), Part(head=_end, segments=Draft.ends)] = ()
    unended: Annotated[tuple[Joining, ...], seq(JOINING), Part()] = ()
    masks: Annotated[
        tuple[MaskMark, ...],
        seq(row(MaskMark)),
        Part(head=_mask, segments=Draft.masks, names=True, rewrites=_partitions_of),
    ] = ()
    covered: Annotated[
        Offsets,
        Part(
            head=_mask,
            segments=Draft.cover,
            names=True,
            rewrites=lambda given: {p for p, offset in given.items() if offset == 0},
        ),
    ] = field(default_factory=dict)
    first_dirty: Annotated[
        Offsets, Part(segments=Draft.set_first_dirty, names=True, changes=True)
    ] = field(default_factory=dict)
    tombstones_removed: Annotated[Offsets, Part(segments=Draft.remove_tombstones, names=True)] = (
        field(default_factory=dict)
    )
    orders_removed: Annotated[
        Mapping[int, tuple[tuple[int, int], ...]],
        by_partition(seq(pair(NATURAL, NATURAL))),
        Part(
            segments=Draft.remove_orders,
            feature=(ORDER_VALUES, "orders of removed tombstones"),
            names=True,
        ),
    ] = field(default_factory=dict)
    erasures: Annotated[
        Mapping[str, ErasureEntry | None],
        ERASURES_GIVEN,
        Part(
            head=_check_erasures,
            segments=lambda draft, given: draft.erasures.update(given),
            feature=(ERASURES, "erasures"),
        ),
    ] = field(default_factory=dict)
    uncleanable: Annotated[
        Mapping[int, Uncleanable | None],
        UNCLEANABLE,
        Part(segments=lambda draft, given: draft.uncleanable.update(given), names=True),
    ] = field(default_factory=dict)
    add: Annotated[
        Append | None,
        Codec(append_to_json, append_from_json),
        Part(head=_add, segments=Draft.add, names=True),
    ] = None
    reached_after: Annotated[
        Offsets, Part(head=_reach, segments=Draft.reach, feature=_GIVEN, names=True)
    ] = field(default_factory=dict)
    writers: Annotated[tuple[AppendedBy, ...], seq(APPENDED_BY), Part(head=_write)] = ()
    older_writers: Annotated[PagedWriters | None, PAGED_WRITERS, Part(head=_page_out)] = None
    combined: Annotated[Combining | None, COMBINING, Part(head=_answer)] = None
    orphan_floor: Annotated[int | None, NATURAL, Part(head=_set("orphan_floor"))] = None
    oldest_readable: Annotated[int | None, NATURAL, Part(head=_set("oldest_readable"))] = None
    forget: Annotated[
        tuple[str, ...],
        seq(PATH),
        Part(segments=lambda draft, given: draft.forgotten.update(given)),
    ] = ()
    pins: Annotated[Pins, _PINS, Part(head=_pin)] = field(default_factory=dict)
    kept: Annotated[Mapping[str, Keep | None], KEEPS_GIVEN, Part(head=_merge("kept"))] = field(
        default_factory=dict
    )
    members: Annotated[Mapping[str, str | None], MEMBERS_GIVEN, Part(head=_merge("members"))] = (
        field(default_factory=dict)
    )
    cuts: Annotated[Mapping[str, CutEntry | None], CUTS_GIVEN, Part(head=_merge("cuts"))] = field(
        default_factory=dict
    )
    reset_times: Annotated[bool, _TRUE, Part(head=_reset_times)] = False
    gives_offsets: Annotated[bool, _TRUE, Part(head=_give_offsets, feature=_GIVEN)] = False

    def parts(self) -> Iterator[tuple[Part, Any]]:
        """Yields the parts that are present, in order."""
        for name, part in PARTS.items():
            if (given := getattr(self, name)) != getattr(_NOTHING, name):
                yield part, given

    def changed_partitions(self) -> set[int]:
        """Returns the partitions that it changes, not only extends: it voids planned cleans."""
        return {p for part, given in self.parts() if part.changes for p in _partitions_of(given)}

    def rewritten_partitions(self) -> set[int]:
        """Returns the partitions whose sealed segments change and so must not be in pages."""
        return {p for part, given in self.parts() if part.rewrites for p in part.rewrites(given)}

    def first_of(self, part: AppendedBy | Joining) -> dict[int, int]:
        """Returns the first offset, by partition, of the records that a transaction appends."""
        first: dict[int, int] = {}
        for p, chunk in self.chunks_of(part):
            first.setdefault(p, chunk.base)
        return first

    def chunks_of(self, part: AppendedBy | Joining) -> list[tuple[int, Chunk]]:
        """Returns the appended chunks that belong to a writer or to a transaction."""
        return [pair for pairs in self.by_object()[part.first : part.next] for pair in pairs]

    def by_object(self) -> list[list[tuple[int, Chunk]]]:
        """Returns the appended chunks, object by object."""
        return [] if self.add is None else self.add.by_object()


_EDIT = record(Edit)
_NOTHING = Edit()
PARTS: Final[Mapping[str, Part]] = {
    f.name: part
    for f in fields(Edit)
    for part in f.type.__metadata__  # type: ignore[union-attr] # each is annotated
    if isinstance(part, Part)
}
"""The parts of an edit by name."""


def edit_to_json(edit: Edit) -> dict[str, Any]:
    """Returns the edit's JSON; empty parts are left out."""
    value: dict[str, Any] = _EDIT.write(edit)
    return value


def edit_from_json(value: dict[str, Any], *, version: int) -> Edit:
    """Returns the edit of commit ``version``."""
    with reading(f"the edit of version {version}"):
        known: dict[str, Any] = {}
        objects = 0
        if "add" in value:
            objects = len(value["add"]["objects"])
            known["add"] = append_from_json(value["add"], version=version)
        if "writers" in value:
            known["writers"] = tuple(
                appended_by_from_json(by, version=version) for by in value["writers"]
            )
        edit: Edit = _EDIT.read(value, **known)
        spans = [(by.first, by.next) for by in edit.writers]
        for first, end in (*spans, *((j.first, j.next) for j in edit.unended)):
            if not first <= end <= objects:
                raise ValueError(f"objects [{first}, {end}) of {objects} are a writer's")
        if later := [c.version for r in edit.replace for c in r.chunks if c.version > version]:
            raise ValueError(f"rows that came in by versions {later}")
        return edit


def first_head(edit: Edit) -> Head:
    """Returns the head of version 0."""
    if edit.create is None or edit != Edit(create=edit.create, config=edit.config):
        raise CorruptionError("version 0 must create a log and do nothing else")
    zero = (0,) * edit.create.partitions
    none = (NONE,) * edit.create.partitions
    named = dict.fromkeys(COLUMNS, zero) | {"first_ms": none, "created_ms": none}
    return Head(
        log=edit.create,
        config=dict(edit.config or {}),
        config_epoch=0,
        snapshot=None,
        orphan_floor=0,
        oldest_readable=0,
        partitions=PartitionColumns.of(named),
    )


def advance(head: Head, edit: Edit, *, version: int, time_ms: int) -> Head:
    """Returns the head after ``edit``. ``head.snapshot`` stays: only the committer sets it.

    Raises CorruptionError if the edit contradicts the head: a chunk that does not begin at the end
    offset, a partition that does not exist.
    """
    count = head.log.partitions
    parts = list(edit.parts())
    named = {p for part, given in parts if part.names for p in _partitions_of(given)}
    if unknown := sorted(p for p in named if not 0 <= p < count):
        raise CorruptionError(f"an edit names partitions {unknown} of a log that has {count}")
    made = _Next(head, edit, version, time_ms)
    for part, given in parts:
        if part.feature is not None:
            made.need(*part.feature)
        for p in _partitions_of(given) if part.changes else ():
            made.rows[p][CHANGED] = version
        if part.head is not None:
            part.head(made, given)
    return Head(**{**made.now, "partitions": made.rows.made()})


def unended_after(
    unended: tuple[Unended, ...],
    features: FeatureNames,
    edit: Edit,
    *,
    version: int,
    time_ms: int,
) -> tuple[Unended, ...]:
    """Returns the transactions that have not ended after the commit of an edit, and what each holds
    back; ``features``: those of the log before.
    """
    is_whole = any(WHOLE_TRANSACTIONS in names for names in (features, edit.features or ()))
    for ending in edit.ends:
        unended = ended(unended, ending)
    for joining in edit.unended:
        first = edit.first_of(joining)
        unended = joined(
            unended, joining, first, version=version, time_ms=time_ms, is_whole=is_whole
        )
    for by in edit.writers if unended and is_whole else ():
        if by.entry.committed_by(version) is not None:
            unended = holding(unended, edit.first_of(by))
    return unended


def up_to_date(edit: Edit, head: Head) -> Edit:
    """Returns the edit with the features that each log has and this one lacks, because none of its
    commits is of this release (FORMAT.md §0).
    """
    added = (edit.features or NO_FEATURES).with_added(OF_EACH_LOG).without(head.log.features)
    features = None if added == NO_FEATURES else added
    return edit if features == edit.features else replace(edit, features=features)


def _stored(value: Mapping[str, Any]) -> dict[str, Any]:
    if "edit_at" not in value:
        return {"edit": value["edit"]}
    at = value["edit_at"]
    return {"edit_at": {"path": PATH.read(at["path"]), "bytes": INT.read(at["bytes"])}}


@dataclass(frozen=True, slots=True)
class EditRecord:
    """One edit and its commit, still as stored: ``{"edit": …}`` or ``{"edit_at": …}``.

    `edit_of` parses it when it is applied; an append that only carries it along does not need that.
    ``parent`` is the id of the version before, None if not recorded; ``made`` is the edit itself if
    it was made here.
    """

    version: Int
    commit_id: Annotated[Shown, "id"]
    time_ms: Int
    operation: Shown
    stored: Annotated[dict[str, Any], Codec(dict, _stored), BESIDE]
    parent: str | None = field(default=None, compare=False)
    made: Edit | None = field(default=None, compare=False)


_RECORD = record(EditRecord)


@dataclass(frozen=True, slots=True)
class Commit:
    """Version N: its edit, the earlier edits that it carries along, and the head it leaves."""

    record: EditRecord
    parent: str | None
    earlier: tuple[EditRecord, ...]
    head: Head

    version: ClassVar[int] = attribute("record.version")


def carried_from(version: int, *, snapshot_version: int) -> int:
    """Returns the first version whose edit a commit carries (FORMAT.md §3.1); its own if none."""
    if version % HINT_STRIDE == 0:
        return min(snapshot_version + 1, version)
    return version - 1 if version % 2 == 0 else version


def lacks_edits(commit: Commit) -> bool:
    """Returns whether a commit carries fewer edits than it should, which only 0.1.0 refuses."""
    snapshot = -1 if commit.head.snapshot is None else commit.head.snapshot.version
    first = carried_from(commit.version, snapshot_version=snapshot)
    return len(commit.earlier) < commit.version - first


def stored_edit(store: Store, edit: Edit, *, commit_id: str) -> dict[str, Any]:
    """Returns the edit as a commit holds it; a large one is first stored as a document."""
    value = edit_to_json(edit)
    body = documents.body_json(value)
    if len(body) <= INLINE_EDIT_BYTES_MAX:
        return {"edit": value}
    path = edit_path(commit_id)
    data = documents.encode_json("edit", body)
    store.put(path, data)
    return {"edit_at": {"path": path, "bytes": len(data)}}


def encode_commit(commit: Commit) -> bytes:
    """Returns the commit as a document; CorruptionError if it does not carry what readers need."""
    if _leading_to(commit) != commit.earlier or lacks_edits(commit):
        raise CorruptionError(
            f"version {commit.version}, whose snapshot is {commit.head.snapshot}, would carry the"
            f" edits of versions {[record.version for record in commit.earlier]}, which readers"
            " cannot use; it was not committed; open the log again"
        )
    carried_after = commit.earlier[0].parent if commit.earlier else None
    body = {
        **_RECORD.write(commit.record),
        "parent": commit.parent,
        **({} if carried_after is None else {"earlier_parent": carried_after}),
        "earlier": [_RECORD.write(record) for record in commit.earlier],
        "head": head_to_json(commit.head),
    }
    return documents.encode("commit", body)


def read_commit(store: Store, version: int) -> Commit:
    """Returns the commit of this version; one GET. FileNotFoundError if none exists (any more)."""
    path = commit_path(version)
    where = f"{path} of {store.url}"
    body = documents.get(store, "commit", path)
    with reading(where):
        commit = Commit(
            record=_RECORD.read(body, parent=body["parent"]),
            parent=body["parent"],
            earlier=tuple(_earlier_from_json(body)),
            head=head_from_json(body["head"], where=where),
        )
    if commit.version != version:
        raise CorruptionError(f"{where} holds version {commit.version}")
    return replace(commit, earlier=_leading_to(commit))


def edit_of(store: Store, record: EditRecord) -> Edit:
    """Returns the edit of a record; one GET if it is a separate document."""
    if record.made is not None:
        return record.made
    at = record.stored.get("edit_at")
    if at is None:
        value = record.stored["edit"]
    else:
        value = documents.get(store, "edit", at["path"], at["bytes"])
    return edit_from_json(value, version=record.version)


def goes_back_in_time(store: Store, before: EditRecord, record: EditRecord) -> bool:
    """Returns whether a commit has an earlier time than its parent and is no repair; 0 or 1 GET."""
    return record.time_ms < before.time_ms and not edit_of(store, record).reset_times


def _leading_to(commit: Commit) -> tuple[EditRecord, ...]:
    """Returns those of the carried edits that, by their ids, lead to the commit without a gap."""
    leading: list[EditRecord] = []
    version, commit_id = commit.version - 1, commit.parent
    for carried in reversed(commit.earlier):
        if carried.version != version or commit_id not in (None, carried.commit_id):
            return tuple(reversed(leading[:-1]))  # What the oldest one follows is not known.
        leading.append(carried)
        version, commit_id = version - 1, carried.parent
    return commit.earlier


def _earlier_from_json(body: dict[str, Any]) -> Iterator[EditRecord]:
    parent = body.get("earlier_parent")
    for value in body["earlier"]:
        record: EditRecord = _RECORD.read(value, parent=parent)
        yield record
        parent = record.commit_id
