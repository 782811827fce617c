"""Readers of a simulated world: each sees exactly what the oracle says of its version.

A version that a reader finds is not older than the newest when it began to look (A3). An error is
right only where the oracle knows why: the version expired, the log start moved.
"""

from actors import Actor
from ranked import rule_of
from records import PARTITIONS

from clog.storage.errors import OffsetOutOfRangeError, VersionExpiredError
from clog.storage.read.scan import missed_deletes


class _Reading(Actor):
    def _check_expired(self, version: int, error: VersionExpiredError) -> None:
        """Of a version that is said to be expired; where the log is over, all are."""
        if self.oracle.is_over:
            raise error
        oldest = self.oracle.manifest.head.oldest_readable
        assert version < oldest, f"version {version} expired, readable from {oldest}"


class Reader(_Reading):
    """Reads all, or the table of some version, now and then in a new process.

    Where days go by it sleeps, until what comes after the version that it knows is long gone, or
    another who slept has created it then.
    """

    may_be_misled = True

    @property
    def sleeps(self) -> bool:
        return self.world.is_fleeting

    def act(self) -> None:
        if self.world.is_fleeting and self._known is not None and self.world.roll(3) == 0:
            version = self._known.handle.tip.version + 1
            oracle = self.oracle
            self.world.scheduler.sleep(lambda: oracle.is_long_gone(version))
        if self.world.roll(8) == 0:
            self.close()
        log, newest = self.log, self.oracle.newest
        choice = self.world.roll(6)
        isolation = ("read_committed", "read_uncommitted")[choice == 0]
        if choice < 3:
            try:
                batches = log.read(isolation=isolation)
            except VersionExpiredError as e:
                self._check_expired(log.handle.tip.version, e)
                return
            if self.oracle.is_over:
                return
            version = log.handle.tip.version
            assert version >= newest, f"{version} is read when {newest} is there"
            found = self._rows(batches, version)
            expected = expected_rows(self.oracle, version, isolation=isolation)
        elif choice == 3:
            starts = log.start_offsets()
            found = self._changes(starts)
            if self.oracle.is_over:
                return
            version = log.handle.tip.version
            assert version >= newest, f"{version} is read when {newest} is there"
            expected = expected_changes(self.oracle, version, starts)
        else:
            oldest = self.oracle.manifest.head.oldest_readable
            version = oldest + self.world.roll(newest + 1 - oldest)
            found, tip = self._table(version), log.handle.tip.version
            if self.oracle.is_over:
                return
            expected = expected_table(self.oracle, version, tip)
        assert found in (None, expected), f"version {version} reads {found}, it is {expected}"

    def _table(self, version: int):
        try:
            batches = self.log.table(at=version).to_batches()
        except VersionExpiredError as e:
            self._check_expired(version, e)
            return None
        found = self._rows(batches, version)
        return None if found is None else sorted(found)

    def _changes(self, starts: dict[int, int]):
        try:
            batches = self.log.latest(starts).to_batches()
        except OffsetOutOfRangeError as e:
            return self._check_moved(starts, e)
        except VersionExpiredError as e:
            self._check_expired(self.log.handle.tip.version, e)
            return None
        found = self._rows(batches, self.log.handle.tip.version)
        return None if found is None else sorted(found)

    def _check_moved(self, starts: dict[int, int], error: OffsetOutOfRangeError) -> None:
        if self.oracle.is_over:
            raise error
        start = self.oracle.seen[self.log.handle.tip.version].starts[error.partition]
        assert starts[error.partition] < start, f"{error}, the log starts at {start}"

    def _rows(self, batches, version: int):
        """The rows; None where the version expired while it was read."""
        try:
            return rows_of(batches)
        except VersionExpiredError as e:
            self._check_expired(version, e)
            return None


class Watcher(Actor):
    """Looks for newer versions, and reads nothing: where its log is gone, or a version is what
    somebody left who slept, nothing else tells it.
    """

    may_be_misled = True

    @property
    def sleeps(self) -> bool:
        return self.world.is_fleeting

    def act(self) -> None:
        log, oracle, newest = self.log, self.oracle, self.oracle.newest
        found = log.handle.refresh().version
        assert oracle.is_over or found >= newest, f"{found} is found when {newest} is there"


