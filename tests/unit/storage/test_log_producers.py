"""Appends that happen once: producers, streams and transaction ids, and what is kept about them."""

import pytest

from clog.storage import CorruptionError, InvalidInputError
from clog.storage.append import partitions_of
from clog.storage.commit.appends import Writer
from clog.storage.format.writers import WRITERS_MAX
from clog.storage.objects.records import to_records
from clog_testing.counting import CountingStore
from clog_testing.crash import inside
from clog_testing.invariants import check_log

ONE = [{"key": "a", "value": "1"}]
TWO = [{"key": "a", "value": "2"}]


def objects_of(log, rows=ONE):
    records, _ = to_records(rows, now_us=0)
    writer = log.object_writer()
    writer.add(records, partitions_of(records, None, log.handle.tip.head, url=log.url))
    return writer.finish()


def test_a_repeated_sequence_is_answered_with_the_first_result(make_log, open_log, clock):
    """S78: the same sequence again commits nothing, also through another handle, after others."""
    log = make_log(partitions=2)
    first = log.append(ONE, producer=("p", 0))
    log.append(TWO, producer=("q", 0))
    clock.advance(1000)  # a retry is later, and fills in another timestamp
    for handle in (log, open_log()):
        again = handle.append(ONE, producer=("p", 0))
        assert again.duplicate
        assert (again.version, again.offsets) == (first.version, first.offsets)
    assert log.version == 2


def test_a_duplicate_that_learns_at_the_commit(make_log, open_log, store):
    """Two that send the same sequence race: the loser finds the winner's entry, and gets its
    result.
    """
    log, other = make_log(), open_log()
    first = log.append(ONE, producer=("p", 7))
    again = other.append(ONE, producer=("p", 7))  # its tip is version 0
    assert (again.duplicate, again.version, again.offsets) == (True, first.version, first.offsets)
    assert log.end_offsets() == {0: 1}


def test_other_records_under_the_same_sequence_are_an_error(make_log):
    log = make_log()
    log.append(ONE, producer=("p", 3))
    with pytest.raises(InvalidInputError, match="repeats sequence 3 with records other"):
        log.append(TWO, producer=("p", 3))
    with pytest.raises(InvalidInputError, match="repeats sequence 3 with records other"):
        log.append([{**ONE[0], "timestamp": 5}], producer=("p", 3))
    assert log.version == 1


def test_a_sequence_that_goes_back_is_an_error(make_log):
    log = make_log()
    log.append(ONE, producer=("p", 3))
    with pytest.raises(InvalidInputError, match=r"at sequence 3 .* sequence 2 is lower"):
        log.append(ONE, producer=("p", 2))
    assert log.append(ONE, producer=("p", 10)).offsets == {0: (1, 2)}  # gaps are fine


@pytest.mark.parametrize(
    "producer",
    ["p", ("p",), ("p", -1), ("p", "0"), ("", 0), (7, 0), ("p", 0, 0), ("p", True), ("p", 1 << 63)],
)
def test_producers_that_are_none(make_log, producer):
    """Sequences are 64-bit integers, as all that documents hold (FORMAT.md §2)."""
    with pytest.raises(InvalidInputError, match="producer"):
        make_log().append(ONE, producer=producer)


def test_what_is_refused_leaves_the_sequence_free(make_log):
    log = make_log()
    with pytest.raises(InvalidInputError, match="no key"):
        log.append([{"key": None, "value": "1"}], producer=("p", 0))
    assert not log.append(ONE, producer=("p", 0)).duplicate


def test_no_writer_is_forgotten(make_log, open_log, store):
    """More writers than a head holds move to pages, and are found there."""
    log = make_log()
    writers = 5 * WRITERS_MAX // 2
    first = [log.append(ONE, producer=(f"p{i}", i)) for i in range(writers)]
    head = log.handle.tip.head
    assert len(head.writers) <= WRITERS_MAX
    assert head.older_writers.count + len(head.writers) == writers
    for reader in (log, open_log()):
        for i in range(writers):
            again = reader.append(ONE, producer=(f"p{i}", i))
            assert (again.duplicate, again.offsets) == (True, first[i].offsets)
    with pytest.raises(InvalidInputError, match="at sequence 5"):
        log.append(ONE, producer=("p5", 4))
    assert log.describe()["writers"] == writers
    check_log(store, every_version=False)


def test_a_page_that_newer_versions_need_no_more(make_log, open_log):
    """A handle whose tip refers to it looks for a newer version (COMMIT.md §5)."""
    log = make_log()
    for i in range(WRITERS_MAX + 1):
        log.append(ONE, producer=(f"p{i}", 0))
    behind = open_log()
    page = log.handle.tip.head.older_writers
    for i in range(WRITERS_MAX):
        log.append(ONE, producer=(f"q{i}", 0))
    assert log.handle.tip.head.older_writers != page
    log.handle.store.delete(page.path)
    assert behind.append(ONE, producer=("p0", 0)).duplicate
    assert not behind.append(ONE, producer=("p0", 1)).duplicate


@pytest.mark.parametrize("sequence", [0, 1])
def test_a_page_that_is_missing_is_damage(make_log, open_log, sequence):
    """Nobody can know whether the writer appended: a clog error names the page, before a commit and
    in it; writers in the head continue.
    """
    log = make_log()
    for i in range(WRITERS_MAX + 1):
        log.append(ONE, producer=(f"p{i}", 0))
    page = log.handle.tip.head.older_writers.path
    log.handle.store.delete(page)
    other = open_log()
    with pytest.raises(CorruptionError, match=f"{page}.* is missing"):
        other.append(ONE, producer=("p0", sequence))
    with pytest.raises(CorruptionError, match=f"{page}.* is missing"):
        other.append_objects(objects_of(other), Writer("p0", "txn", sequence))
    assert other.append(ONE, producer=(f"p{WRITERS_MAX}", 1)).offsets == {0: (65, 66)}


