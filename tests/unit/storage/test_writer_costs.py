"""COMMIT.md §7: what an append costs beside very many older writers, in requests and bytes.

Their pages are built directly: a commit for each of a million would tell nothing more.
"""

from collections import Counter

import numpy as np
import pytest

from clog.storage import InvalidInputError, Log, ManualClock
from clog.storage.commit.appends import Appended, AppendRequest, Proposed, Waiting, Writer
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format.commits import Edit
from clog.storage.format.transactions import WriterEntry
from clog.storage.format.writers import WRITERS_MAX, PagedWriters
from clog.storage.objects.records import to_records
from clog.storage.store.contract import WrappingStore
from clog_testing.crash import discard, memory_store

ONE = [{"key": "k", "value": "v"}]
PAGE_BYTES_MAX = 64 << 10


class Pages(WrappingStore):
    """Counts the requests to pages; the largest document among them is remembered."""

    def __init__(self, inner):
        super().__init__(inner)
        self.counts, self.largest = Counter(), 0

    def get(self, path, start=None, end=None):
        data = self.inner.get(path, start, end)
        self._count("get", path, data)
        return data

    def put(self, path, data):
        self._count("put", path, data)
        self.inner.put(path, data)

    def _count(self, operation, path, data):
        if f"/{documents.PAGES}" in path:
            self.counts[operation] += 1
            self.largest = max(self.largest, len(data))

    def taken(self):
        """The requests since the last time."""
        taken, self.counts = dict(self.counts), Counter()
        return taken


def entry(i):
    content = f"{i * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}"  # hard to compress
    return WriterEntry(f"device-{i}", "txn", None, 5, content, 0)


