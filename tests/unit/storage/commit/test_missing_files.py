"""A missing file: rightly, as its version expired, or because something else deleted it."""

import re
from functools import partial

import pytest

from clog.cleaner import Cleaner
from clog.storage import CorruptionError, NotFoundError, StateTable, VersionExpiredError
from clog.storage.administration import delete_log
from clog.storage.format import documents
from clog.storage.read.lookup import records_of_keys
from clog.storage.store.contract import WrappingStore
from clog_testing.crash import expire, inside

DAMAGE = r"data/\S+ of \S+, which version \d+ needs, is missing, and clog did not .*back-up"

READS = {
    "read": lambda log: list(log.read()),
    "table": lambda log: log.table().to_arrow(),
    "get": lambda log: log.table().get("a"),
    "get_many": lambda log: log.table().get_many(["a", "b"]),
    "changes": lambda log: log.latest(0, 0).to_arrow(),
    "older": lambda log: log.table(at=1).to_arrow(),
    "history": lambda log: list(
        records_of_keys(log.handle.store, log.handle.manifest(), {0: (0, 2)}, ["a"])
    ),
    "publish": lambda log: log.publish("delta"),
    "times": lambda log: log.offsets_for_times(1),
}


@pytest.fixture
def log(make_log):
    made = make_log(config={"file.delete.delay.ms": "0", "min.cleanable.dirty.ratio": "0"})
    for value in ("1", "2"):
        made.append([{"key": "a", "value": value}])
    return made


def purge(log, folder="data/"):
    """Deletes files as a lifecycle rule does."""
    for found in list(log.handle.store.list(folder)):
        log.handle.store.delete(found.path)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_an_object_that_something_else_deleted(log, read):
    """Reading again does not help: the error names the file and what to do, each time."""
    purge(log)
    for _ in range(2):
        with pytest.raises(CorruptionError, match=DAMAGE):
            read(log)


def test_one_that_is_only_of_older_versions(log, store, clock):
    """A version that can be read needs its objects, whatever the newest one needs."""
    before = {found.path for found in inside(store).list("data/")}
    log.roll()
    Cleaner(log).run_once(force=True)
    for path in before:
        inside(store).delete(path)
    assert log.table().get("a") == b"2"
    with pytest.raises(CorruptionError, match=DAMAGE):
        log.table(at=2).to_arrow()


class Forgetful(WrappingStore):
    """A store that does not show an object for this many reads, as NFS and SFTP may; ``then`` is
    called at the last of them.
    """

    misses, then = 0, staticmethod(lambda: None)

    def get(self, path, start=None, end=None):
        self._miss(path)
        return self.inner.get(path, start, end)

    def get_ranges(self, path, ranges):
        self._miss(path)
        return self.inner.get_ranges(path, ranges)

    def _miss(self, path):
        if "/data/" in path and self.misses:
            self.misses -= 1
            if not self.misses:
                self.then()
            raise FileNotFoundError(2, "as planned", path)


@pytest.fixture
def forgetful(log, store, open_log):
    made = Forgetful(store)
    return made, open_log(made)


def test_a_folder_that_was_looked_at_before(forgetful):
    """It is there when it is read again: the read is repeated, and no damage is reported."""
    store, log = forgetful
    store.misses = 1
    with pytest.raises(VersionExpiredError, match="read again"):
        list(log.read())
    assert [row["value"] for batch in log.read() for row in batch.to_pylist()] == [b"1", b"2"]


def test_a_version_that_expires_between_two_looks(forgetful, open_log):
    """The look needs the file, and it is swept before it is read again: it expired."""
    store, log = forgetful
    store.misses, store.then = 2, lambda: expire(open_log())
    with pytest.raises(VersionExpiredError, match="read again"):
        list(log.read())
    assert not store.misses


@pytest.mark.parametrize(
    "plan",
    [
        lambda log: partial(list, log.read()),
        lambda log: partial(log.table().get, "a"),
        lambda log: log.table().to_arrow,
    ],
    ids=["read", "get", "table"],
)
def test_a_log_that_is_deleted_while_it_is_read(log, store, plan):
    """Its objects went first, and the newest version still names them: that is no damage."""
    planned = plan(log)
    purge(log)
    store.delete(documents.LOG_FILE)
    with pytest.raises(NotFoundError, match="no log at") as told:
        planned()
    assert not isinstance(told.value, VersionExpiredError)
    planned = log.read
    delete_log(store)
    with pytest.raises(NotFoundError):
        list(planned())


def test_a_document_that_something_else_deleted(make_log, open_log):
    """Whoever opens the log again gets an error that names it."""
    log = make_log(partitions=4)
    for i in range(80):
        log.append([{"key": f"{i}-{j}", "value": "x" * 50} for j in range(40)])
    assert log.handle.tip.head.snapshot is not None
    purge(log, documents.SNAPSHOTS)
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"snapshots/\S+ of \S+, which .* is missing"):
            open_log().table()


def test_a_state_table_is_not_built_from_what_is_left(log, store, tmp_path):
    """It says why at once, and does not recommend a longer delay of deletions."""
    purge(log)
    with pytest.raises(CorruptionError, match=DAMAGE):
        StateTable(store, tmp_path)


@pytest.mark.parametrize("step", ["coalesce", "trim"])
def test_a_round_tells_which_object_is_gone(make_log, step):
    """S28: the rest of the round is done; the error says what to do."""
    log = make_log(config={"segment.bytes": str(1 << 20)})
    for i in range(40):
        log.append([{"key": f"{i}-{j}", "value": "x"} for j in range(3)])
    log.roll()
    path = next(iter(log.handle.manifest().files()))
    log.handle.store.delete(path)
    if step == "trim":
        log.delete_records({0: 1})
    with pytest.raises(CorruptionError, match=re.escape(path)):
        Cleaner(log).run_once()
