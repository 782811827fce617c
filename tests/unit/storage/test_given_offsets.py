"""Appends with given offsets (FORMAT.md §16, COMMIT.md §13; S75)."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from clog.storage import (
    CommitStateUnknownError,
    CorruptionError,
    InvalidInputError,
    Log,
    StateTable,
    TransactionFencedError,
)
from clog.storage.env import SeededIds
from clog.storage.format.chunks import append_from_json, append_to_json
from clog.storage.format.commits import Edit, advance, edit_of, read_commit
from clog.storage.store.contract import Within
from clog_testing.counting import CountingStore
from clog_testing.crash import discard, memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

FEATURE = "given-offsets"
TOPIC = "kafka:cluster/topic"


@pytest.fixture
def mirror(make_log):
    """A log of two partitions that takes offsets."""
    return make_log(partitions=2, features=[FEATURE])


def rows(*values, key="k", **more):
    return [{"key": key, "value": value, **more} for value in values]


def offsets_of(log, partition=0, **more):
    batches = log.read(partition, **more)
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def commit(log, offsets, *, cover=None, start=None, partition=0, name="mirror"):
    with log.transaction(name) as t:
        if cover is not None or start is not None:
            t.cover(cover or {}, start=start)
        if len(offsets):
            t.append(rows(*map(str, offsets)), partition, offsets=offsets)
        t.positions(TOPIC, {partition: max([0, *map(int, offsets)])})
    return t.result


def test_records_are_at_their_offsets(mirror, store, open_log):
    """S75: each at its own, gaps are legal positions (S1), the end covers the offsets after the
    last record.
    """
    result = commit(mirror, [7, 8, 12], cover={0: 16})
    assert result.offsets == {0: (7, 13)}
    assert offsets_of(mirror) == [7, 8, 12]
    assert (mirror.end_offsets(), mirror.start_offsets()) == ({0: 16, 1: 0}, {0: 0, 1: 0})
    assert [offsets_of(mirror, start=at) for at in (0, 8, 9, 13, 16)] == [
        *([7, 8, 12], [8, 12], [12], [], [])
    ]
    commit(mirror, np.array([16, 17], np.int32))
    with mirror.transaction("mirror") as t:
        t.append(rows("20"), 0, offsets=pa.array([20]))
    assert offsets_of(open_log()) == [7, 8, 12, 16, 17, 20]
    assert mirror.table().get("k") == b"20"
    check_log(store)


def test_objects_without_gaps_have_no_column_of_offsets(mirror):
    """FORMAT.md §16: they cost the same as any append, wherever they begin."""
    commit(mirror, range(100, 110))
    commit(mirror, [200, 201])
    commit(mirror, [300, 302])
    chunks = [chunk for p, chunk in mirror.handle.manifest().chunks()]
    assert [c.object.dense for c in chunks] == [True, True, False]
    assert [(c.base, c.next) for c in chunks] == [(100, 110), (200, 202), (300, 303)]
    assert offsets_of(mirror) == [*range(100, 110), 200, 201, 300, 302]


def test_many_partitions_are_one_commit(mirror, store):
    """Partitions may alternate row by row; several appends of a transaction follow one another."""
    parts, offsets = [0, 1, 0, 1, 0], [3, 90, 4, 95, 9]
    with mirror.transaction("mirror") as t:
        t.append(rows(*"abcde"), parts, offsets=offsets)
        t.append(rows(*"fg"), [1, 0], offsets=[100, 11])
    assert t.result.offsets == {0: (3, 12), 1: (90, 101)}
    assert (offsets_of(mirror, 0), offsets_of(mirror, 1)) == ([3, 4, 9, 11], [90, 95, 100])
    values = [value for b in mirror.read(1) for value in b.column("value").to_pylist()]
    assert values == [b"b", b"d", b"f"]
    check_log(store)


def test_an_emptied_source_has_its_start_and_end(mirror, store, open_log):
    """H-B10: everything was purged; log start and end are in one commit, without a record."""
    commit(mirror, [], cover={0: 5000}, start={0: 5000})
    assert (mirror.start_offsets()[0], mirror.end_offsets()[0]) == (5000, 5000)
    edit = edit_of(mirror.handle.store, read_commit(mirror.handle.store, mirror.version).record)
    assert (edit.reached, edit.start) == ({0: 5000}, {0: 5000})
    assert mirror.roll() == []
    commit(mirror, [5003])
    assert offsets_of(open_log()) == [5003]
    assert mirror.roll() == [0]
    check_log(store)


def test_a_start_between_records(mirror):
    """The source's start is in the same commit as the records above it; those below are
    left out.
    """
    commit(mirror, [1, 2, 5])
    commit(mirror, [8, 9, 10], start={0: 9})
    assert (mirror.start_offsets()[0], offsets_of(mirror)) == (9, [9, 10])
    commit(mirror, [12], start={0: 3})  # Lower than before.
    assert mirror.start_offsets()[0] == 9
    with mirror.transaction("mirror") as t:
        t.append(rows("a"), 0, offsets=[20])
        with pytest.raises(InvalidInputError, match="has records from offset 20 on; call cover"):
            t.cover({0: 30}, start={0: 21})
        t.cover({0: 30}, start={0: 20})
    assert (mirror.start_offsets()[0], mirror.end_offsets()[0]) == (20, 30)
    with pytest.raises(InvalidInputError, match="cannot start at 41: only offsets below 40 are"):
        commit(mirror, [], cover={0: 40}, start={0: 41})
    with mirror.transaction("mirror") as t:
        t.cover({}, start={0: 99})
        t.append(rows("a"), 0, offsets=[98])
        t.cover({0: 99})
    assert (mirror.start_offsets()[0], offsets_of(mirror)) == (99, [])


def test_what_is_behind_the_end_is_refused(mirror, open_log):
    """H-B20: another process was faster; nothing gets other offsets."""
    other = open_log()
    commit(mirror, [3, 4], cover={0: 9})
    told = r"offset 8 of partition 0 of .* already exists: the end offset is 9"
    with pytest.raises(InvalidInputError, match=told):
        commit(other, [8, 9], name="another")
    with pytest.raises(InvalidInputError, match=told):
        other.append(rows("a"), 0, ("another", 1), offsets=[8])
    with pytest.raises(InvalidInputError, match=told):
        commit(other, [], cover={0: 8}, name="another")
    assert other.end_offsets()[0] == 9
    commit(other, [9], cover={1: 0}, name="another")
    assert offsets_of(mirror) == [3, 4, 9]


def test_a_producer_that_lost_a_reply_is_no_other_process(make_log, open_log):
    """H-B20: its sequence is checked first, so a retry gets the result of the first attempt."""
    log = make_log(features=[FEATURE])
    first = log.append(rows("a", "b"), 0, ("m", 1), offsets=[3, 7])
    again = open_log().append(rows("a", "b"), 0, ("m", 1), offsets=[3, 7])
    assert (again.version, again.offsets, again.duplicate) == (first.version, {0: (3, 8)}, True)
    with pytest.raises(InvalidInputError, match="repeats sequence 1 with records other"):
        log.append(rows("a", "b"), 0, ("m", 1), offsets=[3, 8])
    assert log.sequence("m") == 1


@pytest.mark.parametrize("happened", [True, False])
def test_a_transaction_in_doubt_is_there_once(make_log, store, happened):
    """T4, H-B20: committed again after a lost reply, it is found, and does not count as being
    behind itself.
    """
    faulty = FaultyStore(store)
    log = make_log(on=faulty, features=[FEATURE])
    t = log.transaction("mirror")
    t.append(rows("a"), 0, offsets=[5])
    t.cover({0: 9})
    kind = FaultKind.FAIL_AFTER if happened else FaultKind.FAIL_BEFORE
    commits = "*/commits/*"
    faulty.plan = Faults(
        Fault(kind, "create", commits, times=9), Fault(FaultKind.FAIL_BEFORE, "get", times=99)
    )
    with pytest.raises(CommitStateUnknownError):
        t.commit()
    faulty.plan = Faults()
    assert t.commit().offsets == {0: (5, 6)}
    assert (offsets_of(log), log.end_offsets()) == ([5], {0: 9})


def test_who_was_fenced_appends_nothing(mirror, open_log):
    """S48: of two mirrors, the older one stops, whatever its offsets."""
    old = mirror.transaction("mirror")
    old.append(rows("a"), 0, offsets=[5])
    commit(open_log(), [3])
    with pytest.raises(TransactionFencedError):
        old.commit()
    assert offsets_of(mirror) == [3]


PLAIN = {
    "append": lambda log: log.append(rows("a"), 0),
    "producer": lambda log: log.append(rows("a"), 0, ("p", 1)),
    "tombstone": lambda log: log.append(rows(None), 0),
    "transaction": lambda log: log.transaction("t").append(rows("a"), 0),
    "visible": lambda log: log.transaction("t", visible=True).append(rows("a"), 0),
}


@pytest.mark.parametrize("how", PLAIN)
def test_nothing_else_is_appended_until_the_mirror_ends(mirror, how):
    """H-B8: it would use an offset of the source. Then the log is like any other."""
    before = mirror.version
    with pytest.raises(InvalidInputError, match=r"takes its offsets from its source.*--end"):
        PLAIN[how](mirror)
    assert mirror.end_offsets() == {0: 0, 1: 0}
    commit(mirror, [4])
    assert mirror.describe()["takes_offsets"]
    ended = mirror.give_offsets()
    assert not mirror.describe()["takes_offsets"]
    assert ended == mirror.version > before
    assert mirror.give_offsets() == ended
    PLAIN[how](mirror)
    with pytest.raises(
        InvalidInputError, match=f"has assigned offsets itself since version {ended}"
    ):
        commit(mirror, [9])
    with pytest.raises(
        InvalidInputError, match=f"has assigned offsets itself since version {ended}"
    ):
        commit(mirror, [], cover={0: 9})
    check_log(mirror.handle.standing.root)


def test_who_does_not_know_of_the_end_is_told(mirror, open_log):
    """Both ways: by the newest version, whatever the handle knows."""
    other, third = open_log(), open_log()
    t = other.transaction("mirror")
    t.append(rows("a"), 0, offsets=[5])
    mirror.give_offsets()
    with pytest.raises(InvalidInputError, match="has assigned offsets itself since"):
        t.commit()
    assert third.append(rows("a"), 0).offsets == {0: (0, 1)}


def test_an_ended_mirror_goes_on_from_its_end(mirror, store):
    """H-B9: the offsets that the source had, and its gaps, are never assigned again."""
    commit(mirror, [3, 9], cover={0: 12})
    mirror.give_offsets()
    assert mirror.append(rows("a", "b"), 0).offsets == {0: (12, 14)}
    with mirror.transaction("v", visible=True) as t:
        t.append(rows("c"), 0)
    assert offsets_of(mirror) == [3, 9, 12, 13, 14]
    check_log(store)


def test_it_is_never_a_participant(mirror, make_log, clock):
    """H-B7: a marker would use an offset of its source; as the home it may write to others."""
    other_store = memory_store()
    other = Log.create(other_store, 1, clock=clock, ids=SeededIds(99))
    t = other.transaction("t")
    with pytest.raises(InvalidInputError, match="takes its offsets from its source"):
        t.append(rows("a"), 0, log=mirror)
    with pytest.raises(InvalidInputError, match="cannot take given offsets here"):
        t.append(rows("a"), 0, offsets=[1], log=mirror)
    with pytest.raises(InvalidInputError, match="cannot take given offsets here"):
        mirror.transaction("v", visible=True).cover({0: 1})
    with mirror.transaction("mirror") as t:
        t.append(rows("a"), 0, offsets=[5])
        t.cover({0: 7})
        t.append(rows("dead letter"), log=other)
    assert (offsets_of(mirror), mirror.end_offsets()[0]) == ([5], 7)
    assert other.table().get("k") == b"dead letter"
    commit(mirror, [7])
    assert mirror.stable_offsets() == mirror.end_offsets()
    discard(other_store)


def test_other_logs_refuse_offsets(make_log):
    """The message says how a log gets them; no log gets them later."""
    log = make_log()
    told = r'assigns offsets itself.*features=\["given-offsets"\]'
    with pytest.raises(InvalidInputError, match=told):
        log.append(rows("a"), 0, ("p", 1), offsets=[0])
    t = log.transaction("t")
    with pytest.raises(InvalidInputError, match=told):
        t.append(rows("a"), 0, offsets=[0])
    with pytest.raises(InvalidInputError, match=told):
        t.cover({0: 5})
    with pytest.raises(InvalidInputError, match="created without 'given-offsets'"):
        log.upgrade([FEATURE])
    with pytest.raises(InvalidInputError, match="is not a mirror"):
        log.give_offsets()
    with pytest.raises(InvalidInputError, match="need producer="):
        log.append(rows("a"), 0, offsets=[0])


@pytest.mark.parametrize(
    ("offsets", "told"),
    [
        ([1], "are not the offsets of 2 records"),
        ([1, 2, 3], "are not the offsets of 2 records"),
        ([1.0, 2.0], "are not the offsets of 2 records"),
        ([True, False], "are not the offsets of 2 records"),
        ("ab", "are not the offsets of 2 records"),
        ([-1, 2], "offsets from -1 to 2 are out of range"),
        ([1, 1 << 62], "are out of range"),
        ([1, (1 << 63) - 1], "are out of range"),
        ([2, 2], "record 1 of partition 0 has offset 2, after 2"),
        ([3, 2], "record 1 of partition 0 has offset 2, after 3"),
    ],
)
def test_what_are_no_offsets(mirror, offsets, told):
    """Before anything is written."""
    with mirror.transaction("mirror") as t:
        with pytest.raises(InvalidInputError, match=told):
            t.append(rows("a", "b"), 0, offsets=offsets)
        t.append(rows("a"), 0, offsets=[5])
        with pytest.raises(InvalidInputError, match="offset 5 of partition 0 comes after 5"):
            t.append(rows("a"), 0, offsets=[5])
    assert offsets_of(mirror) == [5]


@pytest.mark.parametrize(
    "covered", [{2: 1}, {0: -1}, {0: 1.5}, {"0": 1}, {0: True}, {0: (1 << 62) + 1}, [1]]
)
def test_what_cannot_be_covered(mirror, covered):
    t = mirror.transaction("mirror")
    with pytest.raises(InvalidInputError, match="is not a position in"):
        t.cover(covered)
    with pytest.raises(InvalidInputError, match="is not a position in"):
        t.cover({}, start=covered)


def test_the_highest_end_leaves_room(mirror, store):
    """FORMAT.md §16: whatever was covered, the log continues once it assigns offsets itself."""
    with mirror.transaction("mirror") as t:
        t.append(rows("a"), 0, offsets=[(1 << 62) - 1])
        t.cover({1: 1 << 62}, start={1: 1 << 62})
    mirror.give_offsets()
    for p in (0, 1):
        assert mirror.append(rows("b"), p).offsets == {p: (1 << 62, (1 << 62) + 1)}
    assert offsets_of(mirror, 0) == [(1 << 62) - 1, 1 << 62]
    check_log(store)


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint64])
def test_numbers_of_numpy_are_numbers(mirror, make_log, store, kind):
    source = make_log(on=Within(store, "source"))
    source.append(rows("a", "b"))
    with mirror.transaction("mirror") as t:
        t.cover({kind(0): kind(9)}, start={kind(1): kind(0)})
        t.positions(source, {kind(0): kind(2)}, version=kind(1))
        t.positions(TOPIC, {kind(0): (kind(9), "7"), kind(1): kind(3)})
    assert mirror.end_offsets() == {0: 9, 1: 0}
    assert mirror.positions("mirror") == {source.id: {0: 2}, TOPIC: {0: 9, 1: 3}}


def test_times_are_those_of_the_source(make_log, clock):
    """H-B11, H-B12: whatever the log's limits and type of timestamps, which apply to records
    created here.
    """
    config = {"message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": 1}
    log = make_log(features=[FEATURE], partitions=1, config=config)
    commit_at = clock.now_ms()
    with log.transaction("mirror") as t:
        t.append(rows("a", timestamp=5), 0, offsets=[3])
        t.append(rows("b", timestamp=commit_at + 10**12), 0, offsets=[4])
    columns = [b.column("timestamp").cast(pa.int64()) for b in log.read(0)]
    assert [time for column in columns for time in column.to_pylist()] == [
        5_000,
        (commit_at + 10**12) * 1000,
    ]
    log.give_offsets()
    log.append(rows("c", timestamp=5), 0)
    assert offsets_of(log) == [3, 4, 5]


def test_a_copy_of_the_table_follows(mirror, tmp_path):
    """S41: positions are ends, gaps included; a state table is up to date if nothing arrives."""
    state = StateTable(mirror.handle.standing.root, cache_dir=tmp_path)
    commit(mirror, [3, 8], cover={0: 12})
    state.refresh()
    assert state.get("k") == b"8"
    commit(mirror, [], cover={0: 20})
    state.refresh()
    commit(mirror, [25])
    state.refresh()
    assert state.get("k") == b"25"
    assert mirror.latest({0: 12}).to_arrow().num_rows == 1
    state.close()


def test_a_reader_at_the_end_has_no_lag(mirror):
    """S75: even if the source's last offsets have no record."""
    reader = mirror.reader("billing")
    commit(mirror, [3, 8], cover={0: 12, 1: 4})
    reader.commit({0: 9})  # One past the last record.
    reader.flush()
    (info,) = mirror.readers()
    assert (info.lag_records, info.lag_ms, info.lag_bytes) == (0, 0, 0)


