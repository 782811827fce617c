"""Stores of the test's log, closed at the end, and what they do under which lock."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from clog.storage import StateStore
from clog.storage.env import SeededIds


@pytest.fixture
def open_store(store, clock, tmp_path):
    """Opens a store of the test's log, as a process of its own would."""
    opened = []
    seeds = iter(range(500, 1000))

    def make(on=None, folder=tmp_path / "cache", id="app", **options):
        ids = SeededIds(next(seeds))
        opened.append(StateStore(on or store, folder, id, clock=clock, ids=ids, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def noting():
    """Wraps a call to note each time whether another thread could take a lock."""

    def is_free(lock):
        if is_mine := lock.acquire(blocking=False):
            lock.release()
        return is_mine

    def make(call, lock, notes):
        def noted(*args):
            with ThreadPoolExecutor(1) as threads:
                notes.append(threads.submit(is_free, lock).result())
            return call(*args)

        return noted

    return make


@pytest.fixture
def no_room():
    """A stand-in for whatever writes to a full disk."""

    def write(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return write
