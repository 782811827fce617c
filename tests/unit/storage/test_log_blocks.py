"""Commits deleted by blocks (COMMIT.md §4): a delayed process does not trust what it
finds there.
"""

import numpy as np
import pytest

from clog.storage import (
    AlreadyExistsError,
    CorruptionError,
    InvalidInputError,
    Log,
    LogReplacedError,
    ManualClock,
    NotFoundError,
    StoreUnavailableError,
    VersionExpiredError,
)
from clog.storage.commit.tip import CONFIRM_MS, FOLLOW_STEPS_MAX, Tip, block_body, read_block
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format.commits import Edit, read_commit
from clog.storage.objects.records import to_records
from clog_testing.crash import copy_of, discard, inside, memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.model import rows_in

BLOCK = 8
NEWEST = 2 * BLOCK + 6
DAY_MS = 86_400_000
ASLEEP_AT = 5


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """Blocks of 8 versions, a snapshot at each fourth: the rules are those of blocks of 1024."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clog.storage.format.documents.BLOCK_VERSIONS", BLOCK)
        patch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 10)
        yield


@pytest.fixture(scope="module")
def aged(small_blocks):
    """A store at two moments: early, and after the deletion of the first two blocks."""
    store = memory_store()
    log = Log.create(store, partitions=1, clock=ManualClock(1_000_000), ids=SeededIds(1))
    objects = objects_of(log, "k")
    early = None
    while log.handle.tip.version < NEWEST:
        log.append_objects(objects)
        if log.handle.tip.version == ASLEEP_AT:
            early = copy_of(store)
    close_block(store, 0)
    close_block(store, BLOCK)
    yield early, store
    discard(early)
    discard(store)


def objects_of(log, key):
    writer = log.object_writer(stamp=log.handle.tip.version)
    writer.add(to_records([{"key": key, "value": "v"}], now_us=0)[0], np.zeros(1, np.int32))
    return writer.finish()


def close_block(store, first):
    """What block deletion does: the block's file, then the files."""
    versions = range(first, first + BLOCK)
    ids = {v: read_commit(inside(store), v).record.commit_id for v in versions}
    inside(store).put(
        documents.block_path(first), documents.encode("block", block_body(first, ids))
    )
    for version in versions:
        inside(store).delete(documents.commit_path(version))


class SwappedStore(FaultyStore):
    """A store that is replaced by another one while its users are delayed."""

    def become(self, store):
        for found in self.inner.list(""):
            if "/data/" in found.path:
                store.put(found.path, self.inner.get(found.path))
        discard(self.inner)
        self.inner = store


@pytest.fixture
def sleeper(aged, clock):
    """A handle that knows version 5, and continues after the first blocks were deleted."""
    early, _ = aged
    swapped = SwappedStore(copy_of(early))
    log = Log.open(swapped, clock=clock, ids=SeededIds(77))
    assert log.handle.tip.version == ASLEEP_AT

    def wake(plan=None):
        clock.advance(2 * DAY_MS)
        swapped.become(copy_of(aged[1]))
        swapped.plan = plan or Faults()
        return log

    yield wake
    discard(swapped.inner)


def zombie_commit(store, early):
    """A file that a delayed committer left in a deleted block."""
    other = Log.open(copy_of(early), ids=SeededIds(88))
    other.append([{"key": "zombie", "value": "never committed"}], producer=("zombie", 1))
    path = documents.commit_path(ASLEEP_AT + 1)
    inside(store).put(path, other.handle.store.get(path))


def keys_in(log):
    return {record.key for _, _, record in rows_in(log.read())}


def test_a_cold_reader_finds_the_head(aged, open_log):
    """Also without a hint: after the closed blocks the search continues as usual."""
    _, store = aged
    for hint in (
        b"{}",
        b'{"version": 0}',
        b'{"version": 12}',
        b'{"version": 20}',
        b'{"version": 400}',
    ):
        changed = copy_of(store)
        inside(changed).put(documents.LATEST, hint)
        log = open_log(changed)
        assert log.version == NEWEST
        assert len(rows_in(log.read())) == NEWEST
        discard(changed)


