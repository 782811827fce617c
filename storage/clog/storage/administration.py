"""Changes by operators: configs, log start offsets, sealing. Each is one commit, decided from the
newest head alone. Also creating a log, its first version and then the file that makes it the log
of its root; and deleting one (COMMIT.md §1):

D1. Delete ``_clog/log``: whoever opens the root, or looks again, finds no log from now on.
D2. Delete the files of its published views, which would have no rows any more, and those of its
    folder.

A crash between the two leaves files that belong to no log; deleting again, at a root without a log,
does D2 for them. Files that only a creator can have left are not touched, as it may be about to
create its log; nor is a view of another log that is created in the meantime.

Deletion does not stop writers: one that continues gets an error at its next commit, or within
seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from clog.storage.commit.committer import (
    SKEW_MS_MAX,
    ClockSkewError,
    Created,
    NothingToCommit,
    StoreClock,
    create_commit,
    is_comparable,
    store_now_ms,
    with_reserve,
)
from clog.storage.commit.handle import Handle
from clog.storage.commit.tip import LogFile, create_log_file, read_log_file, store_of
from clog.storage.config.log_config import (
    TIMESTAMP,
    LogConfig,
    check_known,
    did_you_mean,
    mapping_of,
    order_text,
    parse_overrides,
    without_idle,
)
from clog.storage.env import Clock, Ids, dataclass
from clog.storage.errors import (
    AlreadyExistsError,
    ClogError,
    InvalidInputError,
    NotFoundError,
    OffsetOutOfRangeError,
    StoreUnavailableError,
)
from clog.storage.format import documents
from clog.storage.format.columns import new_jitter_ms
from clog.storage.format.commits import (
    Commit,
    Edit,
    EditRecord,
    Head,
    edit_of,
    edit_to_json,
    first_head,
)
from clog.storage.format.documents import NONE
from clog.storage.format.log_info import (
    COLUMNS_BY_ID,
    FEATURES,
    GIVEN_OFFSETS,
    NO_FEATURES,
    OF_EACH_LOG,
    OF_SCHEMAS,
    ORDER_VALUES,
    Feature,
    FeatureNames,
    LogInfo,
    LogSchema,
    as_table,
    key_columns_problem,
    lists_of,
    of_schema,
    publish_columns_problem,
)
from clog.storage.format.manifest import Manifest
from clog.storage.objects.orders import Ordering, decided
from clog.storage.objects.records import schema_like
from clog.storage.publications.publish import (
    Publications,
    ViewFiles,
    check_publishable,
    published_files,
)
from clog.storage.read.scan import by_partition, partitions_named
from clog.storage.store.contract import Store, StoredObject, is_temporary
from clog.storage.store.opening import LOG_FOLDER
from clog.storage.types.columns import schema_of
from clog.storage.types.evolve import Changes, evolved, fields_from_words
from clog.storage.types.names import names_problem
from clog.storage.types.rows import KEY_COLUMNS, schema_of_rows
from clog.storage.view_formats import FORMATS


def alter(handle: Handle, changes: Mapping[str, object]) -> dict[str, str]:
    """Sets configs, None: to the default; of two racing changes the last wins, by key (S42)."""
    changes = mapping_of(changes)
    removed = {name for name, value in changes.items() if value is None}
    for name in removed:
        check_known(name)
    given = parse_overrides({k: v for k, v in changes.items() if v is not None})

    def prepare(tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        before = tip.head.config
        kept = {k: v for k, v in {**before, **given}.items() if k not in removed}
        after = without_idle(kept)
        settings = LogConfig.from_overrides(after)  # Raises for contradictions (S43).
        if settings.partitioner != tip.head.log.partitioner:
            raise InvalidInputError(
                f"partitioner={settings.partitioner} is refused: the log was created with"
                f" {tip.head.log.partitioner}, and its keys cannot move to other partitions; to"
                " change it, create another log and copy the records"
            )
        if after == before:
            return NothingToCommit()
        _check_columns(tip, tip.head.log.schema, settings)
        _check_views(handle, tip, tip.head.log.schema, settings)
        needed = _features_of(settings)
        _check_given(settings, is_given=GIVEN_OFFSETS in tip.head.log.features)
        edit = Edit(config=after, features=needed)
        if order_text(after) == order_text(before):  # The same records win as before.
            return edit
        return _reordered(edit, handle.manifest(), settings, now_ms=time_ms)

    handle.refresh()
    with_reserve(handle.store, lambda: handle.commit(prepare, operation="alter"))
    return LogConfig.from_overrides(handle.tip.head.config).as_dict()


def _features_of(settings: LogConfig) -> FeatureNames:
    """Returns the features of choices that these configs make."""
    return _ORDERED if settings.is_ordered else NO_FEATURES


def _check_given(settings: LogConfig, *, is_given: bool) -> None:
    """Raises if offsets are given and a record other than the last would win."""
    if settings.is_ordered and is_given:
        raise InvalidInputError(
            f"compaction.strategy={settings.compaction_strategy} is refused for a log with given"
            " offsets, such as a mirror: its source compares records by offset; nothing was"
            " changed"
        )


def _reordered(edit: Edit, manifest: Manifest, settings: LogConfig, *, now_ms: int) -> Edit:
    """Returns the edit that changes the order: all is dirty, and no mask stays (FORMAT.md §15)."""
    head, columns = manifest.head, manifest.head.partitions
    before = Ordering.of(LogConfig.from_overrides(head.config))
    after, count = Ordering.of(settings), range(head.log.partitions)
    named = {p: manifest.orders_removed_of(p) for p, _, _ in manifest.orders_removed}
    if before is not None and after is not None and before.header == after.header:
        # All records that exist were kept, so none is late any more.
        settled = {p: decided(pairs, columns.end[p]) for p, pairs in named.items()}
        return replace(edit, orders_removed=settled)
    if settings.compaction_strategy == TIMESTAMP:
        _check_times(manifest, settings, now_ms=now_ms)
    return replace(
        edit,
        first_dirty={p: columns.start[p] for p in count},
        covered={p: 0 for p, offset in enumerate(manifest.covered) if offset},
        orders_removed=dict.fromkeys(named, ()),
    )


def _check_times(manifest: Manifest, settings: LogConfig, *, now_ms: int) -> None:
    """Raises if a record is later than appends may be: until then it would win its key."""
    start, far_ms = manifest.head.partitions.start, settings.message_timestamp_after_max_ms
    there = ((p, c) for p, c in manifest.chunks() if c.next > start[p] and not c.aborted)
    late = [(c.max_timestamp_ms, p) for p, c in there if c.max_timestamp_ms > now_ms + far_ms]
    if late:
        latest_ms, p = max(late)
        raise InvalidInputError(
            f"compaction.strategy={TIMESTAMP} is refused: partition {p} has a record of {latest_ms}"
            f" ms since 1970, {latest_ms - now_ms} ms ahead of the clock, more than"
            f" message.timestamp.after.max.ms={far_ms}, and would win its key until then; such"
            f" records are in partitions {sorted({p for _, p in late})}; delete them"
            " (Log.delete_records), or copy the others into another log; nothing was changed"
        )


def evolve(handle: Handle, changes: Changes) -> LogSchema | None:
    """Derives the next schema of a typed log from the newest one (S61); see `Log.evolve`."""
    handle.refresh()
    handle.commit(lambda tip, _: _evolution(handle, tip, changes), operation="evolve")
    return handle.tip.head.log.schema


def evolution(handle: Handle, changes: Changes) -> LogSchema | None:
    """Returns the schema that `evolve` would give the log now; raises what it would raise."""
    return _evolution(handle, handle.refresh(), changes).schema


def _evolution(handle: Handle, tip: Commit, changes: Changes) -> Edit:
    head = tip.head
    before = LogConfig.from_overrides(head.config).table_key_columns
    needs_ids = changes.need_ids(head.log.schema)
    by_id = needs_ids or COLUMNS_BY_ID in head.log.features
    after, names = evolved(head.log.schema, before, changes, by_id=by_id, url=handle.store.url)
    edit = Edit(schema=after, features=_BY_ID if needs_ids else None)
    if names != before:
        edit = replace(edit, config={**head.config, KEY_COLUMNS: ",".join(names)})
    if changes.drop:  # Rewritten records become smaller, but active segments keep their size.
        edit = replace(edit, seal=_sealing(handle, head, range(head.log.partitions)))
    config = LogConfig.from_overrides(head.config if edit.config is None else edit.config)
    if config.table_key_columns != names:
        raise InvalidInputError(
            f"a column of the key cannot be called {names}: names in {KEY_COLUMNS} have no"
            " comma, and no space around them; nothing was changed"
        )
    _check_columns(tip, after, config)
    _check_views(handle, tip, after, config)
    return edit


def _check_columns(tip: Commit, schema: LogSchema | None, config: LogConfig) -> None:
    """Raises if a log cannot get these columns, or should not, for their names."""
    names = config.table_key_columns
    before = _names_of(tip.head)
    problem = key_columns_problem(schema, names) or names_problem(schema, names, before=before)
    problem = problem or publish_columns_problem(schema, config.table_publish_columns)
    if problem is not None:
        raise InvalidInputError(f"{problem}; nothing was changed")


def _names_of(head: Head) -> tuple[LogSchema | None, tuple[str, ...]]:
    return head.log.schema, LogConfig.from_overrides(head.config).table_key_columns


def _check_views(handle: Handle, tip: Commit, schema: LogSchema | None, config: LogConfig) -> None:
    """Raises if a change would make a view impossible that is possible before it."""
    url, before = handle.standing.root.url, LogConfig.from_overrides(tip.head.config)
    for name in FORMATS:
        problem = _problem(name, schema, config, url)
        is_wanted = name in config.published_formats
        is_new = is_wanted and name not in before.published_formats
        if problem is None or (not is_new and _problem(name, tip.head.log.schema, before, url)):
            continue
        if not is_wanted:
            seen = Publications(handle).look(name) if name in tip.head.pins else None
            if seen is None or seen.source is None or seen.log_id != tip.head.log.log_id:
                continue
        raise InvalidInputError(
            f"{url} is published as {name}, or will be, and this change would prevent it:"
            f" {problem}; to make it anyway, remove {name} from table.publish and withdraw the"
            f" view: clog publish --withdraw --format {name}"
        )


def _problem(name: str, schema: LogSchema | None, config: LogConfig, url: str) -> str | None:
    try:
        check_publishable(name, schema, config, url=url)
    except InvalidInputError as e:
        return str(e)
    return None


def delete_records(handle: Handle, before: Mapping[int, int]) -> dict[int, int]:
    """Raises log start offsets (S36); see `Log.delete_records`."""
    url = handle.store.url
    head = handle.refresh().head
    asked = by_partition(head, before, "offset", url=url)
    ends = head.partitions.end
    # -1 is resolved once, so records appended in the meantime stay.
    wanted = {p: ends[p] if offset == -1 else offset for p, offset in asked.items()}

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        columns, config = tip.head.partitions, LogConfig.from_overrides(tip.head.config)
        if config.is_ordered:
            raise InvalidInputError(
                f"records of {url} cannot be deleted by offset: with"
                f" compaction.strategy={config.compaction_strategy} an earlier record may win its"
                " key, so deleting it would bring an older one back; append tombstones; nothing"
                " was changed"
            )
        for p, offset in wanted.items():
            if not 0 <= offset <= columns.end[p]:
                raise OffsetOutOfRangeError(
                    f"cannot delete records before offset {offset} of partition {p} of {url}:"
                    f" give 0 to its end offset {columns.end[p]}, or -1 for the end;"
                    " nothing was changed",
                    partition=p,
                    offset=offset,
                    start=columns.start[p],
                    end=columns.end[p],
                )
        raised = {p: offset for p, offset in wanted.items() if offset > columns.start[p]}
        if not raised:
            return NothingToCommit()
        return Edit(start=raised)

    with_reserve(handle.store, lambda: handle.commit(prepare, operation="delete-records"))
    starts = handle.tip.head.partitions.start
    return {p: starts[p] for p in wanted}


@dataclass(frozen=True, slots=True)
class FeatureState:
    """One feature, and whether a log has it.

    Attributes:
        name: as `Log.upgrade` takes it.
        state: ``on``, ``off`` (it can be added), ``new logs`` (only a log created with it has it),
            or ``unknown`` (the log has it, and this release can read the log without knowing it,
            but not write it).
        readers: whether releases that do not know it refuse to read a log that has it; otherwise
            they refuse only to write to it.
        summary: what it is for.
        section: where FORMAT.md specifies it; empty if it is unknown.
    """

    name: str
    state: str
    readers: bool
    summary: str
    section: str


def addable(name: str) -> Feature:
    """Returns the feature of this name; raises unless it can be added."""
    feature = FEATURES.get(name)
    if feature is None:
        near = did_you_mean(name, FEATURES)
        hint = (
            f"did you mean {near!r}?"
            if near
            else f"known features are {', '.join(sorted(FEATURES))}"
        )
        raise InvalidInputError(f"unknown feature {name!r}: {hint}; nothing was changed")
    return feature


def _addable(names: Iterable[str]) -> list[Feature]:
    """Returns the features of these names, each once."""
    if isinstance(names, str):
        raise InvalidInputError(
            f"features={names!r} is a text; give a list, {[names]!r}; nothing was changed"
        )
    return [addable(name) for name in dict.fromkeys(names)]


def upgrade(handle: Handle, names: Iterable[str]) -> list[FeatureState]:
    """Adds features to the log; see `Log.upgrade`."""
    wanted = _addable(names)

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        lacking = [f for f in wanted if f.name not in tip.head.log.features]
        if early := [f.name for f in lacking if f.at_creation]:
            raise InvalidInputError(
                f"{handle.store.url} was created without {early[0]!r}, which cannot be added later;"
                " create another log with it and copy the records; nothing was changed"
            )
        return Edit(features=lists_of(lacking)) if lacking else NothingToCommit()

    handle.refresh()
    if wanted:
        handle.commit(prepare, operation="upgrade")
    return _feature_states(handle.tip.head.log.features)


def give_offsets(handle: Handle) -> int:
    """Makes a log that takes offsets assign them from the next version; see `Log.give_offsets`."""

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        if tip.head.takes_offsets:
            return Edit(gives_offsets=True)
        if tip.head.gives_offsets == NONE:
            raise InvalidInputError(
                f"{handle.store.url} is not a mirror: it has always assigned offsets itself;"
                " nothing was changed"
            )
        return NothingToCommit()

    handle.refresh()
    handle.commit(prepare, operation="give-offsets")
    return handle.tip.head.gives_offsets


def _feature_states(there: FeatureNames) -> list[FeatureState]:
    """Returns the known features, then the unknown ones of the log."""
    known = [
        FeatureState(f.name, _state(f, there), f.of_readers, f.summary, f.section)
        for f in FEATURES.values()
    ]
    new = [
        FeatureState(n, "unknown", readers=False, summary="", section="")
        for n in there.write
        if n not in FEATURES
    ]
    return [*known, *new]


def _state(feature: Feature, there: FeatureNames) -> str:
    if feature.name in there:
        return "on"
    return "new logs" if feature.at_creation else "off"


def reset_times(handle: Handle) -> int:
    """Sets back the times that a fast clock has left: of the newest commit, in the manifest, and
    LogAppendTime stamps. Returns by how many ms the newest commit was ahead, 0 if it was not.
    """
    now_ms = handle.clock.now_ms()
    store_ms = (
        store_now_ms(handle.store, clock=handle.clock, ids=handle.ids)
        if is_comparable(handle.clock)
        else None
    )
    if store_ms is not None and abs(store_ms - now_ms) > SKEW_MS_MAX:
        raise ClockSkewError(
            f"this machine's clock shows {now_ms} ms, that of the store of {handle.store.url}"
            f" {store_ms}: they differ by more than five minutes; correct the wrong one first;"
            " nothing was changed"
        )

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        if tip.record.time_ms <= now_ms + SKEW_MS_MAX:
            return NothingToCommit()
        filled = [p for p, chunks in enumerate(tip.head.partitions.chunks) if chunks]
        return Edit(seal=tuple((p, 0) for p in filled), reset_times=True)

    ahead_ms = handle.refresh().record.time_ms - now_ms
    done = handle.commit(prepare, operation="reset-times")
    return 0 if isinstance(done, NothingToCommit) else ahead_ms


def roll(handle: Handle, partition: int | None) -> list[int]:
    """Seals active segments that are not empty, and returns their partitions; see `Log.roll`."""
    wanted = partitions_named(handle.refresh().head, partition, url=handle.store.url)

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        seal = _sealing(handle, tip.head, wanted)
        return Edit(seal=seal) if seal else NothingToCommit()

    commit = handle.commit(prepare, operation="roll")
    if isinstance(commit, NothingToCommit):
        return []
    return [p for p, _ in edit_of(handle.store, commit.record).seal]


def _sealing(handle: Handle, head: Head, wanted: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Returns the part of an edit that seals those active segments that are not empty."""
    config = LogConfig.from_overrides(head.config)
    filled = [p for p in wanted if head.partitions.chunks[p]]
    return tuple((p, new_jitter_ms(config, uniform=handle.ids.uniform)) for p in filled)


