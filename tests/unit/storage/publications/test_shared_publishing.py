"""`Log.publish` from many threads on one `Log`: "Threads may share a log" (`Log`)."""

import threading

import pytest

from clog.storage import Log
from clog.storage.store.contract import WrappingStore
from clog_testing.published import delta_rows, iceberg_rows

pytest.importorskip("pyroaring")
pytest.importorskip("fastavro")
THREADS, ROUNDS = 8, 6
READERS = {"delta": (delta_rows, 0), "iceberg": (iceberg_rows, 1)}


@pytest.mark.parametrize("name", READERS)
def test_a_view_never_goes_back_in_time(name, store):
    """S63: each version of the view shows a version of the log that is not older than the one
    before; the last shows all that was acknowledged."""
    log = Log.create(store, 2)
    failures, results = [], []

    def work(number):
        try:
            for i in range(ROUNDS):
                log.append([{"key": f"{number}-{i}", "value": "1"}])
                results.append(log.publish(name))
        except BaseException as e:
            failures.append(e)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    result = log.publish(name)
    read, first = READERS[name]
    stated = [read(store, version)[1] for version in range(first, result.table_version + 1)]
    assert stated == sorted(stated)
    rows, shown = read(store)
    assert (len(rows), shown) == (THREADS * ROUNDS, result.version)
    made = [r.table_version for r in results if r.published]
    assert sorted(made) == sorted(set(made))


@pytest.mark.parametrize("name", READERS)
def test_what_another_process_published_is_not_undone(name, make_log, store, open_log, monkeypatch):
    """S63: between this thread's looks at the log and at the view others append and publish; what
    they showed is in the next version too.
    """
    log, other = make_log(), open_log()
    log.append([{"key": "a", "value": "1"}])
    log.publish(name)
    log.append([{"key": "b", "value": "1"}])
    real, done = type(log.handle).refresh, []

    def late(handle):
        tip = real(handle)
        if handle is log.handle and not done:
            done.append(None)
            other.append([{"key": "c", "value": "1"}])
            other.publish(name)
        return tip

    monkeypatch.setattr(type(log.handle), "refresh", late)
    log.publish(name)
    read, first = READERS[name]
    stated = [read(store, version)[1] for version in range(first, log_versions(store, name))]
    assert stated == sorted(stated)
    assert [key for key, _ in read(store)[0]] == [b"a", b"b", b"c"]


class Listed(WrappingStore):
    """Calls ``then`` once, after a folder was listed."""

    then = None

    def list(self, prefix=""):
        found = list(self.inner.list(prefix))
        if self.then is not None and prefix in ("_delta_log/", "metadata/"):
            then, self.then = self.then, None
            then()
        return iter(found)


@pytest.mark.parametrize("name", READERS)
def test_versions_that_expire_during_a_look_are_no_damage(name, store, clock):
    """S63: another publisher deletes them once a log start offset has risen."""
    listed = Listed(store)
    log, other = Log.create(listed, 1, clock=clock), None
    log.append([{"key": key, "value": "1", "timestamp": 1} for key in "abc"])
    other = Log.open(store, clock=clock)
    other.publish(name)
    other.append([{"key": "d", "value": "1", "timestamp": 1}])
    other.publish(name)

    def expire():
        other.delete_records({0: 1})
        other.publish(name)

    listed.then = expire
    assert log.publish(name).published is False
    assert len(READERS[name][0](store)[0]) == 3


def log_versions(store, name):
    folder = {"delta": "_delta_log/", "iceberg": "metadata/v"}[name]
    found = [f for f in store.list(folder) if f.path.endswith(".json")]
    return len(found) + READERS[name][1]
