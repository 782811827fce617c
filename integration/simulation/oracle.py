"""What must be true of a simulated log after each change of the disk.

The oracle sees every write and deletion when it happens, and knows from the actors what they meant
to append. Its model of a log is a list of records for each partition, whose index is the offset,
and nothing is ever taken from it. The state of the log is the edits of the commits in order; from
it the oracle keeps, for each version, which offsets a reader sees.

After each commit:

- it is the version after the newest, its head is what its edit makes of the one before, and all
  that it refers to is on the disk (A1, C1-C7);
- what it appends was meant to be appended, once, at dense offsets (S1);
- every row is the record of its offset (S1, S26); a row is gone only below the log start, after a
  later record of its key that is sealed, or as a tombstone whose horizon has come (S10, S21, S23),
  which the manifest tells readers (S41);
- a tombstone is gone only with all older values of its key, and below the first dirty offset each
  key stands once (S12, `table`);
- a horizon counts from the commit that sets it, and stays what it was (S23);
- what one handle appends later comes later, and what its actor was told was not done never comes;
- what a commit takes along of others was proposed, and may be taken (`proposed`);
- masks hide what the table does not show, no row too many and none too few (`masked`);
- where orders are compared, the highest of a key is shown and stays (`ranked`);
- what is erased goes, and nothing else does (`erased`);
- a transaction is its holder's, and what it did was next (S48, S54; `taken`);
- what is undecided is seen by nobody and kept, what was aborted is seen by nobody any more, and
  what is decided is decided in all logs of a transaction (S50 to S53; `deals`, `fates`).

When a block is closed, its youngest commit was written a day before, whatever its writer's clock
said (G1).

At each deletion: it is clog's, no readable version needs it, its delay or age is over, the floor is
committed (S27, W1-W6, B1, B2).
"""

from dataclasses import replace

import pyarrow as pa
from disk import Folder
from erased import Erased
from facts import Intent, Seen
from fates import MARKER, NOTHING, Fates
from masked import Masked
from proposed import Proposed
from ranked import Ranked, rule_of
from taken import Taken

from clog.storage.commit.committer import AHEAD_MS_MAX
from clog.storage.commit.tip import read_block
from clog.storage.config.log_config import LogConfig
from clog.storage.format import documents
from clog.storage.format.commits import Head, _partitions_of, edit_of, read_commit, with_columns
from clog.storage.format.documents import NONE
from clog.storage.format.manifest import Manifest, apply, first_manifest, read_snapshot
from clog.storage.format.transactions import ABORTED, PositionsAt
from clog.storage.format.writers import WriterPages
from clog.storage.read.scan import piece_of, read_pieces

SKEW_MS = 5 * 60_000
"""Twice as much lies between the clocks of two actors at most."""
AGE_MS = 24 * 3_600_000
RETENTION_MS_MIN = 1_800_000
"""The least ``delete.retention.ms`` that anybody sets."""
_HARMLESS = ("FileNotFoundError", "VersionExpiredError", "CommitStateUnknownError")
"""Why a pass may fail: others were faster, by hours; nobody knows whether it is done."""
_COLUMNS = ("offset", "key", "value", "timestamp", "headers", "delete_horizon")
STRANGERS = (
    *("notes.txt", "clock-1", "data/.keep", "pages/notes.json", "edits/notes.txt"),
    *(f"{kind}/kept/{0:020d}.json" for kind in ("commits", "snapshots", "columns", "blocks")),
)
"""Names in a log's folder that no clog makes: nobody deletes them while the log stands."""
_HEAD = [name for name in Head.__dataclass_fields__ if name != "snapshot"]


