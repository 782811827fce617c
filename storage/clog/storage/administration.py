"""Changes an operator makes: configs, log start offsets, sealing. Each is one commit, decided from
the head of the newest version alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.commit.reserve import with_reserve
from clog.storage.commit.store_clock import (
    SKEW_MS_MAX,
    ClockSkewError,
    is_comparable,
    store_now_ms,
)
from clog.storage.config.did_you_mean import did_you_mean
from clog.storage.config.log_config import LogConfig, check_known, parse_overrides
from clog.storage.errors import InvalidInputError, OffsetOutOfRangeError
from clog.storage.format.commits import Commit, edit_of
from clog.storage.format.edits import Edit, RowTexts
from clog.storage.format.features import FEATURES, ROW_TEXTS, Feature, FeatureNames, lists_of
from clog.storage.format.rolling import new_jitter_ms
from clog.storage.format.schema import LogSchema, key_columns_problem
from clog.storage.objects.evolution import evolved
from clog.storage.publications.publish import FORMATS, Publications, check_publishable
from clog.storage.read.offsets import by_partition, partitions_named
from clog.storage.readers.holds import features_of_holds


def alter(handle: Handle, changes: Mapping[str, object]) -> dict[str, str]:
    """Sets configs; None takes one back to its default. The last of two that race wins, key by key
    (S42).
    """
    removed = {name for name, value in changes.items() if value is None}
    for name in removed:
        check_known(name)
    given = parse_overrides({k: v for k, v in changes.items() if v is not None})

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        before = tip.head.config
        after = {k: v for k, v in {**before, **given}.items() if k not in removed}
        settings = LogConfig.from_overrides(after)  # two that contradict each other (S43)
        if settings.partitioner != tip.head.log.partitioner:
            raise InvalidInputError(
                f"partitioner={settings.partitioner} is refused: the log was created with"
                f" {tip.head.log.partitioner}, and its keys stay where they are; create another"
                " log and copy the records to change it"
            )
        if after == before:
            return NothingToCommit()
        _check_key_columns(tip.head.log.schema, settings)
        _check_views(handle, tip, tip.head.log.schema, settings)
        needed = features_of_holds(settings)
        has_all = tip.head.log.features.with_added(needed) == tip.head.log.features
        return Edit(config=after, features=None if has_all else needed)

    handle.refresh()
    with_reserve(handle.store, lambda: handle.commit(prepare, operation="alter"))
    return LogConfig.from_overrides(handle.tip.head.config).as_dict()


def evolve(
    handle: Handle,
    add: Mapping[str, pa.DataType],
    widen: Mapping[str, pa.DataType],
    relax: Iterable[str],
) -> LogSchema | None:
    """Makes the next schema of a typed log from the newest there is (S61); see `Log.evolve`."""
    relaxed = [relax] if isinstance(relax, str) else list(relax)
    url = handle.store.url

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        before = tip.head.log.schema
        after = evolved(before, add=add, widen=widen, relax=relaxed, url=url)
        config = LogConfig.from_overrides(tip.head.config)
        _check_key_columns(after, config)
        _check_views(handle, tip, after, config)
        return Edit(schema=after)

    handle.refresh()
    handle.commit(prepare, operation="evolve")
    return handle.tip.head.log.schema


def _check_key_columns(schema: LogSchema | None, config: LogConfig) -> None:
    if problem := key_columns_problem(schema, config.table_key_columns):
        raise InvalidInputError(f"{problem}; nothing was changed")


def _check_views(handle: Handle, tip: Commit, schema: LogSchema | None, config: LogConfig) -> None:
    """Raises if a view of the log, or one that is configured, could not follow a change; where it
    could not before, the change is not to blame. Requests only where there may be a view so.
    """
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
            f"{url} is published as {name}, or is to be, which it could not be then: {problem}; to"
            f" change it all the same, take {name} out of table.publish and withdraw the view:"
            f" clog publish --withdraw --format {name}"
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
    # -1 is resolved once: records that are appended meanwhile stay.
    wanted = {p: ends[p] if offset == -1 else offset for p, offset in asked.items()}

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        columns = tip.head.partitions
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
            ``specified`` (no release has it yet), or ``unknown`` (the log has it, and this release
            can read the log without knowing it, but not write it).
        readers: whether releases that do not know it refuse to read a log that has it; else they
            refuse only to write it.
        summary: what it is for.
        section: where FORMAT.md specifies it; empty where it is unknown.
    """

    name: str
    state: str
    readers: bool
    summary: str
    section: str


