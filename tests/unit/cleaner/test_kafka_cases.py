"""The cases of Kafka's own tests of its log cleaner, replayed with their keys and offsets where no
other test here does so; `tests/kafka/cleaner_cases.md` lists all, and is held to here.
"""

import re
from pathlib import Path

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.passes.offset_map import SLOT_BYTES
from clog.storage import Log, NotFoundError, OffsetOutOfRangeError
from clog.storage.errors import InvalidInputError
from clog_testing.model import rows_in

TESTS = Path(__file__).parents[2]
TABLE = TESTS / "kafka/cleaner_cases.md"
CASE = re.compile(r"\| `(?P<case>\w+\.\w+)` \| .+ \| (?P<verdict>[^|]+) \| (?P<tests>.+) \|")
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
BEYOND_INT32 = 1 << 31


def rows(*keys, value="v"):
    return [{"key": str(key), "value": value} for key in keys]


@pytest.fixture
def large(make_log):
    """A log in which only `roll` begins a segment."""
    return lambda **config: make_log(**{"segment_bytes": 1 << 20, **config})


@pytest.fixture
def play(clock):
    """Transactions by words: ``1:2,3`` appends keys 2 and 3 under the id 1, ``1+`` commits,
    ``1-`` aborts, ``5`` appends the key 5 outside any, ``/`` seals the segment.
    """
    open_now = {}

    def play(log, words):
        for word in words.split():
            if word == "/":
                log.roll()
            elif word.endswith(("+", "-")):
                work = open_now.pop(word[:-1])
                work.commit() if word.endswith("+") else work.abort()
            elif ":" in word:
                id_, _, keys = word.partition(":")
                if id_ not in open_now:
                    open_now[id_] = log.transaction(id_, DAY_MS, visible=True)
                open_now[id_].append(rows(*keys.split(",")))
            else:
                log.append(rows(word))

    return play


@pytest.fixture
def keys_of():
    """What a partition holds, as ``0:1 3:2``: offsets with keys."""

    def keys_of(log, isolation="read_committed"):
        found = rows_in(log.read(isolation=isolation))
        return " ".join(f"{offset}:{r.key.decode()}" for _, offset, r in found)

    return keys_of


def markers(log):
    return [marker[0] for marker in log.markers(0)]


