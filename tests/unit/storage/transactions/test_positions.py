"""Positions of what was read, committed with the results (S54)."""

import pytest

from clog.storage import InvalidInputError, Log, NotFoundError, OffsetOutOfRangeError
from clog.storage.diagnostics.verify import verify_log
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format.commits import Edit
from clog.storage.format.transactions import TRANSACTION, Position, PositionsAt
from clog.storage.format.writers import WRITERS_MAX
from clog_testing.crash import discard, inside, memory_store
from clog_testing.invariants import check_log

MANY = 200
"""Partitions whose positions have more than 1 KiB."""


@pytest.fixture
def source(clock):
    store = memory_store()
    yield Log.create(store, partitions=MANY, clock=clock, ids=SeededIds(77))
    discard(store)


def stored(log, name="job"):
    """What the head has of an id's positions."""
    (entry,) = [w for w in log.handle.refresh().head.writers if w.key == (TRANSACTION, name)]
    return entry.transaction.positions


def commit_positions(log, source, offsets, name="job"):
    with log.transaction(name) as t:
        t.positions(source, offsets)
    return t.result


def test_they_are_committed_with_the_records(make_log, open_log, source):
    """S54: by log and partition; an abort leaves the earlier ones, and so do other partitions and
    ids.
    """
    log = make_log()
    assert log.positions("job") == {}
    with log.transaction("job") as t:
        t.append([{"key": "k", "value": "v"}])
        t.positions(source, {0: 42, 1: 7})
    t = log.transaction("job")
    t.positions(source, {0: 43})
    assert open_log().positions("job") == {source.id: {0: 42, 1: 7}}
    t.abort()
    assert commit_positions(log, source, {1: 9}).offsets == {}
    with log.transaction("job") as t:
        t.positions(log, {0: 1})
        t.positions(source, {2: 3})
        t.positions(source, {2: 4})
    expected = {source.id: {0: 42, 1: 9, 2: 4}, log.id: {0: 1}}
    assert log.positions("job") == open_log().positions("job") == expected
    assert log.positions("other") == {}
    check_log(log.handle.standing.root)


def test_a_takeover_goes_on_from_them(make_log, open_log, source):
    """S48, S54: whoever takes over the id gets what was committed, whatever the last
    holder left.
    """
    log, other = make_log(), open_log()
    commit_positions(log, source, {0: 42})
    left = log.transaction("job")
    left.positions(source, {0: 50})
    with other.transaction("job") as t:
        assert other.positions("job") == {source.id: {0: 42}}
        t.positions(source, {1: 1})
    assert log.positions("job") == {source.id: {0: 42, 1: 1}}


def test_they_carry_the_version_that_was_read(make_log, source):
    """S41, S54: that of the last read, not what the source became since; or the caller's."""
    log = make_log()
    source.append([{"key": "k", "value": "v"}], partition=0)
    assert len(list(source.read(0))) == 1
    source.append([{"key": "k", "value": "w"}], partition=0)
    assert source.end_offsets()[0] == 2
    with log.transaction("job") as t:
        t.positions(source, {0: 1})
        t.positions(source, {1: 5}, version=0)
    assert stored(log) == {source.id: {0: Position(1, version=1), 1: Position(5, version=0)}}


def remove_tombstones(log, up_to, partition=0):
    """As a pass of the cleaner removes those whose horizon has passed."""
    edit = Edit(tombstones_removed={partition: up_to})
    log.handle.commit(lambda _tip, _ms: edit, operation="clean")


def test_deletes_that_were_missed_are_told(make_log, source):
    """S41, S54: a tombstone at or above the last position was removed before the next read; a
    caller that accepts that continues, and gets the error for the next one.
    """
    log = make_log()
    source.append([{"key": "k", "value": "v"}] * 9, partition=0)

    def read_and_commit(offset, **more):
        list(source.read(0))
        with log.transaction("job") as t:
            t.positions(source, {0: offset}, **more)

    read_and_commit(3)
    remove_tombstones(source, 2)
    remove_tombstones(source, 8, partition=1)
    read_and_commit(4)
    remove_tombstones(source, 5)
    with pytest.raises(NotFoundError, match=r"offset 5 of partitions \[0\] .* missed deletes"):
        read_and_commit(6)
    assert log.positions("job") == {source.id: {0: 4}}
    read_and_commit(6, missed_deletes=True)
    remove_tombstones(source, 5)
    read_and_commit(7)
    assert log.positions("job") == {source.id: {0: 7}}


def test_deletes_removed_after_the_read_were_seen(make_log, source):
    """S41: the version that was read counts, not what the source has become since."""
    log = make_log()
    source.append([{"key": "k", "value": "v"}] * 9, partition=0)
    commit_positions(log, source, {0: 3})
    list(source.read(0))
    version = source.version
    remove_tombstones(source, 5)
    with log.transaction("job") as t:
        t.positions(source, {0: 9}, version=version)
    assert log.positions("job") == {source.id: {0: 9}}


