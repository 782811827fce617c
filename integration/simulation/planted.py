"""Bugs to plant: each takes one safeguard out of clog, and the simulation must notice.

A bug replaces one function of clog, or of the disk, by one that lacks what the name says; clog
itself knows nothing of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import actors
import disk
import keepers
from limits import Patch, patching
from planted_deals import CUT_BUGS, DEAL_BUGS
from planted_erasures import ERASURE_BUGS
from planted_masks import MASK_BUGS
from planted_mirrors import MIRROR_BUGS
from planted_orders import ORDER_BUGS
from planted_proposals import PROPOSAL_BUGS
from planted_state import STATE_BUGS
from world import BEGINNINGS, beginning

import clog.cleaner.duties.commit_blocks
import clog.cleaner.duties.layout
import clog.cleaner.duties.sweep
import clog.cleaner.log_round
import clog.cleaner.passes.judge
import clog.cleaner.passes.rewriter
import clog.cleaner.passes.run_pass
import clog.storage.commit.appends
import clog.storage.commit.committer
import clog.storage.commit.handle
import clog.storage.commit.tip
import clog.storage.format.writers
import clog.storage.transactions.deferred
import clog.storage.transactions.ids
from clog.cleaner.passes.run_pass import SourcesChangedError
from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.tip import Block, Found, try_read
from clog.storage.errors import StoreUnavailableError
from clog.storage.format import documents
from clog.storage.format.commits import Edit, encode_commit, read_commit
from clog.storage.format.documents import NONE
from clog.storage.store.contract import ObjectExistsError, StoreRefusedError, WrappingStore
from clog_testing.faults import FaultyStore

cleaner, storage = clog.cleaner, clog.storage


def block_file_not_read(patch: Patch) -> None:
    """After its create a committer does not ask whether the block was closed (COMMIT.md, K5)."""
    patch(storage.commit.committer, "read_block", lambda _store, _version: Block(ids=None))


def conflict_not_read_back(patch: Patch) -> None:
    """A create that is refused was another's, without looking: a repeated request is (K4)."""
    create = storage.commit.committer._create

    def blind(store, commit, clock, ids):
        try:
            store.create(documents.commit_path(commit.version), encode_commit(commit))
        except ObjectExistsError:
            return read_commit(store, commit.version)
        except StoreUnavailableError:
            return create(store, commit, clock, ids)
        return None

    patch(storage.commit.committer, "_create", blind)


def own_commit_taken_for_anothers(patch: Patch) -> None:
    """What is read back after a lost reply, or a repeated request, is never recognised as one's own
    commit (K4): what is in it is committed again.
    """
    create = storage.commit.committer._create

    class Doubted(WrappingStore):
        in_doubt = False

        def create(self, path, data):
            try:
                self.inner.create(path, data)
            except (ObjectExistsError, StoreUnavailableError):
                self.in_doubt = True
                raise

    def blind(store, commit, clock, ids):
        doubted = Doubted(store)
        winner = create(doubted, commit, clock, ids)
        is_own = winner is None and doubted.in_doubt
        return read_commit(store, commit.version) if is_own else winner

    patch(storage.commit.committer, "_create", blind)


def abort_deletes(patch: Patch) -> None:
    """A sink whose commit failed deletes its objects: the commit may have happened."""

    def abort(self, objects):
        for obj in objects:
            self.log.handle.store.delete(obj.path)

    patch(actors.Sink, "abort", abort)


def delete_before_commit(patch: Patch) -> None:
    """Released objects go before `oldest_readable` is raised (W5 before W4)."""

    def sweep(work, **_):
        handle, now_ms = work.handle, work.now_ms
        manifest = handle.manifest()
        config = storage.config.log_config.LogConfig.from_overrides(manifest.head.config)
        due = cleaner.duties.sweep.due_objects(manifest, config, now_ms=now_ms)
        for released in due:
            handle.store.delete(released.path)
        if due:
            cleaner.duties.sweep.raise_oldest(handle, max(r.version for r in due))
            gone = tuple(r.path for r in due)
            handle.commit(lambda _tip, _ms: Edit(forget=gone), operation="sweep")

    _patch_sweep_released(patch, sweep)


