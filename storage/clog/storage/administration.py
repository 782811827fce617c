"""Changes an operator makes: configs, log start offsets, sealing. Each is one commit, decided from
the tip's head alone.
"""

from collections.abc import Iterable, Mapping

from clog.storage.commit import Answer
from clog.storage.commits import Commit, edit_of
from clog.storage.config import LogConfig, parse_overrides
from clog.storage.edits import Edit
from clog.storage.errors import InvalidInputError, OffsetOutOfRangeError
from clog.storage.handle import Handle
from clog.storage.offsets import by_partition
from clog.storage.rolling import new_jitter_ms


def alter(handle: Handle, changes: Mapping[str, object]) -> dict[str, str]:
    """Sets configs; None takes one back to its default. The last of two that race wins, key by key
    (S42).
    """
    defaults = LogConfig.from_overrides({}).as_dict()
    removed = {name for name, value in changes.items() if value is None}
    parse_overrides({name: defaults.get(name, "") for name in removed})  # refuses unknown names
    given = parse_overrides({k: v for k, v in changes.items() if v is not None})

    def prepare(tip: Commit, _: int) -> Edit:
        before = tip.head.config
        after = {k: v for k, v in {**before, **given}.items() if k not in removed}
        settings = LogConfig.from_overrides(after)  # two that contradict each other (S43)
        if settings.partitioner != tip.head.log.partitioner:
            raise InvalidInputError(
                f"partitioner={settings.partitioner} cannot be set: the log was created with"
                f" {tip.head.log.partitioner}, and its keys stay where they are"
            )
        if after == before:
            raise Answer(None)
        return Edit(config=after)

    try:
        handle.commit(prepare, operation="alter")
    except Answer:
        pass
    return LogConfig.from_overrides(handle.tip.head.config).as_dict()


def delete_records(handle: Handle, before: Mapping[int, int]) -> dict[int, int]:
    """Raises log start offsets (S36); see `Log.delete_records`."""
    url = handle.store.url
    asked = by_partition(handle.tip.head, before, "offset", url=url)
    ends = handle.tip.head.partitions.end
    # -1 is resolved once: records that are appended meanwhile stay.
    wanted = {p: ends[p] if offset == -1 else offset for p, offset in asked.items()}

    def prepare(tip: Commit, _: int) -> Edit:
        columns = tip.head.partitions
        for p, offset in wanted.items():
            if not 0 <= offset <= columns.end[p]:
                raise OffsetOutOfRangeError(
                    f"cannot delete records before offset {offset} of partition {p} of {url}:"
                    f" allowed are 0 to its end offset {columns.end[p]}, and -1 for the end;"
                    " nothing was changed",
                    partition=p,
                    offset=offset,
                    start=columns.start[p],
                    end=columns.end[p],
                )
        raised = {p: offset for p, offset in wanted.items() if offset > columns.start[p]}
        if not raised:
            raise Answer(None)
        return Edit(start=raised)

    try:
        handle.commit(prepare, operation="delete-records")
    except Answer:
        pass
    starts = handle.tip.head.partitions.start
    return {p: starts[p] for p in wanted}


def roll(handle: Handle, partitions: Iterable[int], *, operation: str) -> list[int]:
    """Seals active segments that are not empty; returns their partitions."""
    wanted = tuple(partitions)

    def prepare(tip: Commit, _: int) -> Edit:
        config = LogConfig.from_overrides(tip.head.config)
        filled = [p for p in wanted if tip.head.partitions.chunks[p]]
        if not filled:
            raise Answer(None)
        return Edit(
            seal=tuple((p, new_jitter_ms(config, uniform=handle.ids.uniform)) for p in filled)
        )

    try:
        commit = handle.commit(prepare, operation=operation)
    except Answer:
        return []
    return [p for p, _ in edit_of(handle.store, commit.record).seal]