@pytest.mark.parametrize(
    "offsets",
    [{MANY: 0}, {-1: 0}, {0: -1}, {0: 1.5}, {"0": 1}, {0: True}, {0: 1 << 63}, [1], None],
    ids=repr,
)
def test_what_is_no_position(make_log, open_log, source, offsets):
    """An integer that no reader accepts would be the end of the log: nothing of it is committed."""
    log = make_log()
    t = log.transaction("job")
    with pytest.raises(InvalidInputError, match="is not a position in"):
        t.positions(source, offsets)
    t.commit()
    assert open_log().positions("job") == {}


@pytest.mark.parametrize("version", [-1, 1 << 63, 1.5, "1"])
def test_what_is_no_version(make_log, open_log, source, version):
    log = make_log()
    t = log.transaction("job")
    with pytest.raises(InvalidInputError, match="is not a version of"):
        t.positions(source, {0: 1}, version=version)
    t.positions(source, {0: (1 << 63) - 1}, version=(1 << 63) - 1)
    t.commit()
    assert open_log().positions("job") == {source.id: {0: (1 << 63) - 1}}


def test_what_is_no_log(make_log):
    t = make_log().transaction("job")
    with pytest.raises(InvalidInputError, match="'memory://x' is neither a log"):
        t.positions("memory://x", {0: 1})
    with pytest.raises(InvalidInputError, match="'memory://x' is not a log"):
        t.append([{"key": "k", "value": "v"}], log="memory://x")


def test_large_ones_are_a_document(make_log, open_log, source, store, clock):
    """H-T6: the head repeats a reference, which a takeover keeps; damage is found."""
    log = make_log()
    offsets = {p: p * 1_000_000 for p in range(MANY)}
    commit_positions(log, source, offsets)
    first = stored(log)
    assert isinstance(first, PositionsAt)
    assert first.path.startswith(documents.PAGES)
    other = open_log()
    other.transaction("job")
    assert stored(log) == first
    assert other.positions("job") == {source.id: offsets}
    commit_positions(other, source, {0: 1})
    second = stored(log)
    assert second != first
    inside(store).delete(first.path)
    assert log.positions("job") == {source.id: {**offsets, 0: 1}}
    assert verify_log(store).findings == ()
    inside(store).delete(second.path)
    assert second.path in str(verify_log(store).findings)


@pytest.mark.nightly
def test_large_ones_of_an_id_that_moved_to_a_page(make_log, open_log, source, store, clock):
    """H-T6: they are inline there, as the sweep only looks in heads; the id's next entry, for a
    takeover or by its holder, has a document again.
    """
    log = make_log()
    offsets = {p: p * 1_000_000 for p in range(MANY)}

    def move():
        clock.advance(1)
        for i in range(2 * WRITERS_MAX):
            log.append([{"key": "k", "value": "v"}], producer=(f"p{i}", clock.now_ms()))

    commit_positions(log, source, offsets)
    document = stored(log)
    move()
    inside(store).delete(document.path)  # as the sweep does after a day
    assert open_log().positions("job") == {source.id: offsets}
    with log.transaction("job") as t:
        t.append([{"key": "k", "value": "v"}])
    assert isinstance(stored(log), PositionsAt)
    move()
    open_log().transaction("job")
    assert isinstance(stored(log), PositionsAt)
    assert log.positions("job") == {source.id: offsets}
    check_log(store, every_version=False)


def test_what_is_undecided_is_not_taken_for_read(make_log, source):
    """S51: a read ends before it, and a position after it would lose it once it is committed: a job
    that uses the end of the log gets an error.
    """
    log = make_log()
    source.append([{"key": "k", "value": "a"}], partition=0)
    undecided = source.transaction("other", visible=True)
    undecided.append([{"key": "k", "value": "b"}], partition=0)
    source.append([{"key": "k", "value": "c"}], partition=0)
    t = log.transaction("job")
    told = "offset 3 of partition 0 is beyond the last stable offset 1"
    with pytest.raises(OffsetOutOfRangeError, match=told) as error:
        t.positions(source, source.end_offsets())
    assert (error.value.partition, error.value.offset, error.value.end) == (0, 3, 1)
    t.positions(source, source.stable_offsets())
    t.commit()
    assert log.positions("job")[source.id][0] == 1
    with log.transaction("who reads them") as reader:
        reader.positions(source, source.end_offsets(), isolation="read_uncommitted")
        with pytest.raises(InvalidInputError, match="isolation='all'; allowed: read_committed"):
            reader.positions(source, source.end_offsets(), isolation="all")
    assert log.positions("who reads them")[source.id][0] == 3
    undecided.commit()
    commit_positions(log, source, source.end_offsets())
    assert log.positions("job")[source.id][0] == 4


def test_an_end_that_the_reader_has_not_heard_of(make_log, source):
    """The newest version counts, not the one that the handle knows."""
    log, reader = make_log(), Log.open(source.handle.standing.root)
    with source.transaction("other", visible=True) as t:
        t.append([{"key": "k", "value": "a"}], partition=1)
        with pytest.raises(OffsetOutOfRangeError), log.transaction("job") as job:
            job.positions(reader, source.end_offsets())
    with source.transaction("other", visible=True) as t:
        t.append([{"key": "k", "value": "a"}], partition=0)
        assert reader.stable_offsets()[0] == 0
    commit_positions(log, reader, {0: 2})
    assert log.positions("job") == {source.id: {0: 2}}
