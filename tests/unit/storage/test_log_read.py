"""Reading through `Log`: positions, bounds, times, and what deleteRecords removes."""

import itertools
from dataclasses import replace

import pyarrow as pa
import pytest

from clog.storage import (
    InvalidInputError,
    NotFoundError,
    OffsetOutOfRangeError,
    VersionExpiredError,
)
from clog.storage.format.chunks import Replacement
from clog.storage.format.commits import Edit
from clog.storage.objects.composing import write_rewritten
from clog.storage.objects.writer import rewritten_chunk
from clog.storage.read.scan import pieces_within, plan_range, read_pieces
from clog_testing.crash import expire
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.model import rows_in


def fill(log, count, *, each=1, partition=0):
    """Appends ``count`` records with the values 0, 1, …, ``each`` in one append."""
    for first in range(0, count, each):
        rows = [{"key": f"k{i}", "value": str(i)} for i in range(first, min(first + each, count))]
        log.append(rows, partition=partition)


def offsets_of(log, **where):
    return [offset for _, offset, _ in rows_in(log.read(**where))]


@pytest.mark.parametrize("each", [1, 3, 10])
@pytest.mark.parametrize("start", range(11))
def test_any_range_can_be_read(make_log, each, start):
    """S1, S3: every position from the log start to the end is valid, also within chunks."""
    log = make_log(config={"segment.bytes": 60})
    fill(log, 10, each=each)
    for end in range(start, 12):
        assert offsets_of(log, partition=0, start=start, end=end) == list(
            range(start, min(end, 10))
        )


@pytest.fixture
def cleaned(make_log):
    """A log of one rewritten chunk at [0, 20), with an offset column or, dense, without: then its
    rows end before its last offsets, which were cleaned away. FORMAT.md §3.3 allows both.
    """

    def make(*, dense):
        log = make_log()
        fill(log, 20, each=20)
        log.roll()
        offsets = range(15) if dense else range(0, 20, 2)
        batch = next(log.read()).take(pa.array(offsets)).drop_columns(["partition"])
        (new,) = write_rewritten(
            *(log.handle.store, [batch]), partition=0, stamp=0, new_id=log.handle.ids.new_id
        )
        assert new.ref.dense == dense
        ((_, old),) = log.handle.manifest().chunks()
        chunk = replace(rewritten_chunk(new, version=1), next=20)
        replacement = Replacement(0, 0, 20, (old.identity,), (chunk,))
        log.handle.commit(lambda *_: Edit(replace=(replacement,)), operation="clean")
        return log, list(offsets)

    return make


@pytest.mark.parametrize("dense", [True, False])
def test_any_range_of_a_cleaned_log_can_be_read(cleaned, dense):
    """S1: bounds may be in gaps; a range that ends before it starts contains nothing."""
    log, there = cleaned(dense=dense)
    for start, end in itertools.product((0, 1, 7, 14, 15, 17, 20), repeat=2):
        batches = list(log.read(start=start, end=end))
        assert all(batch.num_rows > 0 for batch in batches)
        found = [o for batch in batches for o in batch.column("offset").to_pylist()]
        assert found == [o for o in there if start <= o < end]


@pytest.mark.parametrize("dense", [True, False])
def test_pieces_of_a_cleaned_log_can_be_cut(cleaned, dense):
    """As the table view divides them, which continues where its map was full."""
    log, there = cleaned(dense=dense)
    pieces = plan_range(log.handle.manifest(), 0, 0, 20)
    for offset in range(21):
        read = read_pieces(log.handle.store, pieces_within(pieces, offset), columns=("offset",))
        found = [o for batch in read for o in batch.column("offset").to_pylist()]
        assert found == [o for o in there if o >= offset]


def test_the_end_is_there_without_records(make_log, open_log):
    """S3: the end offset never decreases, not even when every record below it is gone."""
    log = make_log()
    fill(log, 5)
    assert log.delete_records({0: -1}) == {0: 5}
    for reader in (log, open_log()):
        assert reader.start_offsets() == reader.end_offsets() == {0: 5}
        assert offsets_of(reader, start=5) == []
    assert log.append([{"key": "a", "value": "b"}]).offsets == {0: (5, 6)}


@pytest.mark.parametrize("asked", [3, 21, -1])
def test_positions_out_of_range_are_refused(make_log, asked):
    """S38: the error names the partition, the requested offset and the existing range."""
    log = make_log(partitions=2)
    fill(log, 20, partition=1)
    log.delete_records({1: 4})
    with pytest.raises(OffsetOutOfRangeError, match=rf"offset {asked} of partition 1 ") as caught:
        log.read(partition=1, start=asked)
    error = caught.value
    assert (error.partition, error.offset, error.start, error.end) == (1, asked, 4, 20)


def test_starts_and_ends_by_partition(make_log):
    log = make_log(partitions=2)
    fill(log, 4, partition=0)
    fill(log, 4, partition=1)
    rows = rows_in(log.read(start={0: 3, 1: 1}, end={1: 2}))
    assert [(p, offset) for p, offset, _ in rows] == [(0, 3), (1, 1)]


def test_delete_records_cuts_inside_a_chunk(make_log, open_log):
    """S36: the log start offset becomes exactly the offset, also in the middle of a segment."""
    log = make_log()
    fill(log, 10, each=5)
    assert log.delete_records({0: 7}) == {0: 7}
    assert log.delete_records({0: 3}) == {0: 7}
    assert log.delete_records({0: 0}) == {0: 7}
    assert log.version == 3  # at or below the log start: nothing changes
    assert offsets_of(open_log()) == [7, 8, 9]
    assert log.describe()["partition_details"][0]["first_dirty_offset"] == 7


