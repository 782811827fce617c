"""What a log keeps of the rows of an id's last transaction, for a repetition (H-T9)."""

import pytest

from clog.storage import Log, ManualClock, NotFoundError
from clog.storage.env import SeededIds
from clog.storage.format.transactions import TRANSACTION
from clog.storage.transactions.several import found_part
from clog_testing.crash import discard, memory_store
from clog_testing.invariants import check_log


@pytest.fixture
def logs():
    """The home, and another."""
    clock = ManualClock(now_ms=1_000_000)
    stores = [memory_store() for _ in range(2)]
    yield [Log.create(s, 1, clock=clock, ids=SeededIds(i)) for i, s in enumerate(stores)]
    for store in stores:
        discard(store)


def kept(log, job="job"):
    log.handle.refresh()
    entry = log.handle.find_writer(TRANSACTION, job)
    return entry.sequence, entry.content


def commit(home, sequence, content, *others):
    t = home.transaction("job", sequence=sequence)
    t.append([{"key": "k", "value": str(sequence)}])
    for log in others:
        t.append([{"key": "k", "value": f"other {sequence}"}] * 2, log=log)
    t.note_content(content)
    t.commit()
    return t


def test_it_is_that_of_the_last_committed_one(logs):
    """It stays when the id is taken over, when others are prepared or aborted, and only changes
    with the next commit.
    """
    home, other = logs
    commit(home, 3, "aa")
    assert kept(home) == (3, "aa")
    again = Log.open(home.handle.standing.root, clock=home.handle.clock, ids=SeededIds(9))
    t = again.transaction("job", sequence=4)
    t.note_content("bb")
    t.append([{"key": "k", "value": "v"}], log=other)
    t.abort()
    assert kept(home) == (3, "aa")
    t = again.transaction("job", visible=True)
    t.append([{"key": "k", "value": "v"}])
    assert kept(home) == (3, "aa")
    t.abort()
    commit(again, 5, "cc", other)
    assert kept(home) == (5, "cc")
    for log in logs:
        check_log(log.handle.standing.root)


def test_a_participant_says_where_its_rows_are(logs):
    """By the version and the offsets that prepared them, whatever was appended since; none if it
    took no part; not if it knows of a later transaction.
    """
    home, other = logs
    t = commit(home, 0, "aa", other)
    name = t._work.ours
    other.append([{"key": "plain", "value": "v"}])
    version, offsets = found_part(other.handle, name)
    assert offsets == {0: (0, 2)}
    assert other.handle.manifest_at(version).head.partitions.end == (2,)
    t = commit(home, 1, "bb")
    assert found_part(other.handle, t._work.ours)[1] == {}
    t = commit(home, 2, "cc", other)
    with pytest.raises(NotFoundError, match="has a later transaction"):
        found_part(other.handle, name)
    assert found_part(other.handle, t._work.ours)[1] == {0: (4, 6)}