def test_it_costs_what_an_append_does(make_log, store):
    """COMMIT.md §7: an object, a commit, its block."""
    counting = CountingStore(store)
    log = make_log(on=counting, features=[FEATURE], partitions=1)
    commit(log, [1])
    with counting.count() as counts:
        commit(log, [3, 9], cover={0: 12})
    assert counts == {"put": 1, "create": 1, "get": 1}


def test_a_group_of_appends_is_kept_apart(mirror):
    """COMMIT.md §13: each is a separate commit; `reached` would precede the others' rows."""
    versions = [
        mirror.append(rows("a"), 0, (name, 1), offsets=[at]).version
        for name, at in (("p", 5), ("q", 9))
    ]
    assert versions[1] == versions[0] + 1


def test_edits_that_contradict_the_mode_are_damage(mirror):
    """FORMAT.md §16: ends never go back, and a log that assigns offsets accepts none."""
    commit(mirror, [5])
    head = mirror.handle.tip.head
    version = mirror.version + 1
    for edit in (Edit(reached={0: 6}), Edit(reached={0: 5}), Edit(start={0: 7})):
        with pytest.raises(CorruptionError):
            advance(head, edit, version=version, time_ms=0)
    record = read_commit(mirror.handle.store, version - 1).record
    add = edit_of(mirror.handle.store, record).add
    back = append_from_json(append_to_json(add), version=version - 1)
    assert (back, back.is_given) == (add, True)
    ended = replace(head, gives_offsets=3)
    chunk = add.chunks[0][1]
    moved = replace(add, chunks=((0, replace(chunk, base=6, next=9)),))
    assert advance(head, Edit(add=moved), version=version, time_ms=0).partitions.end[0] == 9
    plain = replace(head, log=replace(head.log, features=replace(head.log.features, read=())))
    for bad in (ended, plain):
        for edit in (Edit(reached={0: 9}), Edit(add=moved), Edit(gives_offsets=True)):
            with pytest.raises(CorruptionError):
                advance(bad, edit, version=version, time_ms=0)


def test_it_compares_offsets_for_ever(mirror):
    """Even after its mirror has ended, no other record may win: its timestamps are the source's."""
    commit(mirror, [7])
    mirror.give_offsets()
    with pytest.raises(InvalidInputError, match="compares records by offset"):
        mirror.alter({"compaction.strategy": "timestamp"})