class Oracle:
    """Watches one log.

    Attributes:
        store: the log's folder.
        records: by partition (key, value), in the order of offsets.
        seen: by version.
        manifest: the newest.
        ghosts: commits made in closed blocks, by who slept.
        is_over: somebody deletes it, and nothing is promised of it any more.
        gone_ms: when nothing was left of it, by the monotonic clock; None before.
        ends_before: the end offsets before the newest version.
    """

    def __init__(self, store: Folder, clock, partitions: int, ledger) -> None:
        self.store, self.clock, self._ledger = store, clock, ledger
        self.fates = Fates(ledger, partitions)
        self._masked = Masked()
        self.proposed = Proposed()
        self.ranked = Ranked(partitions)
        self.erased = Erased(partitions)
        self.ends_before: tuple[int, ...] = (0,) * partitions
        self._appended: dict[object, int] = {}
        self.is_over = False
        self.gone_ms: int | None = None
        self.records: list[list[tuple]] = [[] for _ in range(partitions)]
        self.seen: dict[int, Seen] = {}
        self.manifest: Manifest | None = None
        self.ghosts = 0
        self._begun_again: set[int] = set()
        self._misleading: set[str] = set()
        self._intents: dict[str, Intent] = {}
        self._intent_of: dict[str, Intent] = {}
        self._time_ms: dict[int, int] = {}
        self._heads: dict[int, Head] = {}
        self.taken = Taken()
        self._writer_pages: dict[str, set[str]] = {}
        self._commit_ids: dict[int, str] = {}
        self._closed: dict[int, bool] = {}
        self._edits: dict[int, str] = {}
        self._released: dict[str, tuple[int, int]] = {}
        self._written_ms: dict[str, int] = {}
        self._chunk_rows: dict[tuple, tuple] = {}

    def copy(self, store: Folder, clock, ledger) -> "Oracle":
        """One that knows as much, of a copy of the disk; it has no deals."""
        other = Oracle(store, clock, len(self.records), ledger)
        other.fates = self.fates.copy(ledger)
        other._masked = self._masked.copy()
        other.erased = self.erased.copy()
        ledger.oracles[self.manifest.head.log.log_id] = other
        other.records = [list(rows) for rows in self.records]
        other.manifest = self.manifest
        other.taken = Taken(dict(self.taken.states))
        other._intents = {
            name: Intent(name, dict(i.objects), list(i.commits))
            for name, i in self._intents.items()
        }
        other._intent_of = {path: other._intents[i.name] for path, i in self._intent_of.items()}
        for name in (
            *("seen", "_time_ms", "_heads", "_commit_ids", "_closed", "_edits", "_released"),
            *("_chunk_rows", "_written_ms", "_writer_pages"),
        ):
            setattr(other, name, dict(getattr(self, name)))
        return other

    @property
    def newest(self) -> int:
        return -1 if self.manifest is None else self.manifest.version

    def intent(self, name: str) -> Intent:
        """The intent of this name."""
        return self._intents.setdefault(name, Intent(name))

    def puts(self, intent: Intent, path: str, rows: dict[int, list[tuple]]) -> None:
        """Hears that an object with these rows is about to be put."""
        self._intent_of[path] = intent
        intent.objects[path] = rows

    def written(self, path: str, *, is_new: bool) -> None:
        """Hears of an object that was put or created."""
        if path in STRANGERS:
            return
        if self.is_over:
            self._note_stray(path)
            return
        if path == documents.LATEST:
            return
        if path.startswith(documents.BLOCKS):
            self._block_written(documents.version_of(path), is_new=is_new)
            return
        assert is_new, f"{path} was overwritten"
        if path.startswith(documents.PROPOSALS):
            self.proposed.created(self.store, path, self._ledger.acting)
            return
        # A file that a zombie leaves in the place of one that was deleted makes nothing younger.
        self._written_ms.setdefault(path, self.clock.now_ms())
        if path.startswith(documents.COMMITS):
            self._committed(documents.version_of(path))
        elif path.startswith(documents.RECEIPTS):
            self.erased.receipt_written(self, path)

    def is_closed(self, version: int) -> bool:
        """Whether the version's block is closed."""
        return self._closed.get(documents.block_of(version), False)

    def is_at(self, version: int) -> bool:
        """Whether the version is there, or never will be: nothing is left of the log."""
        return self.newest >= version or self.gone_ms is not None

    def is_long_gone(self, version: int) -> bool:
        """Whether the version's block was closed and its commit deleted, or the whole log was."""
        there = documents.commit_path(version) in self.store
        return self.gone_ms is not None or (self.is_closed(version) and not there)

    def is_misleading(self, path: str) -> bool:
        """Whether somebody who slept has created the commit of this path in a block that was
        closed, and its commits deleted.
        """
        return path in self._misleading and path in self.store

    def is_begun_again(self, version: int) -> bool:
        """Whether somebody began the version's block when nothing was left of the log, and so
        misled another, who is told some seconds later (COMMIT.md §1).
        """
        return documents.block_of(version) in self._begun_again

    def last_sequence(self, writer_id: str) -> int:
        """The highest sequence number that a writer has committed."""
        done = (i.name.rpartition(" ") for i in self._intents.values() if i.commits)
        return max((int(n) for name, _, n in done if name == writer_id), default=-1)

    def last_version(self, prefix: str) -> int:
        """The newest version at which something that is named so was committed; -1: none was."""
        mine = (i for name, i in self._intents.items() if name.startswith(prefix))
        return max((version for i in mine for version, _ in i.commits), default=-1)

    def note_deletion(self) -> None:
        """Hears that some of the log, which is over, was deleted."""
        if self.gone_ms is None and next(self.store.list(""), None) is None:
            self.gone_ms = self.clock.monotonic_ms()

    def deleted(self, path: str) -> None:
        """Hears of an object that is gone."""
        assert path not in STRANGERS, f"{path} deleted, which is not clog's"
        kind = path[: path.rfind("/") + 1]
        if kind == documents.DATA:
            self._data_deleted(path)
        elif kind == documents.COMMITS:
            assert self.is_closed(documents.version_of(path)), f"{path} deleted, its block is open"
        elif kind == documents.SNAPSHOTS:
            assert documents.version_of(path) not in self._snapshots(), f"{path} is needed"
        elif kind == documents.PAGES:
            needed = {page.path for v in self._snapshots() for page in self._pages(v)}
            needed |= self._pages_of_writers(path) | self._documents_of_positions(path)
            assert path not in needed, f"{path} is needed"
        elif kind == documents.COLUMNS:
            refs = [head.partitions.ref for head in self._readable_heads()]
            assert path not in {ref.path for ref in refs if ref}, f"{path} is needed"
        elif kind == documents.EDITS:
            needed = {e for v, e in self._edits.items() if not self.is_closed(v)}
            assert path not in needed, f"{path} is needed"
        elif kind == documents.ERASURES:
            name = documents.erasure_of(path)
            self.erased.deleted(name, path, is_named=name in self.manifest.erasures)
        else:  # A proposal is never needed.
            known = documents.CLOCKS, documents.PROPOSALS
            assert path.startswith(known), f"{path} deleted"

    def _note_stray(self, path: str) -> None:
        """Whose a commit is that comes when nothing is left: it may not be acknowledged."""
        if self.gone_ms is not None and path.startswith(documents.BLOCKS):
            self._begun_again.add(documents.version_of(path))
        if self.gone_ms is not None and path.startswith(documents.COMMITS):
            commit = read_commit(self.store, documents.version_of(path))
            stored = commit.record.stored.get("edit", {})
            for obj in stored.get("add", {}).get("objects", ()):
                self._intent_of[obj["path"]].strays.append(commit.version)

    def _block_written(self, first: int, *, is_new: bool) -> None:
        """A block is open before its first commit; closed, it names what was committed."""
        ids = read_block(self.store, first).ids
        assert is_new == (ids is None), f"block {first} begins with {ids}"
        self._closed[first] = ids is not None
        if ids is None:
            assert first == self.newest + 1, f"block {first} begins after {self.newest}"
            return
        made = {v: i for v, i in self._commit_ids.items() if documents.block_of(v) == first}
        assert ids == made, f"block {first} names {ids}, committed were {made}"
        age_ms = self._age_ms(max(made))
        assert age_ms >= AGE_MS - 2 * SKEW_MS, f"block {first} is closed, {age_ms} ms old"

    def keys_at(self, version: int, p: int) -> dict[bytes, int]:
        """The offset of the record of each key of a partition that wins at a version, tombstones
        too: the last one, or the highest (`ranked`).
        """
        if rule := self.rule_at(version):
            return self.ranked.winners(self, version, p, rule)
        seen, dead = self.seen[version], self.erased.dead[p]
        fates, numbered = self.fates.of[p], enumerate(self.records[p][: seen.stable[p]])
        decided = ((o, row[0]) for o, row in numbered if o >= seen.starts[p] and not fates[o])
        there = ((o, key) for o, key in decided if dead.get(o, version + 1) > version)
        return {key: o for o, key in there if key is not None}

    def rule_at(self, version: int):
        """How a version compares the records of a key; None: the last one wins."""
        return rule_of(self._heads[version].config)

    def _snapshots(self) -> set[int]:
        return {h.snapshot.version for h in self._readable_heads() if h.snapshot is not None}

    def _readable_heads(self) -> list[Head]:
        oldest = self.manifest.head.oldest_readable
        return [self._heads[v] for v in range(oldest, self.newest + 1)]

    def _pages(self, version: int):
        return read_snapshot(self.store, version).pages

    def _pages_of_writers(self, path: str) -> set[str]:
        """Those of heads that somebody may work from; one that was long in coming may be gone with
        the version after it.
        """
        roots = {head.older_writers for head in self._heads_worked_from(path)} - {None}
        return {page for root in roots for page in self._writer_pages[root.path]}

    def _documents_of_positions(self, path: str) -> set[str]:
        states = [w.transaction for h in self._heads_worked_from(path) for w in h.writers]
        at = [s.positions for s in states if s is not None]
        return {found.path for found in at if isinstance(found, PositionsAt)}

    def _heads_worked_from(self, path: str) -> list[Head]:
        """Those from which somebody may work who needs the document; of the floor's version the
        commit may be gone with its block.
        """
        floor, is_old = self.manifest.head.orphan_floor, self._is_old(path)
        versions = (floor, self.newest) if is_old else range(floor, self.newest + 1)
        return [self._heads[v] for v in versions if documents.commit_path(v) in self.store]

    def _age_ms(self, version: int) -> int:
        """How long a commit is there, whatever its writer's clock said."""
        return self.clock.now_ms() - self._written_ms[documents.commit_path(version)]

    def _is_old(self, path: str) -> bool:
        return self.clock.now_ms() - self._written_ms[path] >= AGE_MS - 2 * SKEW_MS

    def _data_deleted(self, path: str) -> None:
        head, now_ms = self.manifest.head, self.clock.now_ms()
        alive = _paths(self.manifest)
        assert path not in alive, f"{path} deleted, the newest version needs it"
        if path in self._released:
            version, time_ms = self._released[path]
            assert head.oldest_readable >= version, (
                f"{path} deleted, version {version - 1} needs it, readable from"
                f" {head.oldest_readable}"
            )
            delay_ms = LogConfig.from_overrides(head.config).file_delete_delay_ms
            assert now_ms - time_ms >= delay_ms - 2 * SKEW_MS, f"{path} deleted before its delay"
        else:
            stamp = documents.stamp_of(path)
            assert stamp < head.orphan_floor, f"{path} deleted above floor {head.orphan_floor}"

    def _committed(self, version: int) -> None:
        if self.is_closed(version):
            self.ghosts += 1  # Somebody slept, and will learn that it did not happen.
            self._misleading.add(documents.commit_path(version))
            return
        assert version == self.newest + 1, f"version {version} created after {self.newest}"
        commit = read_commit(self.store, version)
        edit, before = edit_of(self.store, commit.record), self.manifest
        record = commit.record
        made = {"commit_id": record.commit_id, "time_ms": record.time_ms}
        after = first_manifest(edit, **made) if before is None else apply(before, edit, **made)
        head = with_columns(self.store, commit.head)
        for name in _HEAD:
            assert getattr(after.head, name) == getattr(head, name), name
        rest = head.partitions.ref
        assert rest is None or rest == before.head.partitions.ref or rest.version == version - 1
        self.manifest = replace(after, head=head)
        self._time_ms[version], self._heads[version] = record.time_ms, head
        self._commit_ids[version] = record.commit_id
        if (root := commit.head.older_writers) and root.path not in self._writer_pages:
            self._writer_pages[root.path] = set(WriterPages(self.store).paths(root))
        if "edit_at" in record.stored:
            self._edits[version] = record.stored["edit_at"]["path"]
        self._check_times(edit)
        if before is not None:
            self.proposed.check(before.head, record, edit)
        self.taken.check(self.store, edit)
        if before is None:
            self._ledger.oracles[head.log.log_id] = self
            ended: set[int] = set()
        else:
            self.ends_before = before.head.partitions.end
            ended = self._decide(version, before, edit)
            self._note_released(before, after)
        self._see(version, before, edit, ended)

    def _decide(self, version: int, before: Manifest, edit) -> set[int]:
        """What is appended, and what becomes of transactions; returns the partitions in which some
        ended.
        """
        fates = self.fates
        decided = fates.decide(self, edit)
        ended = fates.end(self, before, edit)
        self._reach(edit.reached)
        self._append(version, edit)
        fates.join(self, edit, self._intent_of, decided)
        self._reach(edit.reached_after)
        for deal in decided:
            self._ledger.check_whole(deal)
        times = self._time_ms[version], self.clock.now_ms() + SKEW_MS, RETENTION_MS_MIN
        fates.check(self.manifest, *times)
        return ended

    def _check_times(self, edit) -> None:
        now_ms = self.clock.now_ms()
        ahead_ms = self._time_ms[self.newest] - now_ms
        assert ahead_ms <= AHEAD_MS_MAX + SKEW_MS, f"version {self.newest} is {ahead_ms} ms ahead"
        if edit.orphan_floor:
            age_ms = self._age_ms(edit.orphan_floor)
            assert age_ms >= AGE_MS - 2 * SKEW_MS, f"floor {edit.orphan_floor} is {age_ms} ms old"
        for p, given in edit.uncleanable.items():
            harmless = given is None or given.reason.startswith(_HARMLESS)
            assert harmless, f"partition {p} is uncleanable: {given.reason}"

    def _reach(self, ends) -> None:
        """Offsets below these that have no record never get one (FORMAT.md §16)."""
        for p, end in ends.items():
            missing = end - len(self.records[p])
            assert missing > 0, f"partition {p} reaches {end} again"
            self.records[p] += [NOTHING] * missing
            self.fates.of[p] += [MARKER] * missing

    def _append(self, version: int, edit) -> None:
        """Several appends, where they waited for one another (group commit)."""
        if edit.add is None:
            return
        added = dict.fromkeys(c.object.path for _, c in edit.add.chunks)
        left = {
            (path, p): list(rows)
            for path in added
            for p, rows in self._intent_of[path].objects[path].items()
        }
        offsets: dict[Intent, dict[int, tuple[int, int]]] = {}
        for p, chunk in edit.add.chunks:
            path = chunk.object.path
            intent = self._intent_of[path]
            assert path in self.store, f"{path} is committed and gone"
            assert chunk.base == len(self.records[p]), f"offset {chunk.base} given out of turn"
            rows, left[path, p] = left[path, p][: chunk.rows], left[path, p][chunk.rows :]
            assert len(rows) == chunk.rows, f"{intent.name}: rows of {path}"
            if edit.add.is_given:
                at = intent.given[p][: len(rows)]
                del intent.given[p][: len(rows)]
                numbered = dict(zip(at, rows, strict=True))
                assert min(at) >= chunk.base and max(at) < chunk.next, f"{intent.name}: {at}"
                rows = [numbered.get(o, NOTHING) for o in range(chunk.base, chunk.next)]
            self.records[p].extend(rows)
            mine = offsets.setdefault(intent, {})
            base, end = mine.get(p, (chunk.base, chunk.base))
            assert end == chunk.base, f"{intent.name}: another's records are between its own"
            mine[p] = base, chunk.next
        assert not any(left.values()), f"records were lost: {left}"
        for intent, mine in offsets.items():
            intent.commits.append((version, mine))
            assert len(intent.commits) == 1, f"{intent.name} happened twice: {intent.commits}"
            assert not intent.is_denied, f"{intent.name} happens, and was told not to"
            if intent.place is not None:
                handle, number = intent.place
                last = self._appended.get(handle, -1)
                assert number > last, f"{intent.name} happens after number {last} of its handle"
                self._appended[handle] = number

    def _note_released(self, before: Manifest, after: Manifest) -> None:
        gone = _paths(before) - _paths(after)
        released = {r.path for r in after.released}
        assert gone <= released, f"{gone - released} is not released"
        for path in gone:
            # By the commit's time: who sleeps before the create lets objects go that look older.
            self._released[path] = (after.version, after.time_ms)

    def _see(self, version: int, before: Manifest | None, edit, ended: set[int]) -> None:
        columns, after = self.manifest.head.partitions, self.manifest
        old = self.seen.get(version - 1)
        parts = [given for part, given in edit.parts() if part.names]
        touched = ended.union(*map(_partitions_of, parts))
        rows = tuple(
            self._rows(p) if old is None or p in touched else old.rows[p]
            for p in range(after.head.log.partitions)
        )
        bounds = zip(columns.start, map(self.fates.stable, range(len(rows))), strict=True)
        stable = tuple(max(both) for both in bounds)
        told = after.tombstones_removed
        pairs = after.orders_removed
        self.seen[version] = Seen(rows, columns.start, columns.end, stable, told, pairs)
        self.erased.committed(self, edit)
        if before is not None:
            self.ranked.see(self, before, after)
        for p in sorted(touched) if before is not None else ():
            self._check_partition(p, old.rows[p], rows[p])
            self.erased.check_rows(p, rows[p])
            self._masked.check(self, p)
            if rule := self.rule_at(version):
                self.ranked.check(self, p, rule)

    def _rows(self, p: int) -> tuple[tuple[int, int], ...]:
        start = self.manifest.head.partitions.start[p]
        found: list[tuple[int, int]] = []
        for segment in self.manifest.segments[p]:
            for chunk in segment.chunks:
                rows = self._rows_of(p, chunk)
                self.fates.check_chunk(p, chunk, rows)
                found.extend(() if chunk.aborted else rows)
        return tuple(row for row in found if row[0] >= start)

    def _rows_of(self, p: int, chunk) -> tuple[tuple[int, int], ...]:
        """(offset, horizon) of the chunk's rows, which are compared with the records."""
        key = (p, chunk.identity, chunk.rows, chunk.base, chunk.horizon, chunk.up_to, chunk.dead)
        if key not in self._chunk_rows:
            assert chunk.object.path in self.store, f"{chunk.object.path} is committed and gone"
            rows = []
            piece = piece_of(p, chunk, chunk.base, chunk.next)
            for batch in read_pieces(self.store, [piece], columns=_COLUMNS):
                columns = (_plain(column).to_pylist() for column in batch.columns)
                for offset, name, value, timestamp, headers, horizon in zip(*columns, strict=True):
                    assert self.records[p][offset] == (name, value), f"offset {offset} of {p}"
                    self.ranked.note(p, offset, timestamp, headers)
                    rows.append((offset, NONE if horizon is None else horizon))
            self._chunk_rows[key] = tuple(rows)
            self.erased.place(p, chunk)
        return self._chunk_rows[key]

    def _check_partition(self, p: int, old, new) -> None:
        offsets = [offset for offset, _ in new]
        assert offsets == sorted(set(offsets)), f"partition {p} has {offsets}"
        was, now = dict(old), dict(new)
        records, columns = self.records[p], self.manifest.head.partitions
        start, fates = columns.start[p], self.fates.of[p]
        stable, rule = self.fates.stable(p), self.rule_at(self.newest)
        sealed = {}  # the last sealed record of each key
        for o in range(start, min(self.manifest.segments[p][-1].base, stable)):
            if not fates[o]:
                sealed[records[o][0]] = o
        for o in was.keys() - now.keys():
            if o < start or fates[o] == ABORTED:
                continue
            assert fates[o] is None, f"offset {o} of {p} is gone, {fates[o]} is undecided"
            if self.erased.check_gone(p, o, self.newest):
                continue
            if rule is not None and records[o][0] is not None:
                self.ranked.check_gone(self, p, o, rule)
                if records[o][1] is None and o in self.ranked.gone[p]:
                    self._check_expired(p, o, was[o])
            elif sealed.get(records[o][0], -1) <= o and records[o][0] is not None:
                self._check_expired(p, o, was[o])
        for o, horizon in was.items():
            kept = now.get(o, horizon)
            if horizon == NONE != kept:
                least_ms = self._time_ms[self.newest] + RETENTION_MS_MIN
                assert kept >= least_ms, f"horizon {kept} of {o} is too early"
            else:
                assert kept == horizon, f"horizon of {o} of {p} was {horizon}, is {kept}"
        self._check_keys(p, now)

    def _check_expired(self, p: int, o: int, horizon: int) -> None:
        """A row may go as a tombstone whose time has come."""
        key, value = self.records[p][o]
        where = f"offset {o} of partition {p}"
        assert value is None, f"{where}, the last value of {key}, is gone"
        assert horizon != NONE, f"{where}, a tombstone, is gone without a horizon"
        assert self.clock.now_ms() >= horizon - SKEW_MS, f"{where}: its horizon is to come"
        later = self.keys_at(self.newest, p).get(key, o) > o
        told = max((last for q, _, last in self.manifest.tombstones_removed if q == p), default=-1)
        assert later or told >= o, f"{where}: readers are not told that it is gone"

    def _check_keys(self, p: int, now: dict[int, int]) -> None:
        records = self.records[p]
        clean_end = self.manifest.first_dirty[p]
        clean: dict[bytes, int] = {}
        last: dict[bytes, int] = {}
        for o in sorted(now):
            key = records[o][0]
            if o < clean_end and key is not None:
                assert key not in clean, f"{key} is at {clean[key]} and {o} below {clean_end}"
                clean[key] = o
            if o < self.seen[self.newest].stable[p]:
                last[key] = o
        for key, o in self.keys_at(self.newest, p).items():
            if o not in now:  # Only a tombstone goes (`_check_expired`), and with it all before.
                assert key not in last, f"{key} of partition {p} came back to life at {last[key]}"


def _paths(manifest: Manifest) -> set[str]:
    """The objects that a version needs, and their bitmaps that are files."""
    return {path for _, chunk in manifest.chunks() for path in chunk.files}


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
