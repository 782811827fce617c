"""The file that is given up when a disk is full."""

from functools import partial

import pytest

from clog.storage.commit.committer import (
    DATA_BYTES_MIN,
    RESERVE_BYTES,
    give_up_reserve,
    keep_reserve,
    with_reserve,
)
from clog.storage.store import open_store
from clog.storage.store.contract import StoreFullError


@pytest.fixture
def disk(tmp_path):
    return open_store(f"{tmp_path}/log")


@pytest.mark.parametrize(
    ("data_bytes", "size_bytes"),
    [
        (DATA_BYTES_MIN - 1, None),
        (DATA_BYTES_MIN, DATA_BYTES_MIN),
        (RESERVE_BYTES + 1, RESERVE_BYTES),
    ],
)
def test_it_is_as_large_as_the_data(disk, data_bytes, size_bytes):
    """Up to its bound, and so never more than the log takes."""
    keep_reserve(disk, lambda: data_bytes)
    assert next((f.size_bytes for f in disk.list("reserve")), None) == size_bytes


def test_it_grows_with_the_log(disk):
    """One that is half as large as it would be now stays."""
    sizes = []
    for data_bytes in (100_000, 200_000, 200_001, 10**9, 10**5):
        keep_reserve(disk, partial(int, data_bytes))
        sizes.extend(f.size_bytes for f in disk.list("reserve"))
    assert sizes == [100_000, 100_000, 200_001, RESERVE_BYTES, RESERVE_BYTES]


def test_the_log_is_not_summed_once_its_reserve_is_there(disk):
    """An idle round of the cleaner asks for it each time."""
    keep_reserve(disk, lambda: 10**9)
    keep_reserve(disk, lambda: pytest.fail("the log was summed"))


def test_other_stores_have_none(store):
    """Their space is not that of a disk."""
    keep_reserve(store, lambda: 10**9)
    assert not list(store.list(""))
    assert not give_up_reserve(store)


def test_a_step_is_done_once_more(disk):
    """And no more than that; without a reserve not even once."""
    keep_reserve(disk, lambda: 10**9)
    calls = []

    def step():
        calls.append(1)
        raise StoreFullError("no room")

    for count in (2, 3):
        with pytest.raises(StoreFullError):
            with_reserve(disk, step)
        assert len(calls) == count