PARTITIONS_MAX = 10_000
"""Tested limit: heads and commits hold columns over the partitions."""
PARTITIONS_DEFAULT = 4
_ORDERED = lists_of([FEATURES[ORDER_VALUES]])
_BY_ID = lists_of([FEATURES[COLUMNS_BY_ID]])


@dataclass(frozen=True, slots=True)
class NewLog:
    """A log that is not created yet: its id and its properties; ``config``: only what was set."""

    log_id: str
    partitions: int
    config: Mapping[str, str]
    schema: LogSchema | None
    features: FeatureNames

    @property
    def settings(self) -> LogConfig:
        """The config in full."""
        return LogConfig.from_overrides(self.config)

    def create(self, root: Store, *, clock: Clock, ids: Ids) -> None:
        """Writes version 0 into the log's new folder, then ``_clog/log``, which creates the log
        (S47). Objects may exist already (`connector.write`). A log may stand below another one, as
        those of a capture do; only among its files it would be deleted with them.
        """
        if LOG_FOLDER in root.url.split("/"):
            raise InvalidInputError(
                f"{root.url} is in a folder {LOG_FOLDER}, which a log has for its own files; give a"
                " URL outside of it; nothing was created"
            )
        try:
            read_log_file(root)
        except NotFoundError:
            pass
        else:
            raise _exists(root)
        now_ms = clock.now_ms()
        store = store_of(root, self.log_id)
        ahead_ms = now_ms - clock.monotonic_ms()
        StoreClock(store, ahead_ms, clock=clock, ids=ids).check(newest_ms=0)
        features = OF_EACH_LOG.with_added(_features_of(self.settings))
        features = features.with_added(self.features).with_added(of_schema(self.schema))
        info = LogInfo(
            *(self.log_id, now_ms, self.partitions),
            partitioner=self.settings.partitioner,
            seed=f"{ids.seed():016x}",
            features=features,
            schema=self.schema,
        )
        edit = Edit(create=info, config=dict(self.config))
        record = EditRecord(0, ids.new_id(), now_ms, "create", {"edit": edit_to_json(edit)})
        commit = Commit(record, None, (), first_head(edit))
        created = create_commit(store, commit, clock=clock, ids=ids)
        assert created is Created.OURS, created  # The id is new, so the folder is.
        made = LogFile(self.log_id, now_ms)
        if create_log_file(root, made, clock).log_id != self.log_id:
            for path in (documents.commit_path(0), documents.block_path(0)):
                with suppress(StoreUnavailableError):
                    store.delete(path)
            raise _exists(root)