def test_a_cold_reader_that_sleeps_in_the_middle(aged, open_log, clock):
    """The first block that was open when it looked is closed and deleted before it reads on: the
    log was not deleted.
    """
    changed = copy_of(aged[1])
    inside(changed).put(documents.LATEST, b"{}")

    def others_act():
        writer = Log.open(changed, clock=clock, ids=SeededIds(6))
        while writer.handle.tip.version < 4 * BLOCK:
            writer.append([{"key": "k", "value": "v"}])
        close_block(changed, 2 * BLOCK)

    path = documents.commit_path(2 * BLOCK + 2)
    plan = Faults(Fault(FaultKind.MEANWHILE, "get", f"*/{path}", run=others_act))
    log = open_log(FaultyStore(changed, plan))
    assert log.version == 4 * BLOCK
    discard(changed)


@pytest.mark.parametrize("hint", [b'{"version": 4}', b'{"version": 0}', None])
def test_a_zombies_file_is_not_believed(aged, open_log, hint):
    """A hint that leads to files of delayed committers leads nowhere."""
    early, store = aged
    changed = copy_of(store)
    zombie_commit(changed, early)
    inside(changed).delete(documents.LATEST)
    if hint:
        inside(changed).put(documents.LATEST, hint)
    log = open_log(changed)
    assert log.version == NEWEST
    assert keys_in(log) == {b"k"}
    discard(changed)


def test_a_sleeping_reader_looks_again(sleeper):
    """Absent does not mean newest, when the block may be gone."""
    log = sleeper()
    assert log.end_offsets() == {0: NEWEST}
    assert keys_in(log) == {b"k"}


def test_a_sleeping_reader_does_not_follow_a_zombie(sleeper, aged):
    log = sleeper()
    zombie_commit(log.handle.standing.root, aged[0])
    assert log.end_offsets() == {0: NEWEST}
    assert keys_in(log) == {b"k"}


@pytest.fixture
def misled(clock):
    """Makes a store on which a reader that knows version 5 falls asleep before it reads a version:
    two blocks are closed, and a delayed committer leaves that version in one of them.
    """
    store = memory_store()

    def make(version):
        def others_act():
            clock.advance(2 * DAY_MS)
            delayed = Log.open(copy_of(store), clock=clock, ids=SeededIds(88))
            while writer.handle.tip.version < NEWEST:
                writer.append_objects(objects)
            close_block(store, 0)
            close_block(store, BLOCK)
            delayed.append([{"key": "zombie", "value": "never committed"}])
            assert delayed.version == version
            left = documents.commit_path(version)
            inside(store).put(left, delayed.handle.store.get(left))

        writer = Log.create(store, partitions=1, clock=clock, ids=SeededIds(1))
        objects = objects_of(writer, "k")
        while writer.handle.tip.version < ASLEEP_AT:
            writer.append_objects(objects)
        faulty = FaultyStore(store, Faults())
        log = Log.open(faulty, clock=clock, ids=SeededIds(77))
        assert log.version == ASLEEP_AT
        while writer.handle.tip.version < version - 1:
            writer.append_objects(objects)
        path = f"*/{documents.commit_path(version)}"
        faulty.plan = Faults(Fault(FaultKind.MEANWHILE, "get", path, run=others_act))
        return log

    yield make
    discard(store)


@pytest.mark.parametrize("version", [ASLEEP_AT + 1, ASLEEP_AT + FOLLOW_STEPS_MAX + 1])
def test_a_reader_that_sleeps_as_it_looks_does_not_follow_a_zombie(misled, version):
    """COMMIT.md §4: of the next version, or of one that it leaps or searches to."""
    log = misled(version)
    assert log.end_offsets() == {0: NEWEST}
    assert keys_in(log) == {b"k"}