class Follower(_Reading):
    """Reads on from where it was, and keeps the latest value of each key: a stream (S2, S41); where
    orders are compared, what has changed since, as a state table does (S57).
    """

    def __init__(self, world, name: str, clock) -> None:
        super().__init__(world, name, clock)
        self._followed: str | None = None
        self._version: int | None = None
        self._positions: dict[int, int] = {}
        self._rule = None
        self._values: dict[tuple[int, bytes], tuple[int, bytes | None]] = {}

    def act(self) -> None:
        log, newest = self.log, self.oracle.newest
        if self._followed != log.handle.standing.log_id:
            self._followed, self._version = log.handle.standing.log_id, None
        rule = rule_of(log.handle.refresh().head.config)
        if self._rule != rule:
            self._rule, self._version = rule, None
        try:
            batches = self._news()
        except OffsetOutOfRangeError as e:
            if self.oracle.is_over:
                raise
            start = self.oracle.seen[log.handle.tip.version].starts[e.partition]
            assert self._positions[e.partition] < start, f"{e}, the log starts at {start}"
            self._version = None  # It starts afresh.
            return
        except VersionExpiredError as e:
            self._check_expired(log.handle.tip.version, e)
            return
        manifest = log.handle.manifest()
        if self.oracle.is_over:
            return
        version, seen = manifest.version, self.oracle.seen[manifest.version]
        assert version >= newest, f"{version} is read when {newest} is there"
        if self.oracle.rule_at(version) != rule:
            self._version = None  # It was altered in between.
            return
        if self._version is None:
            self._positions, self._values = dict(enumerate(seen.starts)), {}
        else:
            removed = manifest.tombstones_removed
            if missed_deletes(removed, self._positions, self._version):
                self._version = None
                return
        try:
            found = rows_of(batches)
        except VersionExpiredError as e:
            self._check_expired(version, e)
            return
        found, expected = sorted(found), self._expected(version)
        assert found == expected, f"from {self._positions} of {version}: {found}, not {expected}"
        for p, offset, key, value in found:
            self._values[p, key] = offset, value
        self._version, self._positions = version, dict(enumerate(seen.stable))
        self._check_values(version)

    def _news(self):
        start = self._positions if self._version is not None else None
        if self._rule is None:
            return self.log.read(start=start)
        return self.log.latest(self.log.start_offsets() if start is None else start).to_batches()

    def _expected(self, version: int) -> list[tuple]:
        made = expected_rows if self._rule is None else expected_changes
        return made(self.oracle, version, self._positions)

    def _check_values(self, version: int) -> None:
        for p in range(PARTITIONS):
            there = self.oracle.keys_at(version, p)
            for key, offset in there.items():
                value = self.oracle.records[p][offset][1]
                _, known = self._values.get((p, key), (-1, None))
                assert known == value, f"{key} of {p} at {version} is {value}, known as {known}"
            dead, left = self.oracle.erased.dead[p], []
            for key, at in self.oracle.erased.told[p].items():
                offset, known = self._values.get((p, key), (-1, None))
                # What came later and went by retention is no erasure's.
                if at <= version and key not in there and known and dead.get(offset) == at:
                    left.append(key)
            assert not left, f"{left} of {p} are erased at {version}, and a follower has them"


def rows_of(batches) -> list[tuple]:
    """(partition, offset, key, value) of each row."""
    return [
        row
        for batch in batches
        for row in zip(
            *(batch.column(name).to_pylist() for name in ("partition", "offset", "key", "value")),
            strict=True,
        )
    ]


def expected_rows(
    oracle, version: int, positions=None, *, isolation: str = "read_committed"
) -> list[tuple]:
    """What a reader sees at a version, from these offsets on."""
    seen = oracle.seen[version]
    ends = seen.stable if isolation == "read_committed" else seen.ends
    return [
        (p, offset, *oracle.records[p][offset])
        for p, rows in enumerate(seen.rows)
        for offset, _ in rows
        if offset < ends[p] and (positions is None or offset >= positions[p])
    ]


def expected_changes(oracle, version: int, starts) -> list[tuple]:
    """The last record of each key from these offsets on, tombstones that are there, too; where
    orders are compared, of the records that win those from there on.
    """
    if oracle.rule_at(version) is not None:
        return sorted(
            (p, offset, *oracle.records[p][offset])
            for p, start in starts.items()
            for offset in oracle.keys_at(version, p).values()
            if offset >= start
        )
    last = {(row[0], row[2]): row for row in expected_rows(oracle, version, starts)}
    return sorted(last.values())


def expected_table(oracle, version: int, tip: int) -> list[tuple]:
    """The record of each key that wins at a version, where it is no tombstone, and not below the
    log start of the newest version that the reader knows (S36).
    """
    return sorted(
        (p, offset, *oracle.records[p][offset])
        for p, start in enumerate(oracle.seen[tip].starts)
        for offset in oracle.keys_at(version, p).values()
        if offset >= start and oracle.records[p][offset][1] is not None
    )
