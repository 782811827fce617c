"""What a log must say, by lists of records and by replay: no files, no segments, no cleaning.

A record stays in the model for ever; what is asked of a version is found by looking at every record
anew. So each answer is a few lines, and none can go stale.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

COMMITTED, ABORTED = "committed", "aborted"


@dataclass(eq=False)
class Deal:
    """A transaction: undecided in a log until its end there, and with the same outcome in all.

    Attributes:
        name: its id, epoch and number.
        ends: by log id, the version from which it is decided there.
        outcome: committed or aborted, once any log says so.
    """

    name: tuple[str, int, int]
    ends: dict[str, int] = field(default_factory=dict)
    outcome: str | None = None


@dataclass(frozen=True, eq=False)
class Record:
    """One record; ``value`` is None for a tombstone, else bytes or columns."""

    partition: int
    offset: int
    key: Any
    value: Any
    timestamp_ms: int
    version: int
    deal: Deal | None = None


@dataclass(frozen=True)
class Erasing:
    """Keys that somebody asked to erase: below ``ends`` nothing of them needs to be there."""

    version: int
    keys: frozenset[Any]
    ends: tuple[int, ...]


Columns = Mapping[str, Callable[[Any], Any]]
"""By column of a row, what turns a value that was appended into one that is read."""


@dataclass
class LogModel:
    """One log, from its creation to its deletion; lists of pairs begin with a version."""

    log_id: str
    partitions: int
    is_hashed: bool = True
    records: list[Record] = field(default_factory=list)
    starts: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    ends: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    columns: list[tuple[int, Columns | None]] = field(default_factory=list)
    configs: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    erased: list[Erasing] = field(default_factory=list)
    views: set[str] = field(default_factory=set)
    withdrawn: set[str] = field(default_factory=set)
    version: int = 0
    is_cleaned: bool = False

    def at(self, history: list[tuple[int, Any]], version: int) -> Any:
        """Returns what a list of pairs says of a version."""
        return [what for since, what in history if since <= version][-1]

    def config(self, name: str, version: int) -> str | None:
        """Returns a config that was set by then."""
        found: str | None = self.at(self.configs, version).get(name)
        return found

    # --- What is decided, and how far readers see

    def is_undecided(self, record: Record, version: int) -> bool:
        """Returns whether the record's transaction had not ended here by then."""
        deal = record.deal
        return deal is not None and not deal.ends.get(self.log_id, 1 << 62) <= version

    def stable(self, version: int) -> list[int]:
        """Returns the highest offsets below which all is decided and each committed transaction is
        whole, by partition (S51).
        """
        there = [r for r in self.records if r.version <= version]
        stable = list(self.at(self.ends, version))
        for record in there:
            if self.is_undecided(record, version):
                stable[record.partition] = min(stable[record.partition], record.offset)
        deals: dict[int, list[Record]] = {}
        for record in there:
            if record.deal is not None and record.deal.outcome == COMMITTED:
                deals.setdefault(id(record.deal), []).append(record)
        is_parted = True
        while is_parted:
            is_parted = False
            for records in deals.values():
                hidden = [r.offset >= stable[r.partition] for r in records]
                if any(hidden) and not all(hidden):
                    is_parted = True
                    for r in records:
                        stable[r.partition] = min(stable[r.partition], r.offset)
        floor = self.starts[-1][1]
        return [max(offset, floor[p]) for p, offset in enumerate(stable)]

    def shown(self, version: int) -> list[Record]:
        """Returns the records that a reader of committed ones may get of a version, in order."""
        stable, starts = self.stable(version), self.starts[-1][1]
        found = [
            r
            for r in self.records
            if r.version <= version
            and starts[r.partition] <= r.offset < stable[r.partition]
            and not (r.deal is not None and r.deal.outcome != COMMITTED)
        ]
        return sorted(found, key=lambda r: (r.partition, r.offset))

    # --- The table

    def winners(self, version: int) -> dict[Any, Record]:
        """Returns the record of each key that counts, tombstones too."""
        strategy = self.config("compaction.strategy", version)
        last: dict[Any, Record] = {}
        for record in self.shown(version):
            other = last.get(record.key)
            wins = strategy != "timestamp" or other is None
            if record.key is not None and (wins or record.timestamp_ms >= other.timestamp_ms):
                last[record.key] = record
        return last

    def table(self, version: int, of: Iterable[Record] | None = None) -> dict[Any, Any]:
        """Returns the rows of a version by key, as they are read with its columns."""
        found = self.winners(version).values() if of is None else of
        columns = self.at(self.columns, version)
        return {r.key: read_as(r.value, columns) for r in found if r.value is not None}

    def doubtful(self, version: int) -> set[Any]:
        """Returns the keys whose records may be gone because their erasure was asked for later, or
        is not carried out yet.
        """
        return {
            key
            for erasing in self.erased
            for key in erasing.keys
            for r in [self.winners(version).get(key)]
            if r is None or r.offset < erasing.ends[r.partition]
        }

    def needed(self, version: int) -> Iterator[Record]:
        """Yields the records that no cleaning may remove from the newest version."""
        doubtful = self.doubtful(version)
        for record in self.winners(version).values():
            if record.value is not None and record.key not in doubtful:
                yield record

    def raise_start(self, version: int, starts: tuple[int, ...]) -> None:
        """Notes log start offsets, which never go back (S3)."""
        before = self.starts[-1][1]
        assert all(new >= old for new, old in zip(starts, before, strict=True)), (before, starts)
        if starts != before:
            self.starts.append((version, starts))


def read_as(value: Any, columns: Columns | None) -> Any:
    """Returns a value as it is read with these columns: absent ones are null."""
    if columns is None or value is None:
        return value
    return {
        name: None if value.get(name) is None else made(value[name])
        for name, made in columns.items()
    }
