"""The kill switch dies at its point and at no other: a point that is missed would prove nothing."""

import signal
import subprocess
import sys

import pytest

from clog.storage.store import open_store
from clog_testing.killing import KillingStore, KillPoint, KillSwitch


class Died(BaseException):
    """Instead of the end of the test."""


def die():
    raise Died


def store_that_dies(tmp_path, *point, **more):
    switch = KillSwitch(KillPoint(*point, **more), kill=die)
    return KillingStore(open_store(f"{tmp_path}/log", {"fsync": False}), switch), switch


def test_it_dies_at_the_nth_call_that_matches(tmp_path):
    """Other operations and other paths do not count."""
    store, _ = store_that_dies(tmp_path, "after", "put", "data/*", nth=2)
    store.put("data/1", b"1")
    store.put("other/1", b"1")
    store.create("data/2", b"2")
    with pytest.raises(Died):
        store.put("data/3", b"3")
    assert store.inner.get("data/3") == b"3"


def test_before_means_that_nothing_is_done(tmp_path):
    """The object is not there afterwards."""
    store, _ = store_that_dies(tmp_path, "before", "create", "*")
    with pytest.raises(Died):
        store.create("a", b"1")
    assert list(store.inner.list("")) == []


def test_calls_that_fail_do_not_count(tmp_path):
    """A create that lost is not the commit; a read that finds nothing is a valid response."""
    store, _ = store_that_dies(tmp_path, "after", "create", "*", nth=2)
    store.create("a", b"1")
    with pytest.raises(FileExistsError):
        store.create("a", b"1")
    with pytest.raises(Died):
        store.create("b", b"1")
    reader, _ = store_that_dies(tmp_path, "after", "get", "absent")
    with pytest.raises(Died):
        reader.get("absent")


def test_since_makes_earlier_calls_not_count(tmp_path):
    """Counting starts after the first call of the other kind; places count as calls."""
    store, switch = store_that_dies(tmp_path, "after", "place", "here", since=("delete", "*"))
    switch.reached("place", "here")
    store.delete("a")
    switch.reached("place", "there")
    with pytest.raises(Died):
        switch.reached("place", "here")


def test_directly_makes_only_the_next_call_count(tmp_path):
    """The block is read after a commit's create, and when a log is opened anew."""
    point = {"since": ("put", "*"), "directly": True}
    store, _ = store_that_dies(tmp_path, "after", "get", "b", **point)
    store.put("b", b"1")
    store.delete("a")
    store.get("b")
    store.put("b", b"1")
    with pytest.raises(Died):
        store.get("b")


def test_all_operations_pass_through(tmp_path):
    """The store behaves as the one inside."""
    store, _ = store_that_dies(tmp_path, "before", "nothing", "*")
    store.put("a", b"123")
    assert store.get("a", 1, 2) == b"2"
    assert store.get_ranges("a", [(0, 1), (2, 3)]) == [b"1", b"3"]
    assert [found.path for found in store.list("")] == ["a"]


def test_the_process_is_killed_by_a_signal_it_cannot_catch():
    """SIGKILL: no `finally` runs."""
    code = (
        "from clog_testing.killing import KillPoint, KillSwitch\n"
        "try:\n    KillSwitch(KillPoint('after', 'place', 'x')).reached('place', 'x')\n"
        "finally:\n    print('still here', flush=True)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (run.returncode, run.stdout) == (-signal.SIGKILL, b"")