_WORDS: Final = (str, dict, list)
"""Types in JSON (`schema_words`)."""


def new_log(
    partitions: int,
    config: Mapping[str, object],
    schema: Mapping[str, Any] | pa.Schema | None,
    features: Iterable[str] = (),
    *,
    ids: Ids,
    key: str | Sequence[str] | None = None,
    like: object = None,
    copied: Head | None = None,
) -> NewLog:
    """Returns a log to be created; see `Log.create`. It may have the names that the log ``copied``
    has.
    """
    wanted = _addable(features)
    if typed_ones := [f.name for f in wanted if f.name in OF_SCHEMAS]:
        raise InvalidInputError(
            f"the feature {typed_ones[0]!r} needs a schema; give one; nothing was created"
        )
    if type(partitions) is not int:
        raise InvalidInputError(
            f"partitions={partitions!r} is not an integer; allowed: 1 to {PARTITIONS_MAX}"
        )
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidInputError(
            f"partitions={partitions!r} is out of range; allowed: 1 to {PARTITIONS_MAX}"
        )
    if like is not None:
        if key is None or schema is not None:
            raise InvalidInputError(
                "like= requires key=, the name or names of the key's columns, and excludes schema="
            )
        schema = schema_like(like)
    elif isinstance(schema, Mapping) and any(isinstance(t, _WORDS) for t in schema.values()):
        schema = fields_from_words(schema)
    names = _names_of_key(key)
    if key is not None:
        if schema is None:
            raise InvalidInputError("key= requires schema= or like=, which give the columns")
        schema = schema_of_rows(pa.schema(schema), names)
        config = {KEY_COLUMNS: names, **config}
    typed = None if schema is None else schema_of(schema)
    overrides = without_idle(parse_overrides(config))
    settings = LogConfig.from_overrides(overrides)
    if key is not None and list(settings.table_key_columns) != names:
        raise InvalidInputError(
            f"key={key!r} cannot be the names in {KEY_COLUMNS}, which are"
            f" {','.join(settings.table_key_columns) or 'none'}: they have no comma, and no space"
            " around them, and with key= that config is left out; nothing was created"
        )
    _check_given(settings, is_given=GIVEN_OFFSETS in features)
    problem = key_columns_problem(typed, settings.table_key_columns)
    before = (None, ()) if copied is None else _names_of(copied)
    problem = problem or names_problem(typed, settings.table_key_columns, before=before)
    if problem is not None:
        raise InvalidInputError(f"{problem}; nothing was created")
    typed = _laid_out(typed, settings)
    for name in settings.published_formats:
        check_publishable(name, typed, settings, url="the log")
    return NewLog(ids.new_id(), partitions, overrides, typed, lists_of(wanted))