def test_a_writer_that_sleeps_as_it_waits_does_not_follow_a_zombie(misled, clock):
    """COMMIT.md §4: the answer to its proposal would be one that was never given."""
    tip = Tip(misled(ASLEEP_AT + 1).handle.standing, clock=clock)
    assert tip.step(lambda: None).version == NEWEST


def test_a_sleeping_committer_commits_at_the_head(aged, clock):
    """It looks before it commits, since its last look was long ago, and leaves no file behind."""
    early, late = aged
    swapped = SwappedStore(copy_of(early))
    log = Log.open(swapped, clock=clock, ids=SeededIds(77))
    objects = objects_of(log, "awake")
    clock.advance(2 * DAY_MS)
    swapped.become(copy_of(late))
    result = log.append_objects(objects)
    assert (result.version, result.offsets) == (NEWEST + 1, {0: (NEWEST, NEWEST + 1)})
    (created,) = [c.path for c in swapped.calls if c.operation == "create"]
    assert created.endswith(documents.commit_path(NEWEST + 1))
    discard(swapped.inner)


def test_a_committer_that_sleeps_in_the_middle(aged, clock):
    """K5: it creates version 6, which was deleted, finds its block closed, and starts again: the
    file it made was never committed, whoever finds it.
    """
    early, late = aged
    swapped = SwappedStore(copy_of(early))
    log = Log.open(swapped, clock=clock, ids=SeededIds(77))
    swapped.plan = Faults(
        Fault(FaultKind.MEANWHILE, "create", run=lambda: swapped.become(copy_of(late)))
    )
    result = log.append([{"key": "awake", "value": "1"}], producer=("p", 0))
    assert result.version == NEWEST + 1
    assert inside(swapped.inner).get(documents.commit_path(6))
    assert log.append([{"key": "awake", "value": "1"}], producer=("p", 0)).duplicate
    cold = Log.open(swapped.inner, clock=clock)
    assert keys_in(cold) == {b"k", b"awake"}
    assert cold.end_offsets() == {0: NEWEST + 1}
    discard(swapped.inner)


def test_a_committer_that_loses_to_a_zombie(aged, clock):
    """The file that was faster was never committed either: it is not a tip, and not a result for
    anyone.
    """
    early, late = aged
    swapped = SwappedStore(copy_of(early), clock=clock)
    log = Log.open(swapped, clock=clock, ids=SeededIds(77))

    def deleted_and_taken():
        clock.advance(2 * DAY_MS)
        swapped.become(copy_of(late))
        zombie_commit(swapped.inner, early)

    swapped.plan = Faults(Fault(FaultKind.MEANWHILE, "create", run=deleted_and_taken))
    result = log.append([{"key": "zombie", "value": "never committed"}], producer=("zombie", 1))
    assert (result.version, result.duplicate) == (NEWEST + 1, False)
    discard(swapped.inner)


def test_a_committer_that_sleeps_after_it_lost_to_a_zombie(aged, clock):
    """The file that was faster is swept meanwhile: that says nothing about the log."""
    early, late = aged
    swapped = SwappedStore(copy_of(early), clock=clock)
    log = Log.open(swapped, clock=clock, ids=SeededIds(77))
    assert log.end_offsets() == {0: ASLEEP_AT}

    def deleted_and_taken():
        swapped.become(copy_of(late))
        zombie_commit(swapped.inner, early)

    def swept():
        clock.advance(2 * DAY_MS)
        inside(swapped.inner).delete(documents.commit_path(ASLEEP_AT + 1))

    after = f"*/{documents.commit_path(ASLEEP_AT + 2)}"
    swapped.plan = Faults(
        Fault(FaultKind.MEANWHILE, "create", run=deleted_and_taken),
        Fault(FaultKind.MEANWHILE, "get", after, run=swept),
    )
    result = log.append([{"key": "awake", "value": "1"}])
    assert (result.version, result.duplicate) == (NEWEST + 1, False)
    discard(swapped.inner)


