"""A mirror that several processes fight for, as for jobs (`transactors`): each takes the id up,
goes on from where the log ends, and commits records with their offsets, and ends where there are
none.

The source says of each offset which record it has there, if any; so the log must be right whoever
has mirrored which part of it (S75). A stranger tries to append in between.
"""

from actors import Actor
from records import PARTITIONS, TIME_MS
from transactors import QUEUE, Transactor

from clog.storage.errors import InvalidInputError
from clog.storage.objects.records import to_records

_KEYS = 5
PLACES = 10
"""Partitions of the queue from here on say how far the source was taken over."""


def source(p: int, offset: int) -> tuple | None:
    """The record (key, value) of an offset; None where there is none."""
    if offset % 11 in (3, 4, 5) or (offset + p) % 7 == 6:
        return None
    value = None if offset % 4 == 1 else f"{p}:{offset}".encode()
    return f"k{offset % _KEYS}".encode(), value


class Mirror(Transactor):
    """One of the processes."""

    def fill(self, t, intent, item: int) -> None:
        """Takes over some of the source: now and then nothing, or its start."""
        del item
        world, log = self.world, self.log
        before, ends = self._places(), log.end_offsets()
        self.check(ends)
        is_told = before == self._places()  # Else another has committed in between.
        assert not is_told or all(ends[p] == end for p, end in before.items()), (
            f"the log ends at {ends}, not {before}"
        )
        covered = {p: end + world.roll(6) for p, end in ends.items()}
        starts = {
            p: min(covered[p], max(0, end - 4 + world.roll(10)))
            for p, end in ends.items()
            if world.roll(3) == 0
        }
        t.cover(covered, start=starts)
        t.positions(QUEUE, {PLACES + p: end for p, end in covered.items()})
        for p, end in ends.items():
            first = max(end, starts.get(p, 0))
            offsets = [o for o in range(end, covered[p]) if source(p, o) is not None]
            rows = [source(p, o) for o in offsets if o >= first]
            if not offsets:
                continue
            given = [dict(zip(("key", "value"), source(p, o), strict=True)) for o in offsets]
            table, _ = to_records([g | {"timestamp": TIME_MS} for g in given], now_us=0)
            if rows:
                intent.given[p] = offsets[-len(rows) :]
                self.putting = intent, {p: rows}
            t.append(table, p, offsets=offsets)

    def _places(self) -> dict[int, int]:
        known = self.log.positions(self.job).get(QUEUE, {})
        return {p - PLACES: end for p, end in known.items() if p >= PLACES}

    def check(self, ends) -> None:
        """What is mirrored is the source, but for what was below its start when it was taken."""
        oracle = self.oracle
        if oracle.is_over:
            return
        for p in range(PARTITIONS):
            known = oracle.records[p]
            assert len(known) >= ends[p], f"partition {p} ends at {ends[p]}, not {len(known)}"
            start = oracle.manifest.head.partitions.start[p]
            for offset in range(start, len(known)):
                there = None if oracle.fates.of[p][offset] else known[offset]
                assert there == source(p, offset), f"offset {offset} of {p} is {there}"

    def told(self, intent, result) -> None:
        """It is where the answer says, unless there was no record."""
        if intent.given:
            super().told(intent, result)


class ZombieMirror(Mirror):
    """One that sleeps for days before it creates a version, while another takes over."""

    sleeps = True


class Stranger(Actor):
    """Somebody who appends to a log that takes offsets."""

    def act(self) -> None:
        batch = self.world.batch()
        intent = self.oracle.intent(f"{self.name} is refused")
        self.putting = intent, batch.rows
        try:
            self.log.append(batch.table, batch.partition)
        except InvalidInputError:
            assert not intent.commits
            return
        raise AssertionError("a log that takes offsets gave some")
