"""A cleaner that was made to drop a live row is refused at its commit."""

from dataclasses import replace

import numpy as np
import pytest

from clog.cleaner import Cleaner, threads
from clog.cleaner.passes import judge, rewriter
from clog.cleaner.passes import offset_map as build_map
from clog.cleaner.passes.judge import Recheck
from clog.cleaner.passes.offset_map import KeyHasher, MappedRange, OffsetMap
from clog.storage.errors import CorruptionError
from clog_testing.invariants import check_log


def append(log, text):
    """One chunk, sealed; ``b`` is a tombstone."""
    words = (word.split("=") for word in text.split())
    log.append([{"key": w[0], "value": w[1] if w[1:] else None} for w in words], partition=0)
    log.roll()


def drop_a_live_row(monkeypatch):
    """The rules of survival lose the first live row."""
    original = judge.decide_retention

    def decide_retention(**arguments):
        verdict = original(**arguments)
        alive = np.flatnonzero(verdict.keep)
        keep = verdict.keep.copy()
        keep[alive[:1]] = False
        gone = verdict.superseded + len(alive[:1])
        return type(verdict)(
            keep, verdict.new_horizon & keep, verdict.expired, gone, verdict.invalid
        )

    monkeypatch.setattr(judge, "decide_retention", decide_retention)


def misjudge_the_mapped_range(monkeypatch):
    """In the map's own range the neighbours of the rows that should be dropped are dropped."""
    original = MappedRange.superseded
    monkeypatch.setattr(
        MappedRange, "superseded", lambda self, chunk: np.roll(original(self, chunk), 1)
    )


def leave_out_the_wrong_rows(monkeypatch):
    """The masks are right, and one row too late."""
    original = rewriter.Rewriter._retained_of

    def retained_of(self, judged, *more):
        if judged.keep is not None:
            judged = replace(judged, keep=np.roll(judged.keep, 1))
        return original(self, judged, *more)

    monkeypatch.setattr(rewriter.Rewriter, "_retained_of", retained_of)


def lose_a_row_on_the_way_into_the_map(monkeypatch):
    """The map takes all rows of the range but the first two."""
    original = build_map._Waiting.add
    monkeypatch.setattr(
        build_map._Waiting,
        "add",
        lambda self, hashes, offsets: original(self, hashes[2:], offsets[2:]),
    )


def test_a_map_that_lacks_rows_is_refused(make_log, there, store, monkeypatch):
    """Rows that the map never took would be dropped by their offsets: as many must be judged as it
    took.
    """
    log = make_log()
    append(log, "a=1 b=1 c=1")
    with monkeypatch.context() as broken:
        lose_a_row_on_the_way_into_the_map(broken)
        assert Cleaner(log).run_once(force=True) == []
    assert there(log) == "0:a=1 1:b=1 2:c=1"
    check_log(store)
    Cleaner(log).run_once(force=True)
    assert there(log) == "0:a=1 1:b=1 2:c=1"


@pytest.mark.parametrize("fault", [misjudge_the_mapped_range, drop_a_live_row])
def test_marks_of_live_rows_are_refused(make_log, there, store, monkeypatch, fault):
    """If little died nothing is read again: the rows that are to be marked are checked too, in the
    range of the map and below it.
    """
    log = make_log(object_bytes="800", segment_bytes="10000")
    words = " ".join([*(f"k{i:02}=1" for i in range(30)), "gone"])
    if fault is drop_a_live_row:
        append(log, words)
        Cleaner(log).run_once(force=True)
        append(log, "k07=2")
    else:
        append(log, f"{words} k07=2")
    with monkeypatch.context() as broken:
        fault(broken)
        assert Cleaner(log).run_once(force=True) == []
    (detail,) = log.describe()["partition_details"]
    assert "it is not known to be dead" in str(detail["uncleanable"])
    assert len(there(log).split()) == 32
    (result,) = Cleaner(log).run_once(force=True)
    assert result.stats.records_marked == 1
    assert result.stats.tombstones_stamped == (fault is misjudge_the_mapped_range)
    check_log(store)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "fault", [drop_a_live_row, misjudge_the_mapped_range, leave_out_the_wrong_rows]
)
def test_a_cleaner_that_drops_a_live_row_is_refused(
    make_log, there, store, monkeypatch, fault, count
):
    """Conservation, and the recheck (S21, S28): its group is not committed, the partition says why;
    without the fault the next pass cleans. The same with several threads.
    """
    monkeypatch.setattr(threads, "WORTH_BYTES", 0)
    log = make_log()
    append(log, "a=1 b=1 c=1 d=1 e=1")
    Cleaner(log).run_once(force=True)
    append(log, "a=2 a=3 f=1 f=2 b g=1")
    dirty = "5:a=2 6:a=3 7:f=1 8:f=2 9:b 10:g=1"
    with monkeypatch.context() as broken:
        fault(broken)
        assert Cleaner(log, threads=count).run_once(force=True) == []
    # The clean part's group may have been committed: it was judged rightly.
    assert there(log) in (f"0:a=1 1:b=1 2:c=1 3:d=1 4:e=1 {dirty}", f"2:c=1 3:d=1 4:e=1 {dirty}")
    (detail,) = log.describe()["partition_details"]
    assert "it is not known to be dead" in str(detail["uncleanable"])
    check_log(store)
    Cleaner(log).run_once(force=True)
    assert there(log) == "2:c=1 3:d=1 4:e=1 6:a=3 8:f=2 9:b 10:g=1"


def test_the_range_of_a_map_must_add_up():
    """As many rows stay as the map has entries."""
    offset_map = OffsetMap(memory_bytes=1 << 12)
    hashes = np.array([[1, 1], [2, 2], [1, 1]], np.uint64)
    offset_map.put(hashes, np.array([5, 6, 9]))
    mapped = MappedRange(offset_map, 5, 10, None, records=3)
    recheck = Recheck(offset_map, mapped, KeyHasher(1), log_start=0, now_ms=0)
    recheck.count(np.array([4, 6, 9, 10]), np.ones(4, np.bool_), np.ones(4, np.bool_))
    recheck.count_chunk(1, 0)
    recheck.check_range(0)
    recheck.count_chunk(0, 1)
    with pytest.raises(CorruptionError, match=r"2 keys in \[5, 10\) .* but 3 of their records"):
        recheck.check_range(0)
    recheck.count_chunk(1, 0)
    with pytest.raises(CorruptionError, match=r"4 records .* but the map was built from 3"):
        recheck.check_range(0)


def test_a_map_that_keeps_older_offsets_is_refused(make_log, there, store, monkeypatch):
    """What is dropped by its offset is dropped by the map alone: the sample requests its key."""
    log = make_log(segment_bytes=1 << 20)
    append(log, " ".join(f"k{i}={n}" for n in range(2) for i in range(50)))
    original = OffsetMap.put

    def put(self, hashes, offsets):
        """The last key of all keeps the offset of its older row."""
        taken = original(self, hashes, offsets)
        following = self._table[2::3]
        following[following == int(offsets[-1]) + 1] = int(offsets[49]) + 1
        return taken

    with monkeypatch.context() as broken:
        broken.setattr(OffsetMap, "put", put)
        assert Cleaner(log).run_once(force=True) == []
    assert len(there(log).split()) == 100
    check_log(store)
    Cleaner(log).run_once(force=True)
    assert len(there(log).split()) == 50