@pytest.mark.parametrize("wrong", [6, -2])
def test_delete_records_out_of_range_changes_nothing(make_log, wrong):
    """S36: below -1 or beyond the end is an error that names the bound; nothing changes."""
    log = make_log(partitions=2)
    fill(log, 5, partition=0)
    fill(log, 5, partition=1)
    with pytest.raises(OffsetOutOfRangeError, match=r"of partition 1 .* 0 to its end offset 5"):
        log.delete_records({0: 2, 1: wrong})
    assert log.start_offsets() == {0: 0, 1: 0}


def test_delete_records_of_a_partition_that_does_not_exist(make_log):
    with pytest.raises(InvalidInputError, match="partition 3 does not exist"):
        make_log().delete_records({3: 0})


def test_delete_records_resolves_the_end_once(make_log, open_log, store):
    """S36: -1 is the end when the call starts; what is appended meanwhile stays."""
    log = make_log()
    fill(log, 3)
    late = Fault(FaultKind.MEANWHILE, "create", "*/commits/*", run=lambda: fill(log, 2))
    other = open_log(FaultyStore(store, Faults(late)))
    assert other.delete_records({0: -1}) == {0: 3}
    assert offsets_of(log) == [3, 4]


def test_a_planned_read_finishes_on_its_plan(make_log):
    """S36: a read planned before the commit may finish; the next one sees nothing below."""
    log = make_log()
    fill(log, 6)
    planned = log.read()
    log.delete_records({0: 4})
    assert [offset for _, offset, _ in rows_in(planned)] == list(range(6))
    assert offsets_of(log) == [4, 5]


def test_a_read_whose_objects_went_says_so(make_log):
    """A read is never planned again in the middle: a cleaned value would be missing."""
    log = make_log()
    fill(log, 2)
    planned = log.read()
    expire(log)
    with pytest.raises(VersionExpiredError, match=r"version 2 of .* expired .*; read again"):
        list(planned)


def test_offsets_for_times_search_all_segments(make_log, clock):
    """S39: the first in offset order that is not earlier, beyond segments whose largest is."""
    log = make_log()
    for time_ms in (50, 10, 70, 20, 70, 90):
        log.append([{"key": "k", "value": "v", "timestamp": time_ms}])
        log.roll()
    expected = {0: 0, 10: 0, 50: 0, 51: 2, 70: 2, 71: 5, 90: 5, 91: None}
    expected |= {-(1 << 62): 0, 1 << 62: None}
    assert {t: log.offsets_for_times(t)[0] for t in expected} == expected
    log.delete_records({0: 3})
    assert log.offsets_for_times(0) == {0: 3}
    assert log.offsets_for_times(10**23) == {0: None}  # beyond any timestamp of Arrow
    assert log.offsets_for_times({0: 51}) == {0: 4}


def test_offsets_for_times_look_into_chunks(make_log):
    """S39: a record in the middle of a chunk is found, and a log start above it respected."""
    log = make_log(partitions=2)
    rows = [{"key": "k", "value": "v", "timestamp": t} for t in (5, 9, 7, 30, 8)]
    log.append(rows, partition=1)
    assert log.offsets_for_times(8) == {0: None, 1: 1}
    log.delete_records({1: 2})
    assert log.offsets_for_times(8) == {0: None, 1: 3}
    log.delete_records({1: 4})
    assert log.offsets_for_times(9) == {0: None, 1: None}


def test_isolation_is_checked(make_log):
    """S40: without transactions both levels read to the end; another word is refused."""
    log = make_log()
    fill(log, 2)
    assert offsets_of(log, isolation="read_committed") == [0, 1]
    with pytest.raises(InvalidInputError, match="allowed: read_committed, read_uncommitted"):
        log.read(isolation="dirty")


@pytest.mark.parametrize("partition", [4, -1, "0", True])
def test_a_partition_that_does_not_exist(make_log, partition):
    log = make_log(partitions=4)
    for call in (log.read, log.table, log.roll, log.segments):
        with pytest.raises(InvalidInputError, match=r"does not exist .* 0 to 3"):
            call(partition=partition)


def test_the_table_goes_on_where_the_stream_starts(make_log):
    """The view of a version and the stream from its offsets on overlap nowhere and leave no gap."""
    log = make_log(partitions=2)
    log.append([{"key": k, "value": "1"} for k in "abcd"], partition=[0, 1, 0, 1])
    log.append([{"key": "a", "value": None}, {"key": "b", "value": "2"}], partition=[0, 1])
    table = log.table()
    log.append([{"key": "a", "value": "3"}], partition=0)
    assert {r.key: r.value for _, _, r in rows_in(table.to_batches())} == {
        b"b": b"2",
        b"c": b"1",
        b"d": b"1",
    }
    rest = rows_in(log.read(start=table.offsets))
    assert [(offset, r.value) for _, offset, r in rest] == [(3, b"3")]
    assert log.table(at=table.version).to_arrow().num_rows == 3
    assert log.table(partition=1).offsets == {1: 3}


@pytest.mark.parametrize(
    ("version", "what"), [(-1, "readable versions are 0 to 1; ask"), (2, "ask for 0 to 1")]
)
def test_a_version_that_is_not_there(make_log, version, what):
    log = make_log()
    fill(log, 1)
    with pytest.raises(NotFoundError, match=what) as raised:
        log.table(at=version)
    assert isinstance(raised.value, VersionExpiredError) == (version < 0)