def test_a_committer_that_sleeps_after_it_lost_to_two_zombies(aged, clock):
    """What it last knew to be committed is the version before both."""
    early, late = aged
    swapped = SwappedStore(copy_of(early), clock=clock)
    log = Log.open(swapped, clock=clock, ids=SeededIds(77))
    assert log.end_offsets() == {0: ASLEEP_AT}
    zombie = Log.open(copy_of(early), ids=SeededIds(88))
    left = [documents.commit_path(ASLEEP_AT + n) for n in (1, 2)]
    for _ in left:
        zombie.append([{"key": "zombie", "value": "never committed"}])

    def take(path):
        inside(swapped.inner).put(path, zombie.handle.store.get(path))

    def deleted_and_taken():
        swapped.become(copy_of(late))
        take(left[0])

    def swept():
        clock.advance(2 * DAY_MS)
        for path in left:
            inside(swapped.inner).delete(path)

    after = f"*/{documents.commit_path(ASLEEP_AT + 3)}"
    swapped.plan = Faults(
        Fault(FaultKind.MEANWHILE, "create", run=deleted_and_taken),
        Fault(FaultKind.MEANWHILE, "create", nth=2, run=lambda: take(left[1])),
        Fault(FaultKind.MEANWHILE, "get", after, run=swept),
    )
    result = log.append([{"key": "awake", "value": "1"}])
    assert (result.version, result.duplicate) == (NEWEST + 1, False)
    discard(swapped.inner)


def test_a_committer_that_gave_up_after_a_zombie_knows_its_history(aged, clock):
    """S47: a copy in which others went on is no news, though the version before the zombie's is in
    it.
    """
    early, late = aged
    swapped = SwappedStore(copy_of(early), clock=clock)
    log = Log.open(swapped, clock=clock, ids=SeededIds(77))
    assert log.end_offsets() == {0: ASLEEP_AT}

    def deleted_and_taken():
        clock.advance(2 * DAY_MS)
        swapped.become(copy_of(late))
        zombie_commit(swapped.inner, early)
        Log.open(swapped.inner, clock=clock).alter({"max.message.bytes": 17})

    swapped.plan = Faults(Fault(FaultKind.MEANWHILE, "create", run=deleted_and_taken))
    with pytest.raises(InvalidInputError, match="larger than"):
        log.append([{"key": "refused", "value": "too large by then"}])
    assert log.handle.tip.version == NEWEST + 2  # It was proposed, and is withdrawn.
    other = copy_of(late)
    others = Log.open(other, clock=clock, ids=SeededIds(88))
    objects = objects_of(others, "k")
    while others.handle.tip.version < 3 * BLOCK:
        others.append_objects(objects)
    close_block(other, 2 * BLOCK)
    swapped.become(other)
    clock.advance(CONFIRM_MS)
    with pytest.raises(LogReplacedError, match="restored from a copy"):
        log.end_offsets()
    discard(swapped.inner)


@pytest.mark.parametrize("repeats", [True, False], ids=["a duplicate", "its own"])
def test_a_committer_that_was_told_after_a_loss_knows_its_history(aged, clock, repeats):
    """S47: a copy in which other commits followed the version before the race is no news: the
    append that was acknowledged is not in it.
    """
    early, late = aged
    swapped = SwappedStore(copy_of(early), clock=clock)
    log = Log.open(swapped, clock=clock, ids=SeededIds(77))
    assert log.end_offsets() == {0: ASLEEP_AT}
    rival = Log.open(swapped.inner, clock=clock, ids=SeededIds(88))

    def taken():
        rival.append([{"key": "sent", "value": "1"}], producer=("p" if repeats else "rival", 0))

    swapped.plan = Faults(Fault(FaultKind.MEANWHILE, "create", run=taken))
    result = log.append([{"key": "sent", "value": "1"}], producer=("p", 0))
    assert (result.version, result.duplicate) == (ASLEEP_AT + 2 - repeats, repeats)
    swapped.become(copy_of(late))
    clock.advance(CONFIRM_MS)
    with pytest.raises(LogReplacedError, match="restored from a copy"):
        log.end_offsets()
    discard(swapped.inner)


