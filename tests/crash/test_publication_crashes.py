"""Crash enumeration of publishing (COMMIT.md §10): every call of the store, before and after.

Whatever is left, the view is the table at the version that it states, or is not there yet; no
object is missing that a version within its retention names; and who publishes next makes it whole.
"""

import pytest

from clog.cleaner import Cleaner
from clog.storage import ClogError, Log, ManualClock
from clog.storage.env import SeededIds
from clog.storage.format.commits import Edit, Pin
from clog_testing.crash import crash_runs, discard, unlike
from clog_testing.invariants import check_log
from clog_testing.published import (
    delta_adds,
    delta_rows,
    delta_versions,
    iceberg_files,
    iceberg_rows,
    iceberg_versions,
)

pytest.importorskip("pyroaring")
pytest.importorskip("fastavro")
READERS = {"delta": (delta_rows, delta_versions), "iceberg": (iceberg_rows, iceberg_versions)}
FIRST = {"delta": 0, "iceberg": 1}
CONFIG = {"file.delete.delay.ms": "1000", "min.cleanable.dirty.ratio": "0"}


def reopen(store, seed, now_ms=5_000):
    return Log.open(store, clock=ManualClock(now_ms), ids=SeededIds(seed))


def put(log, numbers, value="1"):
    log.append([{"key": f"k{i}", "value": value, "timestamp": 1} for i in numbers])


def filled(store):
    """A log whose superseded rows need a file of vectors; never published."""
    log = Log.create(store, 1, CONFIG, clock=ManualClock(5_000), ids=SeededIds(1))
    put(log, range(2000))
    put(log, range(0, 2000, 3), "2")


def publish_and_delete(log, numbers, value, *, before):
    """Publishes it twice, records put between, and deletes what lies below an offset."""
    for name in READERS:
        log.publish(name)
    put(log, numbers, value)
    for name in READERS:
        log.publish(name)
    log.delete_records({0: before})


def published(store):
    """One that was published, and from which records were deleted since."""
    filled(store)
    publish_and_delete(reopen(store, 2), range(0, 2000, 7), "3", before=100)


def published_long(store):
    """One whose older versions were cleaned up before, up to a checkpoint."""
    published(store)
    publish_and_delete(reopen(store, 20), range(0, 2000, 11), "4", before=200)


LONG = pytest.param(published_long, marks=pytest.mark.nightly)


def rows_of(log, at):
    table = log.table(at=at).to_arrow(columns=["key", "value"])
    return sorted(
        zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True)
    )


def runs_of(act, begin, name):
    """All crashes of a publication or a withdrawal; Iceberg's files say at which URL they are."""
    copies = name != "iceberg"
    return unlike(crash_runs(begin, lambda store: act(reopen(store, 3), name), copies=copies))


def point_of(run, seen):
    """The name that COMMIT.md §10 gives to a crash at a call."""
    call = run.call
    if "/commits/" in call.path and call.operation == "create" and run.done:
        seen.add("pinned")
    is_of_view = call.path.startswith(("_delta_log/", "metadata/")) and ".probe." not in call.path
    if is_of_view and call.operation == "create" and run.done:
        return "C22"
    if is_of_view and call.operation in ("put", "delete"):
        return "C23"
    return "C21" if "pinned" in seen else "C20"


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("begin", [filled, published, LONG])
def test_every_crash_leaves_a_view_that_is_right(begin, name):
    """S63: and the next publication continues from what it finds."""
    points = set()
    rows_shown, versions = READERS[name]
    for run in runs_of(Log.publish, begin, name):
        store, seen = run.store, set()
        log = reopen(store, 4)
        if log.handle.tip.head.pins and begin is filled:
            seen.add("pinned")
        points.add(point_of(run, seen))
        check_log(store)
        for version in versions(store)[-1:]:
            rows, stated = rows_shown(store, version)
            # What was deleted since it was published may show until it is published anew.
            assert begin is not filled or rows == rows_of(log, stated), str(run)
        result = reopen(store, 5).publish(name)
        rows, stated = rows_shown(store)
        assert (rows, stated) == (rows_of(log, result.version), result.version), str(run)
        first = versions(store)[0]
        assert first == (FIRST[name] if begin is filled else result.table_version), str(run)
        pins = reopen(store, 6).handle.tip.head.pins[name]
        assert pins[-1].view <= result.table_version, str(run)
        again = reopen(store, 7).publish(name)
        assert (again.published, again.table_version) == (False, result.table_version), str(run)
        _check_what_the_cleaner_leaves(store, name)
        discard(store)
    is_tidied = begin is not filled or name == "iceberg"  # Which has a hint to write.
    assert points == {"C20", "C21", "C22"} | ({"C23"} if is_tidied else set())


