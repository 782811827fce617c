"""Which record of a key wins where orders are compared, and what must be true of that (S56, S57,
FORMAT.md §15), after each commit of one log:

- The table shows of each key the record with the highest order of those that are there, and of
  equals the last; where late ones are dropped, a suspect counts only beside one that is none.
- A row goes only if one that beats it was there, if it is late and late ones are dropped, or as a
  tombstone whose time has come, and that was the only one of its key.
- No deleted key comes back: no record shows that a tombstone beats which ever was there, but, where
  late ones are kept, one that came after that had gone.

All of this from what was appended: of clog only the configs and the pairs are taken as they are.
What had gone when the orders began to be compared, or erasures killed, counts for nothing.
"""

from typing import NamedTuple

from records import HEADER, TIME_MS

from clog.storage.config.log_config import HEADER as BY_HEADER
from clog.storage.config.log_config import OFFSET, LogConfig
from clog.storage.format.documents import NONE

_WITHOUT = (TIME_MS * 1000, -1)
"""Timestamp and header of a record from when nothing was compared."""


class Rule(NamedTuple):
    """How a version compares."""

    by_header: bool
    drops: bool


def rule_of(config) -> Rule | None:
    """How a log compares with this config; None: the last record wins."""
    found = LogConfig.from_overrides(config)
    if found.compaction_strategy == OFFSET:
        return None
    return Rule(found.compaction_strategy == BY_HEADER, found.compaction_late == "drop")


class Ranked:
    """Those of one log.

    Attributes:
        of: by partition and offset the timestamp and the header.
        gone: of tombstones whose time had come, the end offset when they went.
    """

    def __init__(self, partitions: int) -> None:
        self.of: list[dict[int, tuple[int, int]]] = [{} for _ in range(partitions)]
        self.gone: list[dict[int, int]] = [{} for _ in range(partitions)]
        self._forgotten: list[set[int]] = [set() for _ in range(partitions)]
        self._drops_from = [0] * partitions

    def note(self, p: int, offset: int, timestamp, headers) -> None:
        """Hears by what a record is compared, its timestamp in µs."""
        named = [one["value"] for one in headers or () if one["key"] == HEADER]
        order = int.from_bytes(named[-1], "big") if named else -1
        self.of[p].setdefault(offset, (timestamp, order))

    def see(self, oracle, before, after) -> None:
        """Hears of a commit: where it compares otherwise, what had gone is forgotten."""
        was, now = rule_of(before.head.config), rule_of(after.head.config)
        for p in range(len(self.of)):
            if (was and was.by_header) != (now and now.by_header):
                there = {o for o, _ in oracle.seen[before.version].rows[p]}
                self._forgotten[p] = set(range(len(oracle.records[p]))) - there
            if now and now.drops and not (was and was.drops):
                self._drops_from[p] = before.head.partitions.end[p]

    def left_behind(self, oracle, p: int) -> tuple[list[bytes], list[bytes]]:
        """The keys of tombstones that may go now, and of those that have gone."""
        records, now_ms = oracle.records[p], oracle.clock.now_ms()
        rows = oracle.seen[oracle.newest].rows[p]
        due = [records[o][0] for o, horizon in rows if NONE < horizon <= now_ms]
        return due, [records[o][0] for o in self.gone[p]]

    def winners(self, oracle, version: int, p: int, rule: Rule) -> dict[bytes, int]:
        """The offset of the record of each key that wins at a version, tombstones too."""
        seen, records, fates = oracle.seen[version], oracle.records[p], oracle.fates.of[p]
        best: dict[bytes, int] = {}
        sure: set[bytes] = set()
        for o, _ in seen.rows[p]:
            key = records[o][0]
            if o >= seen.stable[p] or fates[o] or key is None:
                continue
            if not (rule.drops and self._is_suspect(seen, p, o, rule)):
                sure.add(key)
            if key not in best or self._rank(p, o, rule) > self._rank(p, best[key], rule):
                best[key] = o
        return {key: o for key, o in best.items() if key in sure}

    def check_gone(self, oracle, p: int, o: int, rule: Rule) -> None:
        """A row may go by this commit."""
        before = oracle.seen[oracle.newest - 1]
        records, fates = oracle.records[p], oracle.fates.of[p]
        key, value = records[o]
        others = [other for other, _ in before.rows[p] if records[other][0] == key and other != o]
        decided = [other for other in others if not fates[other]]
        sealed = oracle.manifest.segments[p][-1].base
        mine = self._rank(p, o, rule)
        if any(other < sealed and self._rank(p, other, rule) > mine for other in decided):
            return
        if rule.drops and self._is_suspect(before, p, o, rule):
            sure = [other for other in decided if not self._is_suspect(before, p, other, rule)]
            assert not sure, f"offset {o} of partition {p} is dropped, {key} is at {sure}"
            return
        where = f"offset {o} of partition {p}"
        assert value is None, f"{where}, the highest value of {key}, is gone"
        assert not others, f"{where}, a tombstone, is gone, {key} is at {others}"
        self.gone[p][o] = oracle.ends_before[p]

    def check(self, oracle, p: int, rule: Rule) -> None:
        """No record shows that a tombstone beats."""
        records, fates, dead = oracle.records[p], oracle.fates.of[p], oracle.erased.dead[p]
        highest: dict[bytes, tuple[int, int]] = {}
        for o in range(oracle.seen[oracle.newest].stable[p]):
            key, value = records[o]
            counts = not (fates[o] or o in dead or o in self._forgotten[p])
            if key is not None and value is None and counts:
                highest[key] = max(highest.get(key, (-1, -1)), self._rank(p, o, rule))
        for key, o in self.winners(oracle, oracle.newest, p, rule).items():
            if records[o][1] is None or highest.get(key, (-1, -1)) < self._rank(p, o, rule):
                continue
            tombstone = highest[key][1]
            kept = not rule.drops or o < self._drops_from[p]
            assert kept and self.gone[p].get(tombstone, o + 1) <= o, (
                f"{key} of partition {p} shows {o}, which the tombstone at {tombstone} beats"
            )

    def _rank(self, p: int, o: int, rule: Rule) -> tuple[int, int]:
        return (self.of[p].get(o, _WITHOUT)[rule.by_header], o)

    def _is_suspect(self, seen, p: int, o: int, rule: Rule) -> bool:
        order = self._rank(p, o, rule)[0]
        return any(q == p and end <= o and highest >= order for q, highest, end in seen.pairs)
