"""Whether a batch of `clog.connector.transact_batches` that runs again has the rows that were
committed, in each of its logs (H-T9); without Spark.
"""

import pytest

from clog.connector.write.writers import check_repeated_transaction
from clog.storage import InvalidInputError, Log, ManualClock
from clog.storage.append import partitions_of, put_records, records_of
from clog.storage.env import SeededIds
from clog.storage.format.commits import Edit
from clog_testing.crash import discard, memory_store

ROWS = [{"key": f"k{i}", "value": str(i)} for i in range(9)]


@pytest.fixture
def logs():
    """The home, and another."""
    clock = ManualClock(now_ms=1_000_000)
    stores = [memory_store() for _ in range(2)]
    yield [Log.create(s, 2, clock=clock, ids=SeededIds(i)) for i, s in enumerate(stores)]
    for store in stores:
        discard(store)


@pytest.fixture
def first(logs):
    """The result of a batch that put all rows into the other log, and two into the home."""
    home, other = logs
    t = home.transaction("job", sequence=4)
    t.append(ROWS[:2])
    t.append(ROWS, log=other)
    t.note_content("aa")
    t.commit()
    other.append([{"key": "plain", "value": "later"}])
    again = Log.open(home.handle.standing.root, clock=home.handle.clock, ids=SeededIds(9))
    return again, again.transaction("job", sequence=4).result


def objects(log, rows):
    records, _, schema = records_of(log.handle, rows)
    partitions = partitions_of(records, None, log.handle.tip.head, url=log.url)
    return put_records(log.handle, records, partitions, schema)


def check(first, written, content="bb"):
    home, result = first
    rows = [(home if log is None else log, objects(log or home, rows)) for log, rows in written]
    check_repeated_transaction(home, "job", result, rows, content)


def test_the_same_rows_in_any_order_pass(logs, first):
    """A shuffle does not repeat an order: the hashes differ, and the rows are compared."""
    check(first, [(None, ROWS[1::-1]), (logs[1], ROWS[::-1])])
    check(first, [(logs[1], [*ROWS[4:], *ROWS[:4]])])


def test_equal_hashes_are_enough(logs, first):
    """Then nothing is read."""
    check(first, [(None, [])], content="aa")


@pytest.mark.parametrize(
    ("at", "rows"), [(0, ROWS[1:3]), (1, ROWS[:8]), (1, [*ROWS, ROWS[0]]), (1, [])]
)
def test_other_rows_in_any_log_fail(logs, first, at, rows):
    """Other, fewer, more or no rows; the error names the log and the option."""
    log = None if at == 0 else logs[1]
    message = r"batch 4 of 'job' is in .* already, with other rows: .*failOnChangedBatch=false"
    with pytest.raises(InvalidInputError, match=message):
        check(first, [(log, rows)])


def test_a_log_that_cannot_say_any_more_fails(logs, first):
    """The version that contains the rows has expired; the error only says what is to be done."""
    other = logs[1]
    newest = other.version
    other.handle.commit(lambda *_: Edit(oldest_readable=newest), operation="sweep")
    told = r"already, perhaps with other rows: version \d, which has it, expired; nothing was w"
    with pytest.raises(InvalidInputError, match=told):
        check(first, [(other, ROWS)])


def test_a_log_that_had_none_of_it(logs, first):
    """An empty frame is the same; other rows are not."""
    clock = ManualClock(now_ms=1_000_000)
    store = memory_store()
    third = Log.create(store, 1, clock=clock, ids=SeededIds(5))
    check(first, [(third, [])])
    with pytest.raises(InvalidInputError, match=r"0 in version .* 1 now"):
        check(first, [(third, ROWS[:1])])
    discard(store)