def pinned(store):
    """One with a pin for a version of the view that nobody created."""
    filled(store)
    log = reopen(store, 2)
    for name in READERS:
        pin = Pin(FIRST[name], log.version, 5_000)
        edit = Edit(pins={name: (pin,)})
        log.handle.commit(lambda _tip, _ms, edit=edit: edit, operation="publish")


def point_of_withdrawal(run, seen):
    """The name that COMMIT.md §10 gives to a crash at a call of a withdrawal."""
    made = run.call.path if run.done and run.call.operation == "create" else ""
    if made.startswith(("_delta_log/", "metadata/")):
        return "C25"
    if "/commits/" in made:
        return "C26"
    return "C25" if seen else "C24"


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("begin", [pinned, published, LONG])
def test_every_crash_of_a_withdrawal_leaves_the_view_or_nothing_of_it(begin, name):
    """S63, S69: and the next one, or the cleaner, does the rest: no pin and no object stays."""
    points = set()
    versions = READERS[name][1]
    for run in runs_of(Log.withdraw, begin, name):
        store = run.store
        is_withdrawn = shows_nothing(store, name)
        points.add(point_of_withdrawal(run, is_withdrawn))
        check_log(store)
        if not is_withdrawn and versions(store):
            READERS[name][0](store)
        result = reopen(store, 4).withdraw(name)
        assert result.withdrawn is not is_withdrawn, str(run)
        assert shows_nothing(store, name), str(run)
        assert versions(store) == [result.table_version], str(run)
        for days in (1, 2):
            Cleaner(reopen(store, 5 + days, 5_000 + days * 86_400_000)).run_once()
        assert name not in reopen(store, 8).handle.tip.head.pins, str(run)
        assert versions(store) == [result.table_version], str(run)
        done = reopen(store, 9).publish(name)
        assert done.table_version == result.table_version + 1, str(run)
        assert READERS[name][0](store)[0] == rows_of(reopen(store, 10), done.version), str(run)
        discard(store)
    # Pins of versions that were there stay for the delay, so their going is no part of it.
    assert points == {"C24", "C25"} | ({"C26"} if begin is pinned else set())


def shows_nothing(store, name):
    """Whether the newest version says that it was withdrawn."""
    newest = READERS[name][1](store)[-1:]
    if not newest:
        return False
    path = {
        "delta": f"_delta_log/{newest[0]:020d}.json",
        "iceberg": f"metadata/v{newest[0]}.metadata.json",
    }[name]
    return b'withdrawn"' in store.get(path)


def _check_what_the_cleaner_leaves(store, name):
    """Passes and sweeps remove nothing that the view's newest version names."""
    log = reopen(store, 8)
    put(log, range(300), "4")
    log.roll()
    for days in (0, 3, 6):
        later = reopen(store, 9 + days, 5_000 + days * 86_400_000)
        try:
            Cleaner(later).run_once(force=True)
        except ClogError as e:
            raise AssertionError("the cleaner was in the way of itself") from e
    there = {found.path for found in store.list("")}
    files = delta_adds if name == "delta" else iceberg_files
    assert set(files(store)[0]) <= there
    READERS[name][0](store)
