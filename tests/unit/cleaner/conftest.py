"""What tests of the cleaner share: logs in memory that repeat themselves, and words for them."""

import pytest

from clog.cleaner import Cleaner
from clog.storage import Log, ManualClock
from clog.storage.env import SeededIds
from clog_testing.clocked import ClockedStore
from clog_testing.crash import discard, memory_store
from clog_testing.invariants import check_log
from clog_testing.model import rows_in

NOW = 1_000_000_000


@pytest.fixture
def clock():
    return ManualClock(now_ms=NOW)


@pytest.fixture
def clocked_store(clock):
    """A store whose objects were written when the test's clock says."""
    made = ClockedStore(memory_store(), clock)
    yield made
    discard(made.inner)


@pytest.fixture
def make_log(store, clock):
    """Creates the log of the test's store; segments hold 3 records of `put`, unless told."""

    def make(partitions=1, **config):
        named = {name.replace("_", "."): value for name, value in config.items()}
        given = {"segment.bytes": 3 * 14, **named}
        return Log.create(store, partitions, given, clock=clock, ids=SeededIds(1))

    return make


@pytest.fixture
def put():
    """Appends ``a=1`` (a record of 14 bytes) or ``a`` (a tombstone), each by itself."""

    def put(log, text, partition=0, **fields):
        for word in text.split():
            key, _, value = word.partition("=")
            record = {"key": key, "value": value if "=" in word else None, **fields}
            log.append([record], partition=partition)

    return put


@pytest.fixture
def there():
    """What a partition holds, as ``0:a=1 3:b`` (b is a tombstone)."""

    def there(log, partition=0):
        rows = rows_in(log.read(partition=partition))
        return " ".join(
            f"{offset}:{r.key.decode()}" + ("" if r.value is None else f"={r.value.decode()}")
            for _, offset, r in rows
        )

    return there


@pytest.fixture
def clean(store):
    """A forced round, and a look at the whole log; the one result, or all."""

    def clean(log, **settings):
        results = Cleaner(log, **settings).run_once(force=True)
        check_log(store, every_version=False)
        for result in results:
            stats = result.stats
            assert stats.records_read == stats.records_written + stats.records_removed
        log.handle.refresh()
        assert not any(log.handle.manifest().uncleanable.values())
        return results[0] if len(results) == 1 else results

    return clean


@pytest.fixture
def bases():
    """The base offsets of a partition's segments."""
    return lambda log, partition=0: [s.base_offset for s in log.segments(partition)]