@pytest.fixture(scope="module", params=[20_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
def crowded(request):
    """A log with this many older writers, and how many."""
    store = Pages(memory_store())
    log = Log.create(store, 1, clock=ManualClock(), ids=SeededIds(1))
    seed, handle = log.handle.tip.head.log.key_seed, log.handle
    entries = map(entry, range(request.param))
    root = handle.writer_pages.add(None, entries, seed=seed, new_id=handle.ids.new_id)
    assert (root.count, root.level) == (request.param, 1)
    handle.commit(lambda _tip, _ms: Edit(older_writers=PagedWriters(root, ())), operation="append")
    yield store, request.param
    discard(store)


@pytest.fixture
def store(crowded):
    crowded[0].taken()
    crowded[0].largest = 0
    return crowded[0]


@pytest.fixture
def count(crowded):
    return crowded[1]


def open_log(store, seed=2):
    return Log.open(store, clock=ManualClock(), ids=SeededIds(seed))


def alone(store, seed):
    """A log in which nobody has met others for an hour: no answers are kept for them."""
    log = open_log(store, seed)
    log.handle.clock.advance(log.handle.tip.record.time_ms + 2 * 3_600_000)
    for _ in range(2):
        log.append(ONE)
    combined = log.handle.tip.head.combined
    assert combined is None or combined.authors == ()
    return log


def objects_of(log):
    records, _ = to_records(ONE, now_us=0)
    writer = log.object_writer()
    writer.add(records, np.zeros(1, np.int32))
    return writer.finish()


def test_an_unknown_writer_costs_one_small_read(store, count):
    """1 GET of at most 64 KiB, after a first one of the page above it."""
    log = open_log(store)
    objects = objects_of(log)
    assert not log.append_objects(objects, Writer("new-0", "txn", 1)).duplicate
    assert store.taken() == {"get": 2}
    for i in range(1, 9):
        assert not log.append_objects(objects, Writer(f"new-{i}", "txn", 1)).duplicate
        assert store.taken().get("get", 0) <= 1
    assert log.append_objects(objects, Writer(f"device-{count - 1}", "txn", 5)).duplicate
    assert store.taken().get("get", 0) <= 1
    assert 20_000 < store.largest <= PAGE_BYTES_MAX


def test_a_writer_that_came_back_counts_once(store, count):
    """Its older entry stays in its page; a new one has none. At most a GET for each writer of the
    head, and of the page above theirs; none for kept pages.
    """
    log = open_log(store)
    objects, before = objects_of(log), log.describe()["writers"]
    assert before >= count
    for writer_id in ("device-8", "device-9", "came-once"):
        assert not log.append_objects(objects, Writer(writer_id, "txn", 6)).duplicate
    other = open_log(store)
    store.taken()
    assert other.describe()["writers"] == before + 1
    assert 0 < store.taken()["get"] <= 1 + len(other.handle.tip.head.writers)
    assert other.describe()["writers"] == before + 1
    assert not store.taken()


def test_an_unknown_writer_at_a_full_head_writes_two_pages(store, count):
    """At most 2 GET and 2 PUT of at most 64 KiB for each, when no page is split; and whichever
    writers the head drops are found again.
    """
    log = open_log(store)
    objects = objects_of(log)
    for i in range(WRITERS_MAX):
        log.append_objects(objects, Writer(f"first-{i}", "txn", 1))
    store.taken()
    puts = Counter()
    for i in range(80):
        log.append_objects(objects, Writer(f"second-{i}", "txn", 1))
        taken = store.taken()
        assert taken.get("get", 0) <= 2
        puts[taken.get("put", 0)] += 1
        assert len(log.handle.tip.head.writers) <= WRITERS_MAX
    assert set(puts) <= {0, 2, 3}, "0: another of its page went before; 3: a page was cut"
    assert puts[3] <= 2
    assert store.largest <= PAGE_BYTES_MAX
    other = open_log(store, seed=3)
    for name in ("first", "second"):
        for i in range(WRITERS_MAX):
            assert other.append_objects(objects, Writer(f"{name}-{i}", "txn", 1)).duplicate
    assert other.append_objects(objects, Writer("device-7", "txn", 5)).duplicate


def test_a_second_handle_reads_what_the_first_one_changed(store):
    """Both keep what they know: the page above is read, the writer's, and that of the one that
    leaves.
    """
    one, two = open_log(store, seed=4), open_log(store, seed=5)
    objects = objects_of(one)
    for i in range(WRITERS_MAX + 1):
        one.append_objects(objects, Writer(f"third-{i}", "txn", 1))
    two.append_objects(objects, Writer("fourth", "txn", 1))
    store.taken()
    for i in range(9):
        one.append_objects(objects, Writer(f"fifth-{i}", "txn", 1))
        two.handle.refresh()
        store.taken()
        two.append_objects(objects, Writer(f"sixth-{i}", "txn", 1))
        taken = store.taken()
        assert taken.get("get", 0) <= 3
        assert taken.get("put", 0) <= 3
        one.handle.refresh()


def test_a_group_of_unknown_writers(store):
    """64 that wait together are one commit; each costs what it would alone, or less."""
    log = alone(store, seed=6)
    objects = [objects_of(log)[0] for _ in range(2 * WRITERS_MAX)]
    requests = [
        AppendRequest(
            Proposed((obj,), Writer(f"group-{i}", "txn", 1)),
            log.handle.writer_pages,
            log.handle.ids,
        )
        for i, obj in enumerate(objects)
    ]
    for half in (requests[:WRITERS_MAX], requests[WRITERS_MAX:]):
        store.taken()
        version = log.version
        waiting = [Waiting(request.prepare, request.append) for request in half[:-1]]
        log.handle._appends._waiting.update(dict.fromkeys(waiting))
        done = log.handle.append(half[-1].prepare, half[-1].append)
        assert done.version == version + 1
        assert all(isinstance(one.outcome, Appended) for one in waiting)
        taken = store.taken()
        assert taken.get("get", 0) <= 2 * WRITERS_MAX + 1
        assert taken.get("put", 0) <= WRITERS_MAX + 3, "their pages, the one above, cuts"
        assert len(log.handle.tip.head.writers) == WRITERS_MAX
    other = open_log(store, seed=7)
    for i in range(2 * WRITERS_MAX):
        assert other.append_objects(objects[:1], Writer(f"group-{i}", "txn", 1)).duplicate


def test_a_lost_race_reads_no_page_again(store):
    """What the first try read is kept; pages are rewritten: a sweep may have deleted the first."""
    log, rival = alone(store, seed=8), open_log(store, seed=9)
    objects = objects_of(log)
    for i in range(WRITERS_MAX):
        log.append_objects(objects, Writer(f"seventh-{i}", "txn", 1))
    while (there := len(log.handle.tip.head.writers)) < WRITERS_MAX:
        log.append_objects(objects, Writer(f"eighth-{there}", "txn", 1))
    rival.handle.refresh()
    rival.append(ONE)
    store.taken()
    log.append_objects(objects, Writer("ninth", "txn", 1))
    taken = store.taken()
    assert taken.get("get", 0) <= 2
    assert taken.get("put", 0) == 4
    assert log.handle.tip.version == rival.version


def test_a_writer_that_comes_back_is_known_by_its_newest_entry(store):
    """Out of its page, into the head, and into its page again."""
    log = alone(store, seed=10)
    log.append(ONE, producer=("back", 1))
    objects = objects_of(log)
    for name, sequence in (("tenth", 1), ("eleventh", 2)):
        for i in range(2 * WRITERS_MAX):
            log.append_objects(objects, Writer(f"{name}-{i}", "txn", 1))
        assert "back" not in {w.writer_id for w in log.handle.tip.head.writers}
        assert log.append(ONE, producer=("back", sequence)).duplicate
        log.append(ONE, producer=("back", sequence + 1))
    with pytest.raises(InvalidInputError, match="at sequence 3"):
        open_log(store).append(ONE, producer=("back", 2))