def test_a_writer_that_comes_back_counts_once(make_log, open_log):
    """Its newest entry is in the head, and the one in the page no longer counts."""
    log = make_log()
    for i in range(WRITERS_MAX + 1):
        log.append(ONE, producer=(f"p{i}", 0))
    log.append(ONE, producer=("p0", 1))
    for i in range(WRITERS_MAX):
        log.append(ONE, producer=(f"q{i}", 0))
    assert open_log().append(ONE, producer=("p0", 1)).duplicate
    with pytest.raises(InvalidInputError, match="at sequence 1"):
        open_log().append(ONE, producer=("p0", 0))


def test_recent_writers_need_no_page(make_log, store, open_log):
    """A head full of writers is not paged out when one of them commits again."""
    log = make_log()
    for i in range(WRITERS_MAX):
        log.append(ONE, producer=(f"p{i}", 0))
    counting = CountingStore(store)
    other = open_log(counting)
    with counting.count() as counts:
        other.append(ONE, producer=("p1", 1))
    assert other.handle.tip.head.older_writers is None
    assert counts["put"] == 1


def test_a_stream_repeats_its_last_batch(make_log):
    """The last batch of the same query again is a duplicate, whatever it contains: the
    first wins.
    """
    log = make_log()
    first = log.append_objects(objects_of(log), Writer("w", "stream", 4, "query-1", "aa"))
    again = log.append_objects(objects_of(log, TWO), Writer("w", "stream", 4, "query-1", "bb"))
    assert (again.duplicate, again.offsets) == (True, first.offsets)
    with pytest.raises(InvalidInputError, match="has batch 4"):
        log.append_objects(objects_of(log), Writer("w", "stream", 3, "query-1", "aa"))


def test_another_query_under_the_same_id_is_refused(make_log):
    """A recreated checkpoint would repeat batch numbers: the error says what to do."""
    log = make_log()
    log.append_objects(objects_of(log), Writer("w", "stream", 4, "query-1", "aa"))
    with pytest.raises(InvalidInputError, match=r"belongs to query query-1, batch 4.*writerId"):
        log.append_objects(objects_of(log), Writer("w", "stream", 0, "query-2", "aa"))


@pytest.mark.parametrize("version", [4, 3])
def test_a_transaction_at_or_below_the_last_is_skipped(make_log, version):
    """Like Delta's txnVersion."""
    log = make_log()
    log.append_objects(objects_of(log), Writer("app", "txn", 4))
    again = log.append_objects(objects_of(log), Writer("app", "txn", version))
    assert again.duplicate
    assert log.version == 1
    assert not log.append_objects(objects_of(log), Writer("app", "txn", 5)).duplicate


def test_a_duplicate_whose_commit_is_gone(make_log, store):
    """Its offsets are no longer known; that it is a duplicate is."""
    log = make_log()
    log.append(ONE, producer=("p", 0))
    inside(store).delete("commits/00000000000000000001.json")
    again = log.append(ONE, producer=("p", 0))
    assert (again.duplicate, again.version, again.offsets) == (True, 1, {})


def test_writers_of_one_name_and_different_kinds_are_different(make_log):
    """A sequence is compared with those of its own kind: neither is taken for a repetition."""
    log = make_log()
    log.append([{"key": "a", "value": "1"}], producer=("app", 100))
    objects = objects_of(log)
    assert not log.append_objects(objects, Writer("app", "txn", 5)).duplicate
    assert not log.append_objects(objects, Writer("app", "stream", 0, query_id="q")).duplicate
    assert log.end_offsets() == {0: 3}
    assert log.append_objects(objects, Writer("app", "txn", 5)).duplicate
    assert log.append([{"key": "a", "value": "1"}], producer=("app", 100)).duplicate


def test_a_transaction_below_the_last_one_is_skipped_without_a_result(make_log):
    """What the last one did is not what this one did: its offsets are not returned."""
    log = make_log()
    objects = objects_of(log)
    log.append_objects(objects, Writer("app", "txn", 5))
    last = log.append_objects(objects, Writer("app", "txn", 7))
    skipped = log.append_objects(objects, Writer("app", "txn", 6))
    assert (skipped.version, skipped.offsets, skipped.duplicate) == (last.version, {}, True)
    again = log.append_objects(objects, Writer("app", "txn", 7))
    assert (again.offsets, again.duplicate) == (last.offsets, True)


@pytest.mark.parametrize("size", [1024, 1025])
def test_an_id_has_a_length(make_log, size):
    """Each commit repeats it."""
    log = make_log()
    if size > 1024:
        with pytest.raises(InvalidInputError, match="allowed: 1 to 1024 bytes"):
            log.append([{"key": "a", "value": "1"}], producer=("p" * size, 0))
    else:
        log.append([{"key": "a", "value": "1"}], producer=("p" * size, 0))


@pytest.mark.parametrize("sequence", [2**63, -2])
@pytest.mark.parametrize("kind", ["txn", "stream", "producer"])
def test_a_sequence_that_nobody_could_read_is_refused(make_log, open_log, kind, sequence):
    """Integers of a log have 64 bits: with a longer one in the head the log would be unreadable."""
    log = make_log()
    with pytest.raises(InvalidInputError, match=r"allowed: 0 to 9223372036854775807"):
        log.append_objects(objects_of(log), Writer("app", kind, sequence, query_id="q"))
    assert not log.append_objects(objects_of(log), Writer("app", "txn", 2**63 - 1)).duplicate
    assert open_log().end_offsets() == {0: 1}