def test_a_committer_that_was_refused_after_a_loss_knows_its_history(aged, clock):
    """S47: an older copy is no news, though the version before the race is in a closed block."""
    early, _ = aged
    swapped = SwappedStore(copy_of(early), clock=clock)
    rival = Log.open(swapped.inner, clock=clock, ids=SeededIds(88))
    objects = objects_of(rival, "k")
    while rival.handle.tip.version < BLOCK - 1:
        rival.append_objects(objects)
    log = Log.open(swapped, clock=clock, ids=SeededIds(77))
    assert log.end_offsets() == {0: BLOCK - 1}
    limit = Fault(FaultKind.MEANWHILE, "create", run=lambda: rival.alter({"max.message.bytes": 17}))
    swapped.plan = Faults(limit)
    with pytest.raises(InvalidInputError, match="larger than"):
        log.append([{"key": "refused", "value": "too large by then"}])
    close_block(swapped.inner, 0)
    older = copy_of(swapped.inner)
    rival.append_objects(objects)
    assert log.end_offsets() == {0: BLOCK}
    swapped.become(older)
    clock.advance(CONFIRM_MS)
    with pytest.raises(LogReplacedError, match="restored from a copy"):
        log.end_offsets()
    discard(swapped.inner)


def test_what_expires_while_a_commit_is_prepared(aged, clock):
    """K2: a file of the tip that is gone may have expired just now, together with the tip."""
    early, late = aged
    swapped = SwappedStore(copy_of(early))
    log = Log.open(swapped, clock=clock, ids=SeededIds(77))

    def prepare(tip, _):
        if tip.version > ASLEEP_AT:
            return Edit()
        swapped.become(copy_of(late))
        raise FileNotFoundError(2, "as planned", "pages/x")

    assert log.handle.commit(prepare, operation="try").version == NEWEST + 1
    discard(swapped.inner)


def test_no_log_is_created_over_deleted_commits(aged, clock):
    """Version 0 is absent, and the log exists."""
    changed = copy_of(aged[1])
    inside(changed).delete(documents.LATEST)
    with pytest.raises(AlreadyExistsError):
        Log.create(changed, clock=clock)
    discard(changed)


def test_a_creator_that_slept(aged, clock):
    """It looked when there was nothing, and created version 0 after a log had been created and had
    grown.
    """
    _, late = aged
    swapped = SwappedStore(memory_store())
    swapped.plan = Faults(
        Fault(FaultKind.MEANWHILE, "create", run=lambda: swapped.become(copy_of(late)))
    )
    with pytest.raises(AlreadyExistsError):
        Log.create(swapped, clock=clock)
    discard(swapped.inner)


def test_a_duplicate_of_a_deleted_commit(aged, clock):
    """A zombie's file under the version of the first result is not taken for it."""
    store = copy_of(aged[0])
    log = Log.open(store, clock=clock, ids=SeededIds(5))
    log.append([{"key": "a", "value": "1"}], producer=("p", 0))
    path = documents.commit_path(ASLEEP_AT + 1)
    inside(store).delete(path)
    zombie_commit(store, aged[0])
    again = log.append([{"key": "a", "value": "1"}], producer=("p", 0))
    assert (again.duplicate, again.offsets) == (True, {})
    discard(store)


def test_closed_blocks_without_anything_after_them(aged, clock):
    """A block's file alone is not a log."""
    store = copy_of(aged[1])
    for found in list(inside(store).list(documents.COMMITS)):
        inside(store).delete(found.path)
    with pytest.raises(NotFoundError):
        Log.open(store, clock=clock)
    discard(store)