def addable(name: str) -> Feature:
    """Returns the feature of this name, which is built.

    Raises:
        InvalidInputError: there is none, or it is specified only.
    """
    feature = FEATURES.get(name)
    if feature is None:
        near = did_you_mean(name, FEATURES)
        hint = f"did you mean {near!r}?" if near else f"there are {', '.join(sorted(FEATURES))}"
        raise InvalidInputError(f"unknown feature {name!r}: {hint}; nothing was changed")
    if not feature.is_built:
        raise InvalidInputError(
            f"the feature {name!r} is specified and not built: no release of clog can use it yet;"
            " nothing was changed"
        )
    return feature


def upgrade(handle: Handle, names: Iterable[str]) -> list[FeatureState]:
    """Adds features to the log; see `Log.upgrade`."""
    wanted = [addable(name) for name in dict.fromkeys(names)]

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        lacking = [f for f in wanted if f.name not in tip.head.log.features]
        if early := [f.name for f in lacking if f.at_creation]:
            raise InvalidInputError(
                f"{handle.store.url} was created without {early[0]!r}, which only a log has that"
                " was created with it; create another log and copy the records; nothing was changed"
            )
        return Edit(features=lists_of(lacking)) if lacking else NothingToCommit()

    handle.refresh()
    if wanted:
        handle.commit(prepare, operation="upgrade")
    return _feature_states(handle.tip.head.log.features)


def keep_row_texts(
    handle: Handle, encoding: int, time_zone: str | None, names: tuple[str, ...] | None
) -> RowTexts:
    """Keeps in the log by which rules texts of rows are made, and how names in the JSON of keys are
    spelled and ordered, unless it has them; returns what it has then: who comes first decides
    (FORMAT.md §19).
    """

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        before = tip.head.row_texts
        after = before or RowTexts(encoding, time_zone)
        if names is not None and after.spelled(names) is None:
            after = replace(after, keys=(*after.keys, names))
        if after == before:
            return NothingToCommit()
        is_new = ROW_TEXTS not in tip.head.log.features
        features = lists_of([FEATURES[ROW_TEXTS]]) if is_new else None
        return Edit(features=features, row_texts=after)

    handle.commit(prepare, operation="alter")
    kept = handle.tip.head.row_texts
    assert kept is not None, "it was there or was committed"
    return kept


def _feature_states(there: FeatureNames) -> list[FeatureState]:
    """Returns the features that are known, then those that the log has and this clog does not
    know.
    """
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
    if not feature.is_built:
        return "unknown" if feature.name in there else "specified"
    if feature.name in there:
        return "on"
    return "new logs" if feature.at_creation else "off"


def reset_times(handle: Handle) -> int:
    """Sets back what a clock that was ahead has left: the time of the newest commit, those in the
    manifest, LogAppendTime stamps. Returns how many ms the newest commit was ahead, 0 where it was
    not.

    Raises:
        ClockSkewError: this machine's clock and the store's differ, so neither is believed.
    """
    now_ms = handle.clock.now_ms()
    store_ms = (
        store_now_ms(handle.store, clock=handle.clock, ids=handle.ids)
        if is_comparable(handle.clock)
        else None
    )
    if store_ms is not None and abs(store_ms - now_ms) > SKEW_MS_MAX:
        raise ClockSkewError(
            f"this machine's clock says {now_ms} ms, the store of {handle.store.url} {store_ms}:"
            " they differ by more than five minutes; set the wrong one first; nothing was changed"
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
        config = LogConfig.from_overrides(tip.head.config)
        filled = [p for p in wanted if tip.head.partitions.chunks[p]]
        if not filled:
            return NothingToCommit()
        return Edit(
            seal=tuple((p, new_jitter_ms(config, uniform=handle.ids.uniform)) for p in filled)
        )

    commit = handle.commit(prepare, operation="roll")
    if isinstance(commit, NothingToCommit):
        return []
    return [p for p, _ in edit_of(handle.store, commit.record).seal]