def horizon_recomputed(patch: Patch) -> None:
    """Each pass sets a tombstone's horizon anew: it never goes, or goes too late (S23)."""
    judge = cleaner.passes.judge.decide_retention

    def forgetful(**given):
        horizon = given["delete_horizon_ms"]
        given["delete_horizon_ms"] = horizon * 0 + NONE
        return judge(**given)

    patch(cleaner.passes.judge, "decide_retention", forgetful)


def map_end_off_by_one(patch: Patch) -> None:
    """A map that is full is said to cover the record that did not fit (S20)."""
    build = cleaner.passes.run_pass.build_map

    def generous(store, manifest, partition, dirty, **more):
        mapped = build(store, manifest, partition, dirty, **more)
        mapped.end += mapped.end < dirty[1]
        return mapped

    patch(cleaner.passes.run_pass, "build_map", generous)


def changed_sources_ignored(patch: Patch) -> None:
    """A pass, or a coalescing, commits though others changed its sources."""
    patch(cleaner.passes.run_pass, "_has_same_rows", lambda *_: True)
    patch(cleaner.duties.layout.Run, "is_there", lambda *_: True)


def checkpoint_moves(patch: Patch) -> None:
    """A pass goes on after a group whose sources changed, and moves the first dirty offset."""
    commit = cleaner.passes.run_pass.commit_pass

    def go_on(handle, planned, partition, edit, **more):
        try:
            return commit(handle, planned, partition, edit, **more)
        except SourcesChangedError:
            moves = Edit(first_dirty=edit.first_dirty)
            return commit(handle, planned, partition, moves, **more)

    patch(cleaner.passes.run_pass, "commit_pass", go_on)


def sequence_not_checked_again(patch: Patch) -> None:
    """A producer's sequence is checked before it writes, and not after a lost race (K2)."""
    patch(storage.commit.appends, "find_duplicate", lambda *_: None)


def exists_then_write(patch: Patch) -> None:
    """The store asks whether an object is there, and writes then (A2)."""

    def create(self, path, data):
        there = path in self.inner
        (FaultyStore.create if there else FaultyStore.put)(self, path, data)

    patch(disk.ActorStore, "create", create)


def floor_ignored(patch: Patch) -> None:
    """The sweep of orphans takes objects of any stamp, also of appends under way (W3)."""
    blind = SimpleNamespace(**{**vars(documents), "stamp_of": lambda _path: NONE})
    patch(cleaner.duties.sweep, "documents", blind)


def delay_ignored(patch: Patch) -> None:
    """Released objects are due at once (S27)."""
    due = cleaner.duties.sweep.due_objects
    late_ms = 1 << 60
    patch(
        cleaner.duties.sweep,
        "due_objects",
        lambda m, config, now_ms: due(m, config, now_ms=late_ms),
    )


def other_partition_ignored(patch: Patch) -> None:
    """An object is dead when partition 0 does not refer to it any more."""
    due = cleaner.duties.sweep.due_objects

    def narrow(manifest, config, *, now_ms):
        mine = (manifest.segments[0], *(() for _ in manifest.segments[1:]))
        return due(replace(manifest, segments=mine), config, now_ms=now_ms)

    patch(cleaner.duties.sweep, "due_objects", narrow)


def floor_not_committed(patch: Patch) -> None:
    """The sweep chooses a floor and does not commit it: a slow append does not learn (W1)."""

    def no_need(_tip, _floor):
        return NothingToCommit()

    patch(cleaner.duties.sweep, "_raised", no_need)


def idle_handle_trusts(patch: Patch) -> None:
    """Who was idle for hours believes the first probe: the block may be closed (COMMIT.md §4)."""
    patch(storage.commit.tip.Tip, "is_stale", lambda _self: False)


def relayout_loses_horizons(patch: Patch) -> None:
    """Coalescing writes tombstones without the horizon they have (S23)."""
    columns = tuple(name for name in cleaner.duties.layout.COLUMNS)
    read = cleaner.duties.layout.read_or_copy
    patch(
        cleaner.duties.layout,
        "read_or_copy",
        lambda store, wanted, **rest: read(store, wanted, **{**rest, "columns": columns}),
    )


def removed_tombstone_not_told(patch: Patch) -> None:
    """A tombstone goes, and the manifest does not say so to readers (S41)."""
    patch(cleaner.passes.run_pass, "last_expired", lambda _group: NONE)


