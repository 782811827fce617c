"""Continuous reading with named readers."""

import asyncio
import os
import signal
import threading

import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.storage import InvalidInputError, Log, NotFoundError, OffsetOutOfRangeError, follow

HOUR = 3_600_000


def keys(batches):
    return [key.decode() for batch in batches for key in batch.column("key").to_pylist()]


def rows(*names):
    return [{"key": name, "value": "v"} for name in names]


@pytest.fixture
def log(make_log):
    made = make_log(partitions=2)
    made.append(rows("a", "b"), partition=[0, 1])
    return made


def test_a_reader_goes_on_where_it_was(log, open_log):
    """A batch that the last loop finished is not read again, not even in another process (S64)."""
    assert keys(log.reader("billing").follow(poll_ms=None)) == ["a", "b"]
    log.append(rows("c"), partition=0)
    assert keys(open_log().reader("billing").follow(poll_ms=None)) == ["c"]
    assert keys(open_log().reader("billing").follow(poll_ms=None)) == []


def test_it_waits_for_more(log, clock):
    """At the end it polls each ``poll_ms``, and continues."""
    got = []
    following = log.reader("billing").follow(poll_ms=500)
    before = clock.monotonic_ms()
    for batch in following:
        got += keys([batch])
        if got[-1] == "b":
            log.append(rows("c"), partition=1)
        if got[-1] == "c":
            following.stop()
    assert got == ["a", "b", "c"]
    assert clock.monotonic_ms() == before


def test_a_batch_that_was_not_finished_comes_again(log, open_log):
    """The next one is requested when the previous one is done: at least once, whatever happens."""
    for batch in log.reader("billing").follow(poll_ms=None):
        if keys([batch]) == ["b"]:
            break
    assert keys(open_log().reader("billing").follow(poll_ms=None)) == ["b"]


def test_positions_by_hand(log, open_log):
    """With ``commit=False``, the position is the one that the caller commits."""
    with log.reader("billing") as reader:
        assert keys(reader.follow(poll_ms=None, commit=False)) == ["a", "b"]
        reader.commit({1: 1})
    assert keys(open_log().reader("billing").follow(poll_ms=None)) == ["a"]


def test_a_new_reader_may_begin_at_the_end(log):
    """``start`` is for a reader without a position."""
    reader = log.reader("billing")
    for _ in reader.follow(poll_ms=None, start="latest"):
        pytest.fail("there is nothing yet")
    log.append(rows("c"), partition=0)
    assert keys(log.reader("billing").follow(poll_ms=None, start="earliest")) == ["c"]


def test_several_logs_take_turns(log, tmp_path):
    """Each batch comes with its reader, whose position is noted."""
    other = Log.create(str(tmp_path / "other"), partitions=1)
    other.append(rows("x"))
    readers = [log.reader("billing"), other.reader("billing")]
    got = [(reader is readers[1], keys([batch])) for reader, batch in follow(readers, poll_ms=None)]
    assert got == [(False, ["a"]), (True, ["x"]), (False, ["b"])]
    assert [reader.position for reader in readers] == [{0: 1, 1: 1}, {0: 1}]
    with pytest.raises(InvalidInputError, match="nothing to follow"):
        follow([])


def test_async_for(log):
    """The same in an event loop, which continues in the meantime."""

    async def main():
        return [batch async for batch in log.reader("billing").follow(poll_ms=None)]

    assert keys(asyncio.run(main())) == ["a", "b"]
    assert keys(log.reader("billing").follow(poll_ms=None)) == []


def test_stop_ends_a_wait_for_more(log, clock, monkeypatch):
    """Within a tenth of a second, whatever ``poll_ms`` is."""
    following = log.reader("billing").follow(poll_ms=20_000)

    def sleep_ms(ms):
        clock.advance(ms)
        following.stop()

    monkeypatch.setattr(type(clock), "sleep_ms", lambda self, ms: sleep_ms(ms))
    before = clock.monotonic_ms()
    assert keys(following) == ["a", "b"]
    assert clock.monotonic_ms() - before <= 100


def test_a_cancelled_loop_ends_its_wait_for_more(log, clock, monkeypatch):
    """The thread that waits ends as soon as the task does, so the process can."""
    waits, slept = threading.Event(), []

    def sleep_ms(ms):
        slept.append(ms)
        waits.set()

    monkeypatch.setattr(type(clock), "sleep_ms", lambda self, ms: sleep_ms(ms))

    async def main():
        async def read():
            async for _ in log.reader("billing").follow(poll_ms=1 << 50):
                pass

        task = asyncio.create_task(read())
        await asyncio.to_thread(waits.wait)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())  # Joins the thread at its end.
    assert max(slept) <= 100