def _laid_out(schema: LogSchema | None, settings: LogConfig) -> LogSchema | None:
    """Returns the schema of a new log, with table columns if its objects can have them."""
    names = settings.table_key_columns
    if schema is not None and names_problem(schema, names) is None:
        schema = as_table(schema, names)
    if problem := publish_columns_problem(schema, settings.table_publish_columns):
        raise InvalidInputError(f"{problem}; nothing was created")
    return schema


def _names_of_key(key: object) -> list[str]:
    """Returns the names of the key's columns, given as one or as several."""
    names = [] if key is None else [key] if isinstance(key, str) else key
    if isinstance(names, Iterable):
        names = list(names)
        if all(isinstance(name, str) for name in names):
            return names
    raise InvalidInputError(f"key={key!r} names no columns; give a name, or a list of names")


def is_there(root: Store, refused: ClogError) -> bool:
    """Returns whether there is a log where none was created, for this reason. Its names may be some
    that no log gets any more, so what was refused does not concern it.
    """
    if isinstance(refused, AlreadyExistsError):
        return True
    try:
        read_log_file(root)
    except NotFoundError:
        return False
    return True


def _exists(root: Store) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"a log already exists at {root.url}; open it with Log.open, pass exist_ok=True to open"
        " it if it exists, or use another URL"
    )


