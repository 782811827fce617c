"""What a log must say, by lists of records and by replay: no files, no segments, no cleaning.

A record stays in the model for ever; what is asked of a version is found by looking at every record
anew. So each answer is a few lines, and none can go stale.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kinds import Columns, read_as

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
    """One record; ``value`` is None for a tombstone, else bytes or columns; ``order`` is what its
    header says, if it has one.
    """

    partition: int
    offset: int
    key: Any
    value: Any
    timestamp_ms: int
    order: int | None
    version: int
    deal: Deal | None = None


@dataclass(frozen=True)
class Erasing:
    """Keys that somebody asked to erase: below ``ends`` nothing of them needs to be there."""

    version: int
    keys: frozenset[Any]
    ends: tuple[int, ...]


@dataclass(eq=False)
class LogModel:
    """One log, from its creation to its deletion; lists of pairs begin with a version.

    Attributes:
        key: the kind of its keys, as of `kinds.KEYS`; None: bytes.
        strict: the fields that are NOT NULL.
        takes_offsets: whether records come with their offsets.
        is_fed: whether a mirror of a topic alone writes it.
        prefix: of its keys, where these are bytes.
        since: the version from which on the model knows the log.
        columns: of the value; None: bytes.
        forgotten: the records that were not there any more when other ones began to win.
        passes: version and time of each round of a cleaner.
        by_hand: the position of a reader, if it is known.
        views: the formats in which it may be published; ``withdrawn``: those that are empty.
    """

    log_id: str
    partitions: int
    is_hashed: bool = True
    key: str | None = None
    strict: frozenset[str] = frozenset()
    takes_offsets: bool = False
    was_mirror: bool = False
    is_fed: bool = False
    prefix: str = "k"
    since: int = 0
    records: list[Record] = field(default_factory=list)
    starts: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    ends: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    columns: list[tuple[int, Columns | None]] = field(default_factory=list)
    configs: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    erased: list[Erasing] = field(default_factory=list)
    forgotten: list[tuple[int, frozenset[Record]]] = field(default_factory=list)
    views: set[str] = field(default_factory=set)
    withdrawn: set[str] = field(default_factory=set)
    passes: list[tuple[int, int]] = field(default_factory=list)
    by_hand: dict[int, int] = field(default_factory=dict)
    version: int = 0
    is_cleaned: bool = False

    def at(self, history: list[tuple[int, Any]], version: int) -> Any:
        """Returns what a list of pairs says of a version."""
        return [what for since, what in history if since <= version][-1]

    def config(self, name: str, version: int | None = None) -> str:
        """Returns a config that was set by then, or its default as text; None: by now."""
        found: str = self.at(self.configs, self.version if version is None else version)[name]
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the key columns, if rows are plain ones."""
        names = self.config("table.key.columns")
        return tuple(names.split(",")) if names else ()

    @property
    def is_ordered(self) -> bool:
        """Whether another record than the last may win."""
        return self.config("compaction.strategy") != "offset"

    # --- What is decided, and how far readers see

    def is_undecided(self, record: Record, version: int) -> bool:
        """Returns whether the record's transaction had not ended here by then."""
        deal = record.deal
        return deal is not None and not deal.ends.get(self.log_id, 1 << 62) <= version

    def stable(self, version: int) -> list[int]:
        """Returns the highest offsets below which all is decided and each committed transaction is
        whole, by partition (S51); an aborted one, too, until what began meanwhile ends.
        """
        there = [r for r in self.records if r.version <= version]
        stable = list(self.at(self.ends, version))
        for record in there:
            if self.is_undecided(record, version):
                stable[record.partition] = min(stable[record.partition], record.offset)
        deals: dict[int, list[Record]] = {}
        for record in there:
            if record.deal is not None:
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
        gone = {r for since, some in self.forgotten if since <= version for r in some}
        found = [
            r
            for r in self.records
            if r.version <= version
            and r not in gone
            and starts[r.partition] <= r.offset < stable[r.partition]
            and not (r.deal is not None and r.deal.outcome != COMMITTED)
        ]
        return sorted(found, key=lambda r: (r.partition, r.offset))

    # --- The table

    def winners(self, version: int) -> dict[Any, Record]:
        """Returns the record of each key that counts, tombstones too."""
        best: dict[Any, Record] = {}
        for record in self.shown(version):
            other = best.get(record.key)
            if other is None or self.rank(record, version) >= self.rank(other, version):
                best[record.key] = record
        best.pop(None, None)
        return best

    def rank(self, record: Record, version: int) -> int:
        """Returns by what a record is compared with others of its key; of equals the last wins."""
        strategy = self.config("compaction.strategy", version)
        if strategy == "timestamp":
            return record.timestamp_ms
        return 0 if strategy == "offset" else -1 if record.order is None else record.order

    def table(self, version: int, of: Iterable[Record] | None = None) -> dict[Any, Any]:
        """Returns the rows of a version by key, as they are read with its columns."""
        found = self.winners(version).values() if of is None else of
        columns = self.at(self.columns, version)
        return {r.key: read_as(r.value, columns) for r in found if r.value is not None}

    def doubtful(self, version: int) -> set[Any]:
        """Returns the keys whose records may be gone because their erasure was asked for later, or
        is not carried out yet.
        """
        winners = self.winners(version) if self.erased else {}
        return {
            key
            for erasing in self.erased
            for key in erasing.keys
            for r in [winners.get(key)]
            if r is None or self.is_erased(r)
        }

    def is_erased(self, record: Record) -> bool:
        """Returns whether an erasure was asked for after the record of its key."""
        return any(
            record.key in erasing.keys and record.offset < erasing.ends[record.partition]
            for erasing in self.erased
        )

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