def deleted_log_not_noticed(patch: Patch) -> None:
    """Where the block of a commit has no file it is taken to be open: the log was deleted (K5)."""
    block_of = storage.commit.committer._block_of
    patch(
        storage.commit.committer,
        "_block_of",
        lambda store, version: block_of(store, version) or Block(ids=None),
    )


def deleted_log_polled(patch: Patch) -> None:
    """Who only polls never looks whether its log still stands (COMMIT.md §1)."""
    patch(storage.commit.tip.Tip, "_is_old", lambda _self, _then_ms: False)


def other_log_swept(patch: Patch) -> None:
    """A sweep takes folders of other logs for what creators left, and asks for no newer log."""

    def sweep(handle, *, before_ms, dry_run):
        root, mine = handle.standing.root, documents.folder_of(handle.standing.log_id)
        found = [o for o in root.list(documents.FOLDERS) if not o.path.startswith(mine)]
        for left in found:
            if left.path != documents.LOG_FILE:
                root.delete(left.path)
        return found

    patch(cleaner.duties.sweep, "sweep_other_logs", sweep)


def older_page_dropped(patch: Patch) -> None:
    """New pages of writers have those who left the head, and not those of the pages before."""
    producers = storage.format.writers
    page_out = producers.page_out_if_full

    def forgetful(pages, head, added, *, new_id):
        return page_out(pages, replace(head, older_writers=None), added, new_id=new_id)

    patch(storage.commit.committer, "page_out_if_full", forgetful)


def page_beats_head(patch: Patch) -> None:
    """A writer's entry in the page of older ones counts more than that in the head."""
    find = storage.format.writers.find_writer

    def backwards(pages, head, kind, writer_id):
        paged = find(pages, replace(head, writers=()), kind, writer_id)
        return paged or find(pages, head, kind, writer_id)

    patch(storage.commit.appends, "find_writer", backwards)


def kind_ignored(patch: Patch) -> None:
    """A writer is taken for another of its id and another kind."""
    find = storage.format.writers.find_writer

    def blind(pages, head, kind, writer_id):
        kinds = (w.kind for w in reversed(head.writers) if w.writer_id == writer_id)
        return find(pages, head, next(kinds, kind), writer_id)

    patch(storage.commit.appends, "find_writer", blind)


def cut_page_loses_writers(patch: Patch) -> None:
    """Where a page of writers is cut, the writer at the cut is in neither part."""
    pieces = storage.format.writers._pieces

    def shorter(start, hashed, cuts):
        first, *others = pieces(start, hashed, cuts)
        return [first, *((begin, rows[1:]) for begin, rows in others)]

    patch(storage.format.writers, "_pieces", shorter)


def pages_below_swept(patch: Patch) -> None:
    """A sweep keeps the root of the pages of older writers, and none of those below it."""

    class Shallow(storage.format.writers.WriterPages):
        def paths(self, root):
            yield root.path

    patch(cleaner.duties.sweep, "WriterPages", Shallow)


def refusal_not_read_back(patch: Patch) -> None:
    """A create that is refused was not done, without looking: a repeated request is (K4)."""
    create = storage.commit.committer._create

    def trusting(store, commit, clock, ids):
        try:
            store.create(documents.commit_path(commit.version), encode_commit(commit))
        except StoreRefusedError:
            raise
        except (ObjectExistsError, StoreUnavailableError):
            return create(store, commit, clock, ids)
        return None

    patch(storage.commit.committer, "_create", trusting)


def search_chases(patch: Patch) -> None:
    """A search goes on as long as others commit meanwhile (COMMIT.md §6)."""
    tip_tracker = storage.commit.tip

    def chasing(find):
        def search(store, *given, **more):
            found = find(store, *given, **more)
            while (newer := try_read(store, found.tip.version + 1)) is not None:
                found = Found(newer, {**found.read, newer.version: newer})
            return found

        return search

    for name in ("find_newest", "find_newer"):
        patch(tip_tracker, name, chasing(getattr(tip_tracker, name)))


def clock_ahead_trusted(patch: Patch) -> None:
    """Who commits does not compare its clock with the store's (COMMIT.md, K2)."""
    patch(storage.commit.committer.StoreClock, "check", lambda _self, newest_ms: None)