OF_A_CREATION = frozenset({documents.commit_path(0), documents.block_path(0)})
"""Files that a creator writes before ``_clog/log``."""
OF_A_FIRST_WRITE = f"{documents.DATA}{0:020}-"
"""Prefix of objects that may be in its folder before that."""


@dataclass(frozen=True, slots=True)
class Doomed:
    """What a deletion at a root removes; ``log_id`` is None if the root has no log any more."""

    log_id: str | None
    files: tuple[StoredObject, ...]

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return sum(f.size_bytes for f in self.files)


def doomed(root: Store) -> Doomed:
    """Returns the files of the log at a root, or, if there is none, those left of deleted logs.
    Costs a LIST of the folders, and the requests of `published_files`.
    """
    return _doomed(root, published_files(root))


def _doomed(root: Store, views: list[ViewFiles]) -> Doomed:
    of_views = tuple(file for view in views for file in view.files)
    try:
        log_id = read_log_file(root).log_id
    except NotFoundError:
        if left := (*of_views, *_leftovers(root)):
            return Doomed(None, left)
        raise
    return Doomed(log_id, (*of_views, *_inside(root, documents.folder_of(log_id) + "/")))


def _inside(root: Store, folder: str) -> list[StoredObject]:
    return [*root.list(folder), *root.list_temporary(folder)]


