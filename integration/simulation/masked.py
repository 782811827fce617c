"""Whether the masks of a log say what they must (FORMAT.md §13), after each of its commits.

- They stand at the beginning of each partition, below the offset up to which it is covered.
- No row is hidden too many: of what lies below that offset the last record of each key is shown,
  unless it is a tombstone, or went with a later one.
- None too few: what they show, and of each key that came since the last record, is the table.
"""

from clog.storage.format.chunks import Chunk
from clog.storage.read.scan import Hidden, piece_of, read_pieces


class Masked:
    """Those of one log; what was looked at stays known."""

    def __init__(self) -> None:
        self._shown: dict[tuple, tuple[int, ...]] = {}
        self._checked: dict[int, tuple] = {}

    def copy(self) -> "Masked":
        """One that knows as much."""
        other = Masked()
        other._shown, other._checked = dict(self._shown), dict(self._checked)
        return other

    def check(self, oracle, p: int) -> None:
        """Compares the masks of a partition with its records, where anything about them is new."""
        manifest = oracle.manifest
        if not manifest.covered or not manifest.covered[p]:
            return
        chunks = [c for s in manifest.segments[p] for c in s.chunks]
        covered = [c for c in chunks if c.mask is not None]
        start = manifest.head.partitions.start[p]
        known = (start, manifest.covered[p], tuple(_mask_key(c) for c in covered))
        if not covered or self._checked.get(p) == known:
            return
        self._checked[p] = known
        end = manifest.covered[p]
        late = [c.base for c in covered if c.next > end]
        assert not late, f"chunks at {late} of partition {p} have masks, which end at {end}"
        assert chunks[: len(covered)] == covered, f"masks of partition {p} have a gap"
        shown = {o for c in covered for o in self._shown_of(oracle, p, c) if o >= start}
        records, reached = oracle.records[p], covered[-1].next
        last = _last(oracle, p, start, end)
        there = {o for o, _ in oracle.seen[oracle.newest].rows[p]}
        must = {o for o in last.values() if o < reached and records[o][1] is not None} & there
        hidden = sorted(must - shown)
        assert not hidden, f"masks of partition {p} hide {hidden}, last below {end} of their keys"
        rest = _last(oracle, p, reached, len(records))
        whole = _last(oracle, p, start, len(records)).values()
        fold = {o for o in whole if records[o][1] is not None}
        table = {o for o in shown if records[o][0] not in rest}
        table |= {o for o in rest.values() if o >= start and records[o][1] is not None}
        assert table == fold, (
            f"masks of partition {p} show {sorted(shown)}, with what came since"
            f" {sorted(table)}, the table is {sorted(fold)}"
        )

    def _shown_of(self, oracle, p: int, chunk: Chunk) -> tuple[int, ...]:
        """The offsets that a chunk's bitmaps leave over."""
        key = (p, chunk.base, chunk.next, *_mask_key(chunk))
        if key not in self._shown:
            files = [path for path in chunk.files if path not in oracle.store]
            assert not files, f"{files} are committed and gone"
            piece = piece_of(p, chunk, chunk.base, chunk.next, hidden=Hidden.ALL)
            found = read_pieces(oracle.store, [piece], columns=("offset",))
            rows = () if chunk.aborted else (o for b in found for o in b.column(0).to_pylist())
            self._shown[key] = tuple(rows)
        return self._shown[key]


def _mask_key(chunk: Chunk) -> tuple:
    return (chunk.identity, chunk.rows, chunk.dead, chunk.aborted, chunk.mask)


def _last(oracle, p: int, start: int, end: int) -> dict[bytes, int]:
    """The last offset of each key among records of ``[start, end)`` that are decided and count."""
    records, fates, dead = oracle.records[p], oracle.fates.of[p], oracle.erased.dead[p]
    end = min(end, oracle.fates.stable(p))
    decided = (o for o in range(start, end) if not fates[o] and o not in dead)
    return {records[o][0]: o for o in decided if records[o][0] is not None}
