"""Features that a log gets after it was created: those of each log, with the first commit of this
release, and those that `Log.upgrade` adds (FORMAT.md §0).
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from clog.storage import InvalidInputError, UnsupportedFormatError
from clog.storage.commit import committer
from clog.storage.cuts import name_cut
from clog.storage.diagnostics.verify import verify_log
from clog.storage.format import log_info as registry
from clog.storage.format.commits import edit_of, read_commit
from clog.storage.format.log_info import (
    DEAD_ROWS,
    ERASURES,
    OF_EACH_LOG,
    TRANSACTIONS,
    Feature,
    FeatureNames,
)
from clog_testing.counting import CountingStore
from clog_testing.older import as_before

ONE = [{"key": "k", "value": "v"}]


@pytest.fixture
def older(make_log):
    """A log as it was created before there were features, with a record."""
    with as_before():
        log = make_log()
        log.append(ONE)
    return log


@pytest.fixture
def ink(monkeypatch):
    """A feature of writers that a later release may have."""
    feature = Feature("ink", "4", False, "colours", is_choice=True)
    monkeypatch.setitem(registry.FEATURES, "ink", feature)


def state_of(log, name):
    """The state of one feature."""
    (found,) = [f.state for f in log.upgrade() if f.name == name]
    return found


def features_of(log):
    return log.handle.refresh().head.log.features


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.append(ONE),
        lambda log: log.append(ONE, producer=("p", 1)),
        lambda log: log.alter({"segment.ms": 1_000}),
        lambda log: log.delete_records({0: 1}),
        lambda log: log.roll(),
        lambda log: log.erase(["k"]),
        lambda log: log.publish("delta"),
        lambda log: name_cut(log.handle, "now", 60_000),
        lambda log: log.transaction("t"),
        lambda log: log.transaction("t", visible=True).append(ONE),
        lambda log: log.upgrade([TRANSACTIONS]),
    ],
    ids=lambda _: "",
)
def test_the_first_commit_adds_what_each_log_has(older, change, store):
    """FORMAT.md §0: in the same commit, whoever makes it; no later one names a feature again, but
    one of its owner's choice.
    """
    assert features_of(older) == FeatureNames()
    change(older)
    edits = [
        edit_of(older.handle.store, read_commit(older.handle.store, v).record)
        for v in range(2, older.handle.refresh().version + 1)
    ]
    first, *more = [edit.features for edit in edits]
    named = {*first.read, *first.write}
    assert named - {ERASURES} == {*OF_EACH_LOG.read, *OF_EACH_LOG.write}
    assert set(more) <= {None}
    assert list(verify_log(store).findings) == []


def test_a_feature_is_added_by_one_commit_for_good(older, open_log):
    """The head has it from then on, and so has every commit after it."""
    assert state_of(older, DEAD_ROWS) == state_of(older, ERASURES) == "off"
    features = older.upgrade([DEAD_ROWS, ERASURES])
    assert [f.state for f in features if f.name == ERASURES] == ["on"]
    assert older.version == 2
    assert read_commit(older.handle.store, 2).record.operation == "upgrade"
    whole = OF_EACH_LOG.with_added(FeatureNames((), (ERASURES,)))
    assert {*features_of(older).write} == {*whole.write}
    older.append(ONE)
    assert features_of(open_log()) == features_of(older)


def test_a_feature_that_is_there_costs_no_commit(make_log):
    """Repeating it changes nothing; neither does listing."""
    log = make_log()
    on = [f.name for f in log.upgrade([DEAD_ROWS, DEAD_ROWS]) if f.state == "on"]
    assert sorted(on) == sorted((*OF_EACH_LOG.read, *OF_EACH_LOG.write))
    log.upgrade()
    assert log.version == 0


def test_an_open_handle_learns_of_it(older, open_log):
    """FORMAT.md §0: at the next check, and when it loses a race."""
    other, loser = open_log(), open_log()
    older.append(ONE)
    assert features_of(other) == OF_EACH_LOG
    assert loser.append(ONE).version == 3
    assert loser.handle.tip.head.log.features == OF_EACH_LOG


def test_it_stays_through_snapshots_and_replays(older, open_log, store, ink, monkeypatch):
    """The manifest from the snapshot, and that from all edits, have the same features."""
    monkeypatch.setattr(committer, "SNAPSHOT_EDIT_BYTES_MIN", 100)
    with as_before():
        for n in range(2):
            older.append([{"key": f"{n}.{i}", "value": "x"} for i in range(300)])
    older.upgrade(["ink"])
    for _ in range(8):
        older.append(ONE)
    again = open_log()
    assert again.handle.tip.head.snapshot is not None
    whole = FeatureNames((), ("ink",)).with_added(OF_EACH_LOG)
    assert again.handle.manifest().head.log.features == whole
    assert list(verify_log(store).findings) == []
    assert again.table(at=3).to_arrow().num_rows == 601


def test_the_commit_that_adds_them_costs_what_any_does(older, open_log, store):
    """COMMIT.md §7: an append to a log of an earlier release makes the same requests."""
    counting = CountingStore(store)
    log = open_log(counting)

    def cost():
        with counting.count() as requests:
            log.append(ONE)
        return dict(requests)

    first = cost()
    assert features_of(log) == OF_EACH_LOG
    cost()
    cost()  # The fourth version also moves the hint.
    assert first == cost()


def test_upgrades_that_race_add_both(older, open_log, ink):
    """The second one adds what is still missing to what the first has added."""
    other = open_log()
    older.upgrade([DEAD_ROWS])
    other.upgrade(["ink", DEAD_ROWS])
    assert features_of(older) == OF_EACH_LOG.with_added(FeatureNames((), ("ink",)))
    assert edit_of(older.handle.store, read_commit(older.handle.store, 3).record).features == (
        FeatureNames((), ("ink",))
    )


def test_first_commits_that_race_lose_nothing(older, open_log, store):
    """FORMAT.md §0: several writers find the older log at once; one of them adds the features."""

    def append(who):
        log = open_log()
        return [log.append(ONE, producer=(who, n)) for n in range(6)]

    with ThreadPoolExecutor(3) as threads:
        appends = [threads.submit(append, who) for who in "abc"]
    results = [result for done in appends for result in done.result()]
    assert sorted(result.offsets[0] for result in results) == [(n, n + 1) for n in range(1, 19)]
    assert features_of(older) == OF_EACH_LOG
    inner = older.handle.store
    commits = [read_commit(inner, v) for v in range(2, older.version + 1)]
    assert [c.version for c in commits if edit_of(inner, c.record).features] == [2]
    assert sum(older.end_offsets().values()) == 19
    assert list(verify_log(store).findings) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dead_row", "unknown feature 'dead_row': did you mean 'dead-rows'"),
        ("colour", "unknown feature 'colour': known features are"),
        ("schema", r"was created without 'schema'.*create another log with it and copy"),
    ],
)
def test_what_cannot_be_added_is_refused(older, monkeypatch, name, message):
    """With the reason, and nothing is committed, not even what could be added."""
    first = Feature("schema", "4", True, "", is_choice=True, at_creation=True)
    monkeypatch.setitem(registry.FEATURES, first.name, first)
    assert state_of(older, "schema") == "new logs"
    with pytest.raises(InvalidInputError, match=message):
        older.upgrade([DEAD_ROWS, name])
    assert older.version == 1


def test_a_feature_of_writers_of_a_later_release_is_shown(older, open_log, ink, monkeypatch):
    """A release that does not know it reads on, gets its name, and can neither write nor add
    another.
    """
    older.upgrade(["ink"])
    older.append(ONE)
    monkeypatch.delitem(registry.FEATURES, "ink")
    log = open_log()
    assert state_of(log, "ink") == "unknown"
    assert log.table().to_arrow().num_rows == 1
    for change in (lambda: log.append(ONE), lambda: log.upgrade([ERASURES])):
        with pytest.raises(UnsupportedFormatError, match=r"\['ink'\], which this clog can read"):
            change()


def test_an_open_handle_of_an_older_release_stops(older, open_log, monkeypatch):
    """FORMAT.md §0: an unknown feature of readers ends reads and writes, by a check as by a lost
    race, and nothing is committed.
    """
    reader, writer = open_log(), open_log()
    feature = Feature("quill", "4", True, "", is_choice=True)
    with monkeypatch.context() as m:
        m.setitem(registry.FEATURES, "quill", feature)
        older.upgrade(["quill"])
    for call in (
        lambda: writer.append(ONE),
        reader.end_offsets,
        lambda: reader.table().to_arrow().num_rows,
    ):
        with pytest.raises(UnsupportedFormatError, match=r"\['quill'\].*upgrade clog"):
            call()
    with pytest.raises(FileNotFoundError):
        read_commit(older.handle.store, 3)