def needed_columns_deleted(patch: Patch) -> None:
    """The sweep takes columns of versions before the oldest readable one, though its head may name
    them (COMMIT.md, W3).
    """

    def older(store, oldest):
        for found in store.list(documents.COLUMNS):
            if documents.columns_version_of(found.path) < oldest.version:
                yield found

    patch(cleaner.duties.sweep, "_columns_before", older)


def rows_forgotten(patch: Patch) -> None:
    """A head holds the rows of its own commit alone, not all since the columns that it names."""
    with_rest = storage.commit.committer.with_rest

    def forgetful(store, before, after, **given):
        held = with_rest(store, before, after, **given)
        own = {p: row for p, row in held.rows.items() if before.rows.get(p) is not row}
        return held if held.ref is None or held.ref != before.ref else replace(held, rows=own)

    patch(storage.commit.committer, "with_rest", forgetful)


def epoch_not_compared(patch: Patch) -> None:
    """Who was fenced commits all the same (S48)."""
    find = storage.transactions.ids.find_commit

    def lenient(state, ours, *, url, tried):
        if state is not None:
            state = replace(state, epoch=ours.epoch)
        return find(state, ours, url=url, tried=tried)

    patch(storage.transactions.deferred, "find_commit", lenient)


def epoch_not_compared_again(patch: Patch) -> None:
    """The epoch is compared before the commit is tried, and not after a lost race (K2)."""
    prepare = storage.transactions.deferred.CommitRequest.prepare
    asked: set[storage.transactions.ids.TransactionName] = set()

    def once(self, tip, time_ms):
        if self.ours not in asked:
            asked.add(self.ours)
            return prepare(self, tip, time_ms)
        find = storage.transactions.deferred.find_commit
        storage.transactions.deferred.find_commit = lambda *_given, **_more: None
        try:
            return prepare(self, tip, time_ms)
        finally:
            storage.transactions.deferred.find_commit = find

    patch(storage.transactions.deferred.CommitRequest, "prepare", once)


def committed_forgotten(patch: Patch) -> None:
    """A commit whose reply was lost is not told from one that did not happen (H-T12)."""
    find = storage.transactions.ids.find_commit

    def forgetful(state, ours, *, url, tried):
        known = None if state is None else replace(state, committed=None)
        return find(known, ours, url=url, tried=tried)

    patch(storage.transactions.deferred, "find_commit", forgetful)


def abort_in_doubt_trusted(patch: Patch) -> None:
    """A transaction in doubt is aborted without a look: its commit may be on its way (H-T13)."""
    patch(
        storage.transactions.deferred.Committing,
        "_end_unknown",
        lambda _self: storage.transactions.ids.NotCommitted(by_us=True),
    )


def positions_swept(patch: Patch) -> None:
    """The sweep does not know the documents of positions (H-T6)."""
    patch(cleaner.duties.sweep, "_positions", lambda _head: ())


def standing_not_asked(patch: Patch) -> None:
    """Who looks for newer versions never reads ``_clog/log``: what another old handle left in the
    folder of a deleted log is news (COMMIT.md §1).
    """
    patch(storage.commit.tip.Tip, "_check_standing", lambda _self: None)


def strangers_files_swept(patch: Patch) -> None:
    """A sweep takes all that lies in the log's own folders for its own (COMMIT.md §5)."""
    patch(cleaner.duties.sweep, "_is_document", lambda _path: True)


def strangers_commits_swept(patch: Patch) -> None:
    """The closer of a block takes what has the name of a commit in another folder for one."""
    version_of = documents.version_of
    loose = SimpleNamespace(**vars(documents))
    loose.version_of = lambda path: version_of(documents.COMMITS + path.rpartition("/")[2])
    patch(cleaner.duties.commit_blocks, "documents", loose)


def horizon_from_planning(patch: Patch) -> None:
    """A tombstone's horizon counts from when its pass was planned, hours ago (S23)."""
    commit = cleaner.passes.run_pass.commit_pass
    dated = cleaner.passes.run_pass._with_horizons

    def early(handle, planned, partition, edit, **more):
        def as_planned(edit, *, commit_ms, delete_retention_ms):
            del commit_ms
            planned_ms = planned.time_ms
            return dated(edit, commit_ms=planned_ms, delete_retention_ms=delete_retention_ms)

        with patching() as inner:
            inner(cleaner.passes.run_pass, "_with_horizons", as_planned)
            return commit(handle, planned, partition, edit, **more)

    patch(cleaner.passes.run_pass, "commit_pass", early)