@pytest.fixture
def forked(clock):
    """A store in its 8th version, and one that continues until its first blocks are deleted and a
    delayed committer leaves another version 4 there, of two records instead of one.
    """
    store = memory_store()
    log = Log.create(store, partitions=1, clock=clock, ids=SeededIds(1))
    while log.handle.tip.version < 3:
        log.append([{"key": "k", "value": "v"}])
    zombie = Log.open(copy_of(store), clock=clock, ids=SeededIds(2))
    for sequence in range(4):  # Edits so large that a snapshot is due.
        log.append([{"key": "k", "value": "v"}], producer=("p" * 1000, sequence))
    assert log.handle.tip.version == 7
    early = SwappedStore(copy_of(store))
    while log.handle.tip.version < NEWEST:
        log.append([{"key": "k", "value": "v"}])
    close_block(store, 0)
    close_block(store, BLOCK)
    zombie.append([{"key": "zombie", "value": "never committed"}] * 2)
    path = documents.commit_path(4)
    inside(store).put(path, zombie.handle.store.get(path))
    yield early, store
    for used in (early.inner, store, zombie.handle.standing.root):
        discard(used)


def closing_before_version_4(early, late, clock):
    """The process about to read it is delayed until its block is closed and deleted."""

    def sleep():
        clock.advance(2 * DAY_MS)
        early.become(copy_of(late))

    return Fault(FaultKind.MEANWHILE, "get", f"*/{documents.commit_path(4)}", run=sleep)


def test_a_committer_that_needs_edits_of_a_closed_block(forked, clock):
    """K3: for its snapshot it reads the edits since the last one, and is delayed: it finds what
    another delayed process left there. Only for the newest version is damage reported.
    """
    early, late = forked
    log = Log.open(early, clock=clock, ids=SeededIds(77))
    early.plan = Faults(closing_before_version_4(early, late, clock))
    assert log.append([{"key": "awake", "value": "1"}]).version == NEWEST + 1
    assert keys_in(log) == {b"k", b"awake"}


@pytest.mark.parametrize("deleted", [False, True])
def test_a_committer_that_wakes_while_its_block_is_closed(forked, clock, deleted):
    """It was delayed after its last look, and again as it reads the edits since the last snapshot:
    what refuses it has expired with its tip, and is not damage.
    """
    early, late = forked
    if deleted:
        inside(late).delete(documents.commit_path(4))
    log = Log.open(early, clock=clock, ids=SeededIds(77))
    asleep = Fault(FaultKind.MEANWHILE, "put", "*/data/*", run=lambda: clock.advance(2 * DAY_MS))
    closing = Fault(
        FaultKind.MEANWHILE,
        "get",
        f"*/{documents.commit_path(4)}",
        run=lambda: early.become(copy_of(late)),
    )
    early.plan = Faults(asleep, closing)
    assert log.append([{"key": "awake", "value": "1"}]).version == NEWEST + 1
    assert keys_in(log) == {b"k", b"awake"}


@pytest.mark.parametrize("deleted", [False, True])
def test_a_reader_of_a_version_whose_block_is_closed_meanwhile(forked, clock, deleted):
    """COMMIT.md §4: what it reads fits, and was never committed; or it is gone."""
    early, late = forked
    if deleted:
        inside(late).delete(documents.commit_path(4))
    log = Log.open(early, clock=clock, ids=SeededIds(77))
    early.plan = Faults(closing_before_version_4(early, late, clock))
    with pytest.raises(VersionExpiredError):
        log.table(at=4)
    assert documents.block_path(0) in {found.path for found in inside(early.inner).list("")}


