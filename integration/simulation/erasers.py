"""Who asks for erasures, and looks how far they are, and who holds them up for a while."""

from contextlib import suppress

import pyarrow as pa
from actors import Actor, denied
from erased import rows_in
from readers import expected_table, rows_of
from records import PARTITIONS, keys_named

from clog.storage.cuts import drop_cut, name_cut
from clog.storage.errors import (
    CommitConflictError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
)
from clog.storage.keys.hashing import partitions_for

NEXT = 3
"""One of so many times it asks; else it looks."""


class Eraser(Actor):
    """Erases some keys now and then, one that nobody has among them; mostly it looks on."""

    may_be_interrupted = True

    def __init__(self, world, name: str, clock) -> None:
        super().__init__(world, name, clock)
        self._count = self.site.logs.standing.newest * 1000

    def act(self) -> None:
        if self._count % 1000 and self.world.roll(NEXT):
            self._look()
            return
        keys = keys_named(
            *{self.world.roll(self.world.keys + 1) for _ in range(1 + self.world.roll(2))}
        )
        log, notify, before = self.log, self.world.roll(2) == 0, self.oracle.newest
        self._count += 1
        intent = self.oracle.intent(f"{self.name} {self._count}")
        intent.place = log.handle, self._count
        self.putting = intent, self._rows
        try:
            request = log.erase(keys, notify=notify)
        except (CommitConflictError, StoreUnavailableError) as e:
            denied(intent, e)
            return
        if self.oracle.is_over:
            return
        asked = self.oracle.erased.asked[request.id]
        assert asked.keys == {*keys}, f"{request} is of {asked.keys}, not {keys}"
        assert asked.entry.version == request.version, f"{request} is of {asked.entry}"
        self.world.secrets[request.id] = request.secret
        if notify:
            self._check_told(keys, before, request.version)

    def _rows(self, data: bytes) -> dict[int, list[tuple]]:
        """The tombstones of an object."""
        keys, _ = rows_in(data)
        rows: dict[int, list[tuple]] = {}
        for key, p in zip(keys, self._homes(keys), strict=True):
            rows.setdefault(p, []).append((key, None))
        return dict(sorted(rows.items()))

    def _homes(self, keys: list[bytes]) -> list[int]:
        algorithm = self.oracle.manifest.head.log.partitioner
        return partitions_for(pa.array(keys), partitions=PARTITIONS, algorithm=algorithm).tolist()

    def _check_told(self, keys: list[bytes], before: int, version: int) -> None:
        """What it could know is deleted once it is asked for, where the key is at home."""
        oracle = self.oracle
        stable, ends = oracle.seen[version].stable, oracle.seen[version].ends
        for key, p in zip(keys, self._homes(keys), strict=True):
            if stable[p] < ends[p]:
                continue  # Its tombstone is seen once what is undecided before it has ended.
            at = oracle.keys_at(version, p).get(key)
            lives = at is not None and oracle.records[p][at][1] is not None
            assert not lives or at >= oracle.seen[before].ends[p], f"{key} lives on at {at} of {p}"

    def _look(self) -> None:
        for one in self.log.erasures():
            if self.oracle.is_over:
                return
            known = self.oracle.erased.asked[one.id]
            is_done = one.state == "done"
            assert is_done == (one.receipt is not None), one
            assert is_done == (not one.reason), one
            assert not is_done or known.receipt, f"{one} is done, and has no receipt"


class ZombieEraser(Eraser):
    """One that sleeps for days before it creates a version."""

    sleeps = True


class Holder(Actor):
    """Names a cut of the log, reads it as it was then, and lets go of it: erasures wait for it."""

    def __init__(self, world, name: str, clock) -> None:
        super().__init__(world, name, clock)
        self._count = self.site.logs.standing.newest * 1000
        self._cut = None

    def act(self) -> None:
        log = self.log
        if self._cut is None:
            self._count += 1
            with suppress(CommitConflictError, InvalidInputError):
                self._cut = name_cut(log.handle, f"{self.name}-{self._count}", None)
        elif self.world.roll(4):
            table = sorted(rows_of(log.table(at=self._cut).to_batches()))
            version, tip = self._cut.logs[self.site.disk.url], log.handle.tip.version
            expected = expected_table(self.oracle, version, tip)
            assert table == expected, f"{self._cut} shows {table}, not {expected}"
        else:
            cut, self._cut = self._cut, None
            with suppress(NotFoundError):
                drop_cut(log.handle, cut.name)