def trouble_marks_partition(patch: Patch) -> None:
    """A store that fails makes the partition uncleanable that was cleaned (S28)."""
    patch(cleaner.log_round, "PASSING_TROUBLE", ())


def group_shares_offsets(patch: Patch) -> None:
    """Appends of a group are all prepared against the head as it was before them (Q2)."""
    patch(storage.commit.appends, "advance", lambda head, _edit, **_: head)


def group_mixes_writers(patch: Patch) -> None:
    """Each writer of a group is said to have appended its first objects (decision 0010)."""
    joined = storage.commit.appends._joined

    def mixed(edits):
        return replace(joined(edits), writers=tuple(by for edit in edits for by in edit.writers))

    patch(storage.commit.appends, "_joined", mixed)


def tip_seen_in_two_steps(patch: Patch) -> None:
    """A newer tip is taken, and then the edits up to it: an interrupt comes between."""

    def see(self, tip, **changed):
        self._note(commit=self._whole(tip, self.commit), **changed)
        self._note(recent=self.recent.then(tip))

    patch(storage.commit.tip.Tip, "_see", see)


BUGS: dict[str, Callable[[Patch], None]] = {
    "block file not re-read after create": block_file_not_read,
    "conflict not read back": conflict_not_read_back,
    "own commit taken for another's": own_commit_taken_for_anothers,
    "abort deletes": abort_deletes,
    "delete before commit": delete_before_commit,
    "horizon recomputed": horizon_recomputed,
    "map end off by one": map_end_off_by_one,
    "cleaner ignores changed sources": changed_sources_ignored,
    "checkpoint moves though a group was dropped": checkpoint_moves,
    "sequence not re-checked after rebase": sequence_not_checked_again,
    "exists-then-write": exists_then_write,
    "sweep ignores floor": floor_ignored,
    "sweep ignores delay": delay_ignored,
    "sweep ignores another partition's chunks": other_partition_ignored,
    "floor not committed": floor_not_committed,
    "idle handle trusts a probe": idle_handle_trusts,
    "coalescing loses horizons": relayout_loses_horizons,
    "removed tombstone is not told": removed_tombstone_not_told,
    "deleted log not noticed by a commit": deleted_log_not_noticed,
    "deleted log not noticed by a poll": deleted_log_polled,
    "sweep in another log's folder": other_log_swept,
    "new writers' page drops the older page": older_page_dropped,
    "older page's entry beats the head's": page_beats_head,
    "writer's kind ignored": kind_ignored,
    "cut writers' page loses one": cut_page_loses_writers,
    "sweep takes pages below writers' root": pages_below_swept,
    "refusal not read back": refusal_not_read_back,
    "search chases": search_chases,
    "clock far ahead is trusted": clock_ahead_trusted,
    "columns that are needed are swept": needed_columns_deleted,
    "rows since the columns are forgotten": rows_forgotten,
    "epoch not compared": epoch_not_compared,
    "epoch not compared after a lost race": epoch_not_compared_again,
    "committed transaction forgotten": committed_forgotten,
    "abort in doubt without a look": abort_in_doubt_trusted,
    "positions swept": positions_swept,
    "deleted log is asked for itself alone": standing_not_asked,
    "strangers' files swept": strangers_files_swept,
    "strangers' commits swept": strangers_commits_swept,
    "horizon counts from planning": horizon_from_planning,
    "trouble with the store marks a partition": trouble_marks_partition,
    "group shares offsets": group_shares_offsets,
    "group mixes writers": group_mixes_writers,
    "tip is seen in two steps": tip_seen_in_two_steps,
    **DEAL_BUGS,
    **CUT_BUGS,
    **STATE_BUGS,
    **MASK_BUGS,
    **MIRROR_BUGS,
    **PROPOSAL_BUGS,
    **ORDER_BUGS,
    **ERASURE_BUGS,
}
"""By name."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The bug is there until the end of the block; older worlds have lived without it."""
    for number in range(1, BEGINNINGS + 1):
        beginning(number)
    with patching() as patch:
        BUGS[name](patch)
        yield


def _patch_sweep_released(patch: Patch, sweep) -> None:
    for module in (cleaner.duties.sweep, cleaner.log_round, keepers):
        patch(module, "sweep_released", sweep)