def is_creation(names: Iterable[str]) -> bool:
    """Returns whether a folder holds only files that a creator writes before ``_clog/log``."""
    return all(name in OF_A_CREATION or name.startswith(OF_A_FIRST_WRITE) for name in names)


def delete_log(root: Store) -> Doomed:
    """Deletes what `doomed` returns, and returns it. Costs a request for each file."""
    views = published_files(root)
    found = _doomed(root, views)
    if found.log_id is not None:
        root.delete(documents.LOG_FILE)  # D1
        # Listed again for late files; another log may be here already, and published.
        gone = {found.log_id, *(view.log_id for view in views)}
        views = [view for view in published_files(root) if view.log_id in gone]
        of_views = (file for view in views for file in view.files)
        inside = _inside(root, documents.folder_of(found.log_id) + "/")
        found = Doomed(found.log_id, (*of_views, *inside))
    # Objects first, so that remains of a log never look like those of a first write.
    for file in sorted(found.files, key=lambda file: f"/{documents.DATA}" not in file.path):
        root.delete(file.path)  # D2
    return found


def _leftovers(root: Store) -> list[StoredObject]:
    folders: dict[str, dict[str, StoredObject]] = {}
    for file in _inside(root, documents.FOLDERS):
        log_id, _, rest = file.path.removeprefix(documents.FOLDERS).partition("/")
        if rest and documents.is_log_id(log_id):
            folders.setdefault(log_id, {})[rest] = file
    return [
        file
        for files in folders.values()
        if not is_creation(name for name, f in files.items() if not is_temporary(f.path))
        for file in files.values()
    ]