def test_a_sleeper_beside_what_another_left_in_the_block_that_was_closed(clock):
    """Only the first block is closed. What the other left is the last version of it and continues
    from the delayed process's tip; the version after it is open, and has another parent: not
    damage.
    """
    store = memory_store()
    log = Log.create(store, partitions=1, clock=clock, ids=SeededIds(1))
    while log.handle.tip.version < BLOCK - 2:
        log.append([{"key": "k", "value": "v"}])
    early = [copy_of(store) for _ in range(2)]
    swapped = SwappedStore(early[0])
    sleeper = Log.open(swapped, clock=clock, ids=SeededIds(2))
    assert keys_in(sleeper) == {b"k"}
    zombie = Log.open(early[1], clock=clock, ids=SeededIds(3))
    zombie.append([{"key": "zombie", "value": "never committed"}])
    while log.handle.tip.version < BLOCK + 2:
        log.append([{"key": "k", "value": "v"}])
    close_block(store, 0)
    path = documents.commit_path(BLOCK - 1)
    inside(store).put(path, inside(early[1]).get(path))
    swapped.become(store)
    assert sleeper.append([{"key": "slept", "value": "v"}]).version == BLOCK + 3
    assert keys_in(sleeper) == {b"k", b"slept"}
    discard(store)
    discard(early[1])


@pytest.fixture
def others(clock):
    """A store, and what others do in it while a process is delayed over version 3: they commit
    until the first block is closed, and return the newest version.
    """
    store = memory_store()
    log = Log.create(store, partitions=1, clock=clock, ids=SeededIds(1))
    objects = objects_of(log, "k")
    log.append_objects(objects)
    log.append_objects(objects)

    def act():
        while log.handle.refresh().version < NEWEST:
            log.append_objects(objects)
        close_block(store, 0)
        return log.handle.tip.version

    yield store, act
    discard(store)


def test_a_committer_that_sleeps_after_its_commit(others, clock):
    """K5: its block is closed and names its commit. It happened, and is no longer the newest."""
    store, act = others

    def slept():
        act()
        clock.advance(2 * DAY_MS)

    plan = Faults(Fault(FaultKind.MEANWHILE, "get", "*/blocks/*", run=slept))
    log = Log.open(FaultyStore(store, plan), clock=clock, ids=SeededIds(2))
    assert log.append([{"key": "mine", "value": "v"}]).version == 3
    assert log.handle.tip.version == 3
    assert log.handle.refresh().version == NEWEST
    assert keys_in(log) == {b"k", b"mine"}


def test_a_reader_that_wakes_while_its_block_is_closed(clock):
    """It finds existing versions, and then one that was deleted since it started to look: absent
    does not mean newest if the first look came late.
    """
    store = memory_store()
    log = Log.create(store, partitions=1, clock=clock, ids=SeededIds(1))
    objects = objects_of(log, "k")
    waking = FaultyStore(store)
    reader = Log.open(waking, clock=clock, ids=SeededIds(2))
    while log.handle.tip.version < NEWEST:
        log.append_objects(objects)
    clock.advance(2 * DAY_MS)
    waking.plan = Faults(
        Fault(
            FaultKind.MEANWHILE,
            "get",
            f"*/{documents.commit_path(3)}",
            run=lambda: close_block(store, 0),
        )
    )
    assert reader.end_offsets() == {0: NEWEST}
    discard(store)


def test_a_search_that_fails_where_the_tip_is_gone(others, clock):
    """A deleted tip is not taken for the newest, since looking further was impossible."""
    store, act = others
    failing = FaultyStore(store)
    log = Log.open(failing, clock=clock, ids=SeededIds(2))
    log.handle.refresh()
    newest = act()
    clock.advance(CONFIRM_MS)
    failing.plan = Faults(Fault(FaultKind.FAIL_BEFORE, "get", f"*/{documents.LATEST}"))
    with pytest.raises(StoreUnavailableError):
        log.handle.refresh()
    assert log.handle.refresh().version == newest


def test_the_file_of_another_block_is_damage():
    """FORMAT.md §7: an open one in place of a closed one would make a delayed commit genuine."""
    store = memory_store()
    store.put(documents.block_path(0), documents.encode("block", block_body(BLOCK)))
    with pytest.raises(CorruptionError, match=r"it belongs to block 8"):
        read_block(store, 3)