def test_a_signal_ends_it_after_the_batch(log, open_log):
    """SIGTERM lets the present batch finish; the previous handler is restored afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    got = []
    for batch in log.reader("billing").follow(stop_on=[signal.SIGTERM]):
        os.kill(os.getpid(), signal.SIGTERM)
        got.append(batch)
    assert keys(got) == ["a"]
    assert signal.getsignal(signal.SIGTERM) is before
    assert keys(open_log().reader("billing").follow(poll_ms=None)) == ["b"]


def test_a_loop_that_is_left_puts_the_handler_back(log):
    """So does a loop that ends early."""
    before = signal.getsignal(signal.SIGTERM)
    for _ in log.reader("billing").follow(stop_on=[signal.SIGTERM]):
        break
    assert signal.getsignal(signal.SIGTERM) is before


def test_columns_that_are_asked_for(log):
    """Only they are read, with the columns that a position needs."""
    (first, _) = log.reader("billing").follow(poll_ms=None, columns=["value"])
    assert first.schema.names == ["partition", "offset", "value"]


def test_a_gap_at_the_end_is_passed(log, clock):
    """If deleteRecords removed the last records, a reader at its end has no lag."""
    log.delete_records({0: -1, 1: -1})
    log.append(rows("c"), partition=0)
    reader = log.reader("billing")
    assert keys(reader.follow(poll_ms=None)) == ["c"]
    assert reader.position == {0: 2, 1: 1}


def test_a_reader_that_was_overtaken_is_told(log):
    """Removed records are never skipped silently (S38)."""
    reader = log.reader("billing")
    assert keys(reader.follow(poll_ms=None)) == ["a", "b"]
    log.append(rows("c", "d"), partition=[0, 0])
    log.delete_records({0: 2})
    with pytest.raises(OffsetOutOfRangeError):
        log.reader("billing").follow(poll_ms=None)


@pytest.mark.parametrize(
    "arguments", [{"poll_ms": 0}, {"poll_ms": 1.5}, {"start": "first"}, {"columns": ["price"]}]
)
def test_arguments_that_are_refused(log, arguments):
    with pytest.raises(InvalidInputError):
        log.reader("billing").follow(**arguments)


def test_batches_are_arrow(log):
    """They are record batches of the log's schema."""
    (first, _) = log.reader("billing").follow(poll_ms=None)
    assert isinstance(first, pa.RecordBatch)
    assert first.schema == log.read().schema


@pytest.fixture
def overtaken(make_log, clock):
    """Goes on with a log: deletes a key, and lets the cleaner remove what nobody has read."""

    def overtake(log):
        log.append([{"key": "a", "value": None}], partition=0)
        for _ in range(4):
            log.append(rows("z"), partition=0)
            log.roll()
            clock.advance(3 * HOUR)
            Cleaner(log, clock=clock).run_once(force=True)
        log.append(rows("end"), partition=0)

    config = {"delete.retention.ms": HOUR, "file.delete.delay.ms": HOUR}
    return make_log(partitions=2, config=config), overtake


@pytest.mark.parametrize("at", ["b", "c"])
def test_a_reader_that_pauses_in_its_loop_is_told_of_the_deletes_that_it_missed(overtaken, at):
    """S41: whether its plan is done, or half done and expired; one that accepts it goes on."""
    log, overtake = overtaken
    log.append(rows("a", "b", "c"), partition=[0, 0, 1])

    def read(**how):
        got = []
        for batch in log.reader("billing").follow(poll_ms=None, **how):
            got += keys([batch])
            if at in keys([batch]):
                overtake(log)
        return got

    with pytest.raises(NotFoundError, match="removed before reader billing, at version 1, reached"):
        read()
    log.forget_reader("billing")
    assert "end" in read(missed_deletes=True)


def test_a_version_that_expires_is_not_the_end(overtaken):
    """``poll_ms=None`` stops at the end: what is left is planned anew."""
    log, overtake = overtaken
    log.append(rows("a", "b"), partition=[0, 1])
    log.append(rows("c", "d"), partition=[0, 1])
    got = []
    for batch in log.reader("billing").follow(poll_ms=None, missed_deletes=True):
        if not got:
            overtake(log)
        got += keys([batch])
    assert {"b", "d", "end"} <= {*got}
