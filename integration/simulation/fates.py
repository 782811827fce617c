"""What becomes of the records of one log: decided, undecided or aborted, and where markers are.

Made from the edits of commits and from what the ledger knows (`deals`), not from what clog makes of
them, with which it is compared:

- the last stable offset is that of the first undecided record, or of a transaction that what is
  undecided holds back, as it would be seen in part otherwise (S51);
- an end gives a marker to each partition with undecided records, and to no other (S52);
- a chunk is as undecided or aborted as its records are (S50, S53);
- records come undecided with the entry of their own transaction, or with the commit that decides;
- a marker gets a horizon once, and goes no earlier (S53).
"""

from deals import Deal, Ledger

from clog.storage.format.documents import NONE
from clog.storage.format.transactions import (
    ABORTED,
    COMMITTED,
    TRANSACTION,
    TransactionName,
    find_unended,
)

MARKER = "marker"
NOTHING = (None, None)
"""What stands at an offset that never had a record, such as a marker's."""


class Fates:
    """Those of one log.

    Attributes:
        of: by partition and offset None for an ordinary record, `ABORTED`, `MARKER`, or the name of
            the transaction that has not ended.
    """

    def __init__(self, ledger: Ledger, partitions: int) -> None:
        self.ledger = ledger
        self.of: list[list] = [[] for _ in range(partitions)]
        self._open: dict = {}
        # By transaction and partition its first and last record; whom what is undecided holds back.
        self._spans: dict[TransactionName, dict[int, tuple[int, int]]] = {}
        self._held: dict[TransactionName, set[TransactionName]] = {}
        self._aborted: set[TransactionName] = set()
        self._horizons: dict[tuple[int, int], int] = {}

    def copy(self, ledger: Ledger) -> "Fates":
        """One that knows as much."""
        other = Fates(ledger, len(self.of))
        other.of = [list(fates) for fates in self.of]
        other._open = dict(self._open)
        other._spans = {name: dict(spans) for name, spans in self._spans.items()}
        other._held = {name: set(held) for name, held in self._held.items()}
        other._aborted = set(self._aborted)
        other._horizons = dict(self._horizons)
        return other

    def stable(self, p: int) -> int:
        """The first offset that is held back, else the end."""
        mine = [low[p] for held in self._held.values() if p in (low := self._begin(held))]
        return min(mine, default=len(self.of[p]))

    def _begin(self, held: set[TransactionName]) -> dict[int, int]:
        low: dict[int, int] = {}
        for name in held:
            for p, (first, _) in self._spans[name].items():
                low[p] = min(first, low.get(p, first))
        return low

    def _hold(self) -> None:
        """Has what is undecided hold back whomever it would part, and whom these hold back."""
        for name in self._open:
            self._held.setdefault(name, {name})
        before = None
        while before != (before := sum(map(len, self._held.values()))):
            for held in self._held.values():
                low = self._begin(held)
                held.update(
                    name
                    for name, spans in self._spans.items()
                    if name not in self._aborted
                    and any(last >= low.get(p, last + 1) for p, (_, last) in spans.items())
                )
                held.update(*(self._held[name] for name in held & self._held.keys()))
        if not self._held:
            self._spans, self._aborted = {}, set()

    @property
    def open(self) -> list:
        """The names of transactions with undecided records."""
        return list(self._open)

    def end(self, oracle, before, edit) -> set[int]:
        """Hears of the ends of a commit; returns the partitions that get markers."""
        touched: set[int] = set()
        log_id = before.head.log.log_id
        for ending in edit.ends:
            deal = self.ledger.of(ending.name)
            entry = find_unended(before.head.unended, ending.name)
            if ending.name.home != log_id:
                self.ledger.tell(deal, log_id, ending.outcome, forced=ending.forced)
            elif entry is None or not entry.is_decided:
                self._decide(oracle, edit, deal, ending)
            else:
                assert ending.outcome == deal.outcome, f"{deal} ends as {ending.outcome}"
            self._held.pop(ending.name, None)
            if ending.outcome == ABORTED:
                self._aborted.add(ending.name)
            for p, offsets in sorted(self._open.pop(ending.name, {}).items()):
                fate = ABORTED if ending.outcome == ABORTED else None
                for offset in offsets:
                    self.of[p][offset] = fate
                self._horizons[p, len(self.of[p])] = NONE
                self.of[p].append(MARKER)
                oracle.records[p].append(NOTHING)
                touched.add(p)
        return touched

    def _decide(self, oracle, edit, deal: Deal, ending) -> None:
        if ending.outcome == COMMITTED:
            assert deal in self._committed_by(oracle, edit), f"{deal} is committed by no holder"
            return
        age_ms = None if deal.began_ms is None else oracle.clock.now_ms() - deal.began_ms
        epoch, _ = oracle.taken.states[deal.name.id]
        self.ledger.abort(deal, is_taken_up=epoch > deal.name.epoch, age_ms=age_ms)

    def decide(self, oracle, edit) -> list[Deal]:
        """Hears of a commit that may commit deals, its own and proposed ones; returns them."""
        deals = self._committed_by(oracle, edit)
        holders = [self.ledger.acting, *oracle.proposed.takes_from(edit)]
        for deal in deals:
            epoch, _ = oracle.taken.states[deal.name.id]
            self.ledger.commit(deal, epoch=epoch, holders=holders)
        return deals

    def _committed_by(self, oracle, edit) -> list[Deal]:
        home, deals = oracle.manifest.head.log.log_id, []
        for by in edit.writers:
            done = None if by.entry.kind != TRANSACTION else by.entry.transaction.committed
            if done is not None and done.version == oracle.newest:
                name = TransactionName(home, by.entry.writer_id, done.epoch, done.number)
                deals.append(self.ledger.deals.get(name))
        return [deal for deal in deals if deal is not None]

    def join(self, oracle, edit, intents, decided: list[Deal]) -> None:
        """Hears what a commit appends, once the records have their offsets: the intent of each
        object.
        """
        log_id = oracle.manifest.head.log.log_id
        names, whole = {}, {}
        for by in edit.writers:
            done = None if by.entry.kind != TRANSACTION else by.entry.transaction.committed
            if done is not None and done.version == oracle.newest:
                name = TransactionName(log_id, by.entry.writer_id, done.epoch, done.number)
                whole.update((chunk.object.path, name) for _, chunk in edit.chunks_of(by))
        for joining in edit.unended:
            deal, name = self.ledger.of(joining.entry.name), joining.entry.name
            self.ledger.prepare(deal, log_id)
            if log_id == name.home and deal.began_ms is None:
                deal.began_ms = oracle.clock.now_ms()
            for pairs in edit.by_object()[joining.first : joining.next]:
                names.update((chunk.object.path, name) for _, chunk in pairs)
        for p, chunk in edit.add.chunks if edit.add else ():
            intent, name = intents[chunk.object.path], names.get(chunk.object.path)
            deal = intent.deal
            if deal is None:
                assert name is None, f"{intent.name} is taken for a part of {name}"
            elif name is None:
                assert deal in decided, f"{intent.name} is decided before {deal} is"
            else:
                assert name == deal.name, f"{intent.name} of {deal} is taken for a part of {name}"
                mine = self._open.setdefault(name, {}).setdefault(p, [])
                mine.extend(range(chunk.base, chunk.next))
            if (name or whole.get(chunk.object.path)) is not None:
                spans = self._spans.setdefault(name or whole[chunk.object.path], {})
                spans[p] = spans.get(p, (chunk.base,))[0], chunk.next - 1
            rows = oracle.records[p][chunk.base : chunk.next]
            self.of[p].extend(MARKER if row is NOTHING else name for row in rows)
        self._hold()

    def check(self, manifest, commit_ms: int, now_ms: int, least_ms: int) -> None:
        """Compares what clog says of its newest version. ``least_ms``: the least time between the
        commit that gives a horizon and the horizon.
        """
        head = manifest.head
        for p, start in enumerate(head.partitions.start):
            end = head.partitions.end[p]
            assert end == len(self.of[p]), f"partition {p} ends at {end}, not {len(self.of[p])}"
            said, stable = max(start, head.stable_offset(p)), max(start, self.stable(p))
            assert said == stable, f"stable offset of {p} is said to be {said}, it is {stable}"
            dirty = manifest.first_dirty[p]
            assert dirty <= stable, f"partition {p} is cleaned up to {dirty}, stable is {stable}"
        self._check_markers(manifest, commit_ms, now_ms, least_ms)
        for name, deal in self.ledger.deals.items():
            is_decided = name.home == head.log.log_id and deal.outcome is not None
            if is_decided and find_unended(head.unended, name) is None:
                self.ledger.forget(deal)

    def _check_markers(self, manifest, commit_ms, now_ms, least_ms) -> None:
        starts = manifest.head.partitions.start
        there = {m.place: m.horizon_ms for m in manifest.markers}
        for place in list(self._horizons):
            before, (p, offset) = self._horizons[place], place
            if place not in there:
                horizon = before
                late = NONE < horizon <= now_ms
                assert offset < starts[p] or late, f"marker {place} of {horizon} goes at {now_ms}"
                del self._horizons[place]
                continue
            now = there.pop(place)
            if before == NONE != now:
                assert now >= commit_ms + least_ms, f"horizon {now} of marker {place} is too early"
            else:
                assert now == before, f"horizon of marker {place} was {before}, is {now}"
            self._horizons[place] = now
        assert not there, f"markers {there} where nothing ended"

    def check_chunk(self, p: int, chunk, rows) -> None:
        """Checks that a chunk is what its rows are."""
        said = ABORTED if chunk.aborted else chunk.undecided
        for offset, _ in rows:
            fate = self.of[p][offset]
            assert fate == said, f"offset {offset} of {p} is {fate or 'ordinary'}, told {said}"