def test_every_case_has_its_verdict_and_its_tests():
    """The table: each case is equal, differs by a rule of ours that it names, or does not apply;
    and each test that it names exists.
    """
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| `")]
    cases = [CASE.fullmatch(line) for line in lines]
    assert None not in cases, [line for line, c in zip(lines, cases, strict=True) if c is None]
    assert len({case["case"] for case in cases}) == len(cases) > 100
    named = set()
    for case in cases:
        verdict, tests = case["verdict"], TEST.findall(case["tests"])
        assert re.fullmatch(r"equal|differs by S\d+(, S\d+)*|not applicable", verdict), verdict
        assert bool(tests) != (verdict == "not applicable"), case["case"]
        named |= set(tests)
    for path, name in named:
        assert re.search(rf"^def {name}\(", (TESTS / path).read_text(), re.MULTILINE), (path, name)
    ours = Path(__file__).relative_to(TESTS).as_posix()
    here = set(re.findall(r"^def (test_\w+)", Path(__file__).read_text(), re.MULTILINE))
    assert {name for path, name in named if path == ours} == here - {
        "test_every_case_has_its_verdict_and_its_tests"
    }


def test_keys_of_later_segments_take_earlier_records_away(make_log, put, clean, there):
    """S21: of ten keys in three segments those that come again are gone from them, the others stay
    where they were.
    """
    log = make_log(segment_bytes=4 * 14)
    put(log, " ".join(f"{key}={key}" for key in range(10)))
    log.roll()
    put(log, "1=x 3=x 5=x 7=x 9=x")
    log.roll()
    result = clean(log)
    assert there(log) == "0:0=0 2:2=2 4:4=4 6:6=6 8:8=8 10:1=x 11:3=x 12:5=x 13:7=x 14:9=x"
    assert result.stats.map_records == 15


def test_producers_are_known_after_cleaning(large, open_log, keys_of, clean, clock):
    """S78: a producer of whose records none is left repeats its last append, and is answered with
    the offsets that it had; also in a process that opened the log afterwards.
    """
    log = large()
    log.append(rows(1, 2, 3), producer=("1", 0))
    log.append(rows(3, 1, 4), producer=("2", 0))
    log.append(rows(1, 4), producer=("3", 0))
    log.roll()
    clean(log)
    assert keys_of(log) == "1:2 3:3 6:1 7:4"

    def again(keys, producer):
        result = open_log().append(rows(*keys), producer=(producer, 0))
        assert result.duplicate
        return result.offsets[0]

    assert again((1, 2, 3), "1") == (0, 3)
    assert again((1, 4), "3") == (6, 8)
    assert again((3, 1, 4), "2") == (3, 6)
    log.append(rows(2), producer=("4", 0))
    log.roll()
    clean(log)
    assert keys_of(log) == "3:3 6:1 7:4 8:2"
    assert again((1, 2, 3), "1") == (0, 3)
    assert again((2,), "4") == (8, 9)


def test_a_producers_number_outlives_its_records(large, open_log, keys_of, clean):
    """S78: a number stays known though no record of its append, or of its transaction, is left."""
    log = large()
    log.append(rows(0))
    for producer in ("1", "2", "3"):
        log.append(rows(0), producer=(producer, 0))
    log.append(rows(1), producer=("2", 1))
    log.roll()
    clean(log)
    assert keys_of(log) == "3:0 4:1"
    log = open_log()
    assert [log.sequence(producer) for producer in ("1", "2", "3")] == [0, 1, 0]


@pytest.mark.parametrize(
    ("words", "left", "ends"),
    [
        ("1:1,2 2:2,3 1:3,4 1- 2+ 1:2 1+ /", "3:3 8:2", [6, 7, 9]),
        ("1:1 1:2,3 1+ 1:2 1+ / 1:1,3 1+ /", "4:2 6:1 7:3", [3, 5, 8]),
        ("1:1 1- 1:2 1:2 1+ /", "3:2", [1, 4]),
        ("1:2,3 / 2:2,3 2+ / 2 3 1+ /", "5:2 6:3", [4, 7]),
        ("1:1 / 1+ 9 /", "0:1 2:9", [1]),
        ("1:1 / 1- 9 /", "2:9", [1]),
        ("1:1 1:2,3 1- 1:3 1+ /", "4:3", [3, 5]),
        ("1:1 1+ 1:2 1+ 1 2 /", "4:1 5:2", [1, 3]),
        ("1:2,3 1- / 1:1 1+ /", "3:1", [2, 4]),
        ("1:1 1:2,3 1- / 1:1,5 1+ /", "4:1 5:5", [3, 6]),
        (
            "1:1,2 2:2,3 1:3,4 1+ 2+ 1:2,3 1- 2:4,5 1:5,6 1+ 2- 2:6,7 2+ /",
            "0:1 2:2 4:3 5:4 13:5 17:6 18:7",
            [6, 7, 10, 15, 16, 19],
        ),
    ],
)
def test_markers_stay_for_their_time_and_go(large, play, keys_of, clean, clock, words, left, ends):
    """S22, S53: of committed transactions the latest record of each key stays, of aborted ones
    none, though the map holds four keys. Markers stay for `delete.retention.ms` from the pass that
    covered them, then go, whether records of their transaction are left or not: Kafka's readers
    need the marker of such a record, ours do not.
    """
    log = large(delete_retention_ms=50_000)
    play(log, words)
    memory = 5 * SLOT_BYTES
    clean(log, dedupe_buffer_bytes=memory)
    clean(log, dedupe_buffer_bytes=memory)
    assert keys_of(log) == left
    assert markers(log) == ends
    clock.advance(49_999)
    clean(log, dedupe_buffer_bytes=memory)
    assert markers(log) == ends
    clock.advance(1)
    clean(log, dedupe_buffer_bytes=memory)
    assert (keys_of(log), markers(log)) == (left, [])
    assert log.end_offsets() == log.stable_offsets() == {0: ends[-1] + 1 + _after(words)}


def _after(words):
    """Records after the last marker."""
    return sum(word.isdigit() for word in re.split("[+-]", words)[-1].split())


def test_transactions_over_several_segments(large, play, keys_of, clean):
    """S11, S22: what two of three transactions left undone goes, segment by segment; what is not
    decided stays.
    """
    log = large()
    play(log, "1:1,2 3:2,3 2:3,4 / 2:5,6 3:6,7 1:7,8 2- 3:8,9 3+ 1:9,10 1-")
    clean(log)
    assert keys_of(log) == "2:2 3:3 8:6 9:7 13:8 14:9"
    play(log, "/ 2:11 1:12")
    clean(log)
    assert keys_of(log) == "2:2 3:3 8:6 9:7 13:8 14:9"
    assert keys_of(log, "read_uncommitted").endswith("14:9 19:11 20:12")


def test_undecided_records_are_cleaned_once_they_are_decided(large, play, clock):
    """S11: older than `min.compaction.lag.ms` they still are not; the segment of the marker waits
    for its own lag. Of a marker alone no segment is sealed (S52), so a record follows it here.
    """
    log = large(min_compaction_lag_ms=HOUR_MS)
    play(log, "1:1,2 1:3 /")
    clock.advance(HOUR_MS + 1)

    def cleanable():
        (described,) = log.describe()["partition_details"]
        return described["first_dirty_offset"], described["first_uncleanable_offset"]

    assert cleanable() == (0, 0)
    play(log, "1- 4 /")
    assert cleanable() == (0, 3)
    clock.advance(HOUR_MS + 1)
    assert cleanable() == (0, 5)


@pytest.mark.parametrize(("first_ms", "bound"), [(-HOUR_MS - 1, 9), (0, 0)])
def test_the_minimum_lag_of_blocks_of_segments(make_log, put, clock, first_ms, bound):
    """S11: of a block an hour old and one of now the first can be cleaned, up to the segment in
    which the second begins; of one of now nothing.
    """
    log = make_log(min_compaction_lag_ms=HOUR_MS)
    now_ms = clock.now_ms()
    put(log, " ".join(f"{key}=0" for key in range(9)), timestamp=now_ms + first_ms)
    put(log, " ".join(f"{key}=1" for key in range(9)), timestamp=now_ms)
    (described,) = log.describe()["partition_details"]
    assert described["first_uncleanable_offset"] == bound


def test_what_is_too_large_by_now_is_cleaned(large, keys_of, clean):
    """S6, S42: `max.message.bytes` was lowered after the records came."""
    log = large(max_message_bytes=4000)
    for key in (*range(10), 1, 3, 5, 7, 9):
        log.append(rows(key, value="x" * 2000))
    log.alter({"max.message.bytes": 100})
    log.roll()
    clean(log)
    assert keys_of(log) == "0:0 2:2 4:4 6:6 8:8 10:1 11:3 12:5 13:7 14:9"


def test_deleted_keys_have_no_value_left(make_log, put, clean, there):
    """S21, S23: even keys are deleted, others follow, and one pass takes the values away."""
    log = make_log(segment_bytes=14 * 4)
    put(log, " ".join(f"{key}={key}" for key in range(8)))
    put(log, "0 2 4 6")
    put(log, "a=1 b=1 c=1 d=1")
    log.roll()
    clean(log)
    assert there(log) == "1:1=1 3:3=3 5:5=5 7:7=7 8:0 9:2 10:4 11:6 12:a=1 13:b=1 14:c=1 15:d=1"


def test_what_a_pass_counts(make_log, put, clean, there):
    """S20: five records of two keys are read, two of them stay, none was invalid."""
    log = make_log(segment_bytes=1 << 20)
    put(log, "0=0 1=1 0=0 1=1 0=0")
    log.roll()
    stats = clean(log).stats
    assert (stats.records_read, stats.records_written) == (5, 2)
    assert stats.records_superseded == 3
    assert there(log) == "3:1=1 4:0=0"


def test_a_tombstones_own_time_plays_no_part(large, put, clean, there, clock):
    """S23: a value from the future does not hold it, and a time long ago does not remove it."""
    log = large(message_timestamp_after_max_ms=2 * DAY_MS)
    put(log, "0=0", timestamp=clock.now_ms() + DAY_MS + 10_000)
    log.roll()
    clean(log)
    put(log, "0", timestamp=clock.now_ms() - DAY_MS - 10_000)
    log.roll()
    clean(log)
    assert there(log) == "1:0"
    put(log, "1=1")
    log.roll()
    clean(log)
    assert there(log) == "1:0 2:1=1"


@pytest.fixture
def sparse(store, clock):
    """Makes a log at given offsets, by segments of (first, last offset, where it ends)."""

    def sparse(*segments):
        config = {"segment.bytes": 1 << 20}
        log = Log.create(store, 1, config, clock=clock, features=["given-offsets"])
        for number, (first, last, end) in enumerate(segments):
            offsets = [first, last] if last - first > 100 else [*range(first, last + 1)]
            with log.transaction("source") as work:
                work.cover({0: end})
                work.append(rows(*offsets), partition=0, offsets=offsets)
            if number < len(segments) - 1:
                log.roll()
        return log

    return sparse


@pytest.mark.parametrize(
    ("segments", "next_dirty"),
    [
        ([(0, 9, 11), (11, 11, 12)], 11),
        ([(0, 9, 15), (15, 24, 30), (30, 30, 31)], 30),
        ([(0, 7_206_178, 7_206_179), (7_206_179, 7_206_179, 7_206_180)], 7_206_179),
    ],
)
def test_cleaning_gets_past_missing_offsets(sparse, clean, segments, next_dirty):
    """S1, S20: at the end of segments, and within one; nothing is left dirty there."""
    log = sparse(*segments)
    clean(log)
    (described,) = log.describe()["partition_details"]
    assert described["first_dirty_offset"] == next_dirty


def test_segments_far_apart_merge(sparse, clean, keys_of):
    """S25: more than 2^31 offsets between records do not keep segments apart, as there is no index
    of 4 bytes an offset.
    """
    log = sparse(
        (0, BEYOND_INT32 - 1, BEYOND_INT32),
        (BEYOND_INT32, 2 * BEYOND_INT32 - 1, 2 * BEYOND_INT32),
        (2 * BEYOND_INT32, 2 * BEYOND_INT32, 2 * BEYOND_INT32 + 1),
    )
    before = keys_of(log)
    clean(log)
    assert [s.base_offset for s in log.segments(0)] == [0, 2 * BEYOND_INT32]
    assert keys_of(log) == before


def test_nothing_of_an_active_segment_is_cleaned_where_the_start_is_in_it(make_log, put, clean):
    """S10, S12: nine records in the active segment, of which two are deleted."""
    log = make_log(segment_bytes=1 << 20)
    put(log, " ".join(f"k={n}" for n in range(9)))
    log.delete_records({0: 2})
    assert clean(log) == []


def test_a_policy_that_changes_is_obeyed_by_the_next_round(make_log, put, there, clock):
    """S31, S42: delete, compact, and delete again."""
    log = make_log(cleanup_policy="delete", retention_ms=1000, min_cleanable_dirty_ratio=0)
    put(log, "k=1 k=2 k=3")
    log.roll()
    cleaner = Cleaner(log)
    assert cleaner.run_once() == []
    log.alter({"cleanup.policy": "compact"})
    clock.advance(2000)
    assert len(cleaner.run_once()) == 1
    assert there(log) == "2:k=3"
    log.alter({"cleanup.policy": "delete"})
    assert cleaner.run_once() == []
    assert (there(log), log.start_offsets()) == ("", {0: 3})


def test_the_maximum_lag_cleans_where_the_ratio_does_not(make_log, put, there, clock):
    """S14: at a ratio of 1 nothing is cleaned for six hours; then the first block, and the second
    six hours later.
    """
    lag = {"min_compaction_lag_ms": HOUR_MS, "max_compaction_lag_ms": 6 * HOUR_MS}
    log = make_log(min_cleanable_dirty_ratio=1, **lag)
    cleaner = Cleaner(log)
    put(log, " ".join(f"{n % 3}={n}" for n in range(9)))
    clock.advance(3 * HOUR_MS)
    assert cleaner.run_once() == []
    clock.advance(3 * HOUR_MS + 1)
    put(log, "0=x 1=x 2=x")
    log.roll()
    cleaner.run_once()
    assert there(log) == "6:0=6 7:1=7 8:2=8 9:0=x 10:1=x 11:2=x"
    clock.advance(6 * HOUR_MS + 1)
    cleaner.run_once()
    assert there(log) == "9:0=x 10:1=x 11:2=x"


@pytest.mark.parametrize("codec", ["none", "snappy", "lz4", "zstd"])
def test_each_compression_is_cleaned(make_log, clean, codec):
    """S21: 100 keys three times, a large record, and others three times: the table stays, and each
    key is left once.
    """
    log = make_log(segment_bytes=2000, compression_type=codec)

    def append(first):
        for n in range(3):
            log.append(
                [{"key": str(k), "value": f"{k}-{n}"} for k in range(first, first + 100)],
            )

    append(0)
    log.roll()
    clean(log)
    log.append([{"key": "20", "value": "x" * 5000}])
    append(21)
    log.roll()
    before = sorted(log.table().to_pylist(), key=str)
    clean(log)
    assert sorted(log.table().to_pylist(), key=str) == before
    assert len(log.read().to_pylist()) == len(before) == 121


def test_what_is_compacted_expires_and_the_log_goes_on(make_log, put, there, clock, bases):
    """S33, S34: by `compact,delete` first the old values go, then everything, and one empty
    segment is left at the end; what comes later is compacted again.
    """
    log = make_log(cleanup_policy="compact,delete", retention_ms=100_000)
    cleaner = Cleaner(log)
    put(log, "a=1 b=1 a=2 b=2 a=3 b=3")
    log.roll()
    cleaner.run_once(force=True)
    assert there(log) == "4:a=3 5:b=3"
    clock.advance(200_000)
    cleaner.run_once()
    assert (log.start_offsets(), bases(log)) == (log.end_offsets(), [6])
    put(log, "a=4 a=5 b=4")
    log.roll()
    cleaner.run_once(force=True)
    assert there(log) == "7:a=5 8:b=4"


def test_deleted_records_and_what_is_asked_next(make_log, put, store, clock):
    """S36, S38, S39: ten records, of which five, then all are deleted: the low watermark, where
    reading begins, what lies before it, and the offset of a time.
    """
    log = make_log()
    put(log, " ".join(f"{n}=1" for n in range(10)), timestamp=clock.now_ms())
    assert log.offsets_for_times(0) == {0: 0}
    with pytest.raises(OffsetOutOfRangeError, match="20"):
        log.delete_records({0: 20})
    assert log.start_offsets() == {0: 0}
    assert log.delete_records({0: 5}) == {0: 5}
    assert log.delete_records({0: 0}) == {0: 5}
    assert [row["offset"] for row in log.read().to_pylist()] == [5, 6, 7, 8, 9]
    assert [row["offset"] for row in log.read(start=7).to_pylist()] == [7, 8, 9]
    with pytest.raises(OffsetOutOfRangeError):
        log.read(start=1)
    assert log.offsets_for_times(0) == {0: 5}
    assert Log.open(store, clock=clock).start_offsets() == {0: 5}
    assert log.delete_records({0: -1}) == {0: 10}
    assert log.offsets_for_times(0) == {0: None}
    with pytest.raises((InvalidInputError, NotFoundError)):
        log.delete_records({1: 1})
