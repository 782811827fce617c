"""A forked child: locks of other threads are free, and their unfinished work is forgotten."""

import os
import signal
import threading

import pytest

from clog.storage import Log, StateTable, env
from clog.storage.store import open_store
from clog.storage.store.contract import WrappingStore


def in_child(act):
    """Runs in a forked child, which has ten seconds; returns what it printed with `repr`."""
    ours, its = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            os.write(its, repr(act()).encode())
        except BaseException as e:
            os.write(its, repr(e).encode())
        finally:
            os._exit(0)
    os.close(its)
    with os.fdopen(ours) as file:
        said = file.read()
    _, status = os.waitpid(child, 0)
    assert not os.WIFSIGNALED(status), "the child hung"
    return said


class Slow(WrappingStore):
    """A store that, on request, stops in each create until it may continue."""

    stands = None
    goes_on = None

    def create(self, path, data):
        if self.stands is not None and threading.current_thread() is not threading.main_thread():
            self.stands.set()
            self.goes_on.wait(20)
        super().create(path, data)


def test_a_lock_that_a_thread_holds_is_free_in_a_child():
    """And its owner continues as if nothing had happened."""
    lock = env.lock()
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with lock:
            entered.set()
            leave.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait(20)

    def enter():
        with lock, lock:
            return "free"

    assert in_child(enter) == "'free'"
    leave.set()
    thread.join()


def test_a_child_uses_a_log_while_a_thread_appends(tmp_path):
    """In the parent, a thread is in the middle of its commit; the child reads and appends, and sees
    everything committed.
    """
    store = Slow(open_store(str(tmp_path)))
    log = Log.create(store, 1)
    log.append([{"key": "a", "value": "1"}])
    assert log.table().get("a") == b"1"
    store.stands, store.goes_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=log.append, args=([{"key": "b", "value": "2"}],))
    thread.start()
    store.stands.wait(20)

    def use():
        log.append([{"key": "c", "value": "3"}])
        log.append([{"key": "d", "value": "4"}])
        return log.version, log.table().get("d"), sum(b.num_rows for b in log.read())

    assert in_child(use) == "(3, b'4', 3)"
    store.goes_on.set()
    thread.join()
    assert (log.version, sum(b.num_rows for b in log.read())) == (4, 4)


def test_a_child_asks_a_state_table(tmp_path):
    """Through a separate connection."""
    log = Log.create(str(tmp_path / "log"), 1)
    log.append([{"key": "a", "value": "1"}])
    with StateTable(log.url, cache_dir=tmp_path / "cache") as table:
        assert in_child(lambda: table.get("a")) == "b'1'"
        assert table.get("a") == b"1"


@pytest.fixture(autouse=True)
def _no_warnings():
    """Python warns that threads and forks do not mix, which is what this tests."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
