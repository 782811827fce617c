"""`Log.upgrade`: features that a log gets after it was created (FORMAT.md §0)."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from clog.storage import InvalidInputError, UnsupportedFormatError
from clog.storage import administration as creating
from clog.storage.commit import committer
from clog.storage.diagnostics.verify import verify_log
from clog.storage.format import log_info as registry
from clog.storage.format.commits import edit_of, read_commit
from clog.storage.format.log_info import DEAD_ROWS, Feature, FeatureNames
from clog_testing.counting import CountingStore

ONE = [{"key": "k", "value": "v"}]


@pytest.fixture
def older(make_log, monkeypatch):
    """A log as it was created before there were features."""
    with monkeypatch.context() as m:
        m.setattr(creating, "NEW_LOG_FEATURES", FeatureNames())
        return make_log()


@pytest.fixture
def ink(monkeypatch):
    """A feature of writers that a later release may have."""
    feature = Feature("ink", "4", False, "colours")
    monkeypatch.setitem(registry.FEATURES, "ink", feature)


def state_of(log, name):
    """The state of one feature."""
    (found,) = [f.state for f in log.upgrade() if f.name == name]
    return found


def features_of(log):
    return log.handle.refresh().head.log.features


def test_a_feature_is_added_by_one_commit_for_good(older, open_log):
    """The head has it from then on, and so has every commit after it."""
    older.append(ONE)
    assert state_of(older, DEAD_ROWS) == "off"
    features = older.upgrade([DEAD_ROWS])
    assert [f.state for f in features if f.name == DEAD_ROWS] == ["on"]
    assert older.version == 2
    commit = read_commit(older.handle.store, 2)
    assert (commit.record.operation, features_of(older)) == ("upgrade", FeatureNames((DEAD_ROWS,)))
    assert edit_of(older.handle.store, commit.record).features == FeatureNames((DEAD_ROWS,))
    older.append(ONE)
    assert features_of(open_log()) == FeatureNames((DEAD_ROWS,))


def test_a_feature_that_is_there_costs_no_commit(make_log):
    """Repeating it changes nothing; neither does listing."""
    log = make_log()
    assert [f.name for f in log.upgrade([DEAD_ROWS, DEAD_ROWS]) if f.state == "on"] == [DEAD_ROWS]
    log.upgrade()
    assert log.version == 0


def test_an_open_handle_learns_of_it(older, open_log):
    """FORMAT.md §0: at the next check, and when it loses a race."""
    other, loser = open_log(), open_log()
    older.upgrade([DEAD_ROWS])
    assert features_of(other).read == (DEAD_ROWS,)
    assert loser.append(ONE).version == 2
    assert loser.handle.tip.head.log.features.read == (DEAD_ROWS,)


def test_it_stays_through_snapshots_and_replays(older, open_log, store, ink, monkeypatch):
    """The manifest from the snapshot, and that from all edits, have the same features."""
    monkeypatch.setattr(committer, "SNAPSHOT_EDIT_BYTES_MIN", 100)
    for n in range(3):
        older.append([{"key": f"{n}.{i}", "value": "x"} for i in range(300)])
    older.upgrade([DEAD_ROWS, "ink"])
    for _ in range(8):
        older.append(ONE)
    again = open_log()
    assert again.handle.tip.head.snapshot is not None
    assert again.handle.manifest().head.log.features == FeatureNames((DEAD_ROWS,), ("ink",))
    assert list(verify_log(store).findings) == []
    assert again.table(at=2).to_arrow().num_rows == 600


def test_an_upgrade_is_one_commit_and_an_upgraded_log_costs_what_it_did(older, open_log, store):
    """COMMIT.md §7: like `alter`; then an append makes the same requests as before."""
    counting = CountingStore(store)
    log = open_log(counting)

    def cost(act):
        with counting.count() as requests:
            act()
        return dict(requests)

    log.append(ONE)
    plain = cost(lambda: log.append(ONE))
    assert cost(lambda: log.upgrade([DEAD_ROWS])) == {"get": 2, "create": 1}
    log.append(ONE)  # The fourth version also moves the hint.
    assert cost(lambda: log.append(ONE)) == plain


def test_upgrades_that_race_add_both(older, open_log, ink):
    """The second one adds what is still missing to what the first has added."""
    other = open_log()
    older.upgrade([DEAD_ROWS])
    other.upgrade(["ink", DEAD_ROWS])
    assert features_of(older) == FeatureNames((DEAD_ROWS,), ("ink",))
    assert edit_of(older.handle.store, read_commit(older.handle.store, 2).record).features == (
        FeatureNames((), ("ink",))
    )


def test_upgrades_beside_appends_lose_neither(older, open_log, store):
    """FORMAT.md §0: each feature that can be added, by two at the same time, while others
    append. Once one of the features lets a commit combine others, an append may share one.
    """
    names = [f.name for f in older.upgrade() if f.state == "off"]

    def append(who):
        log = open_log()
        return [log.append(ONE, producer=(who, n)) for n in range(6)]

    def upgrade(names):
        log = open_log()
        return [log.upgrade([name]) for name in names]

    with ThreadPoolExecutor(4) as threads:
        appends = [threads.submit(append, who) for who in ("a", "b")]
        upgrades = [threads.submit(upgrade, each) for each in (names, names[::-1])]
    results = [result for done in appends for result in done.result()]
    assert sorted(result.offsets[0] for result in results) == [(n, n + 1) for n in range(12)]
    assert all(done.exception() is None for done in upgrades)
    features = features_of(older)
    assert sorted((*features.read, *features.write)) == sorted(names)
    inner = older.handle.store
    made = {v: read_commit(inner, v).record.operation for v in range(1, older.version + 1)}
    assert list(made.values()).count("upgrade") == len(names)
    upgraded = {v for v, operation in made.items() if operation == "upgrade"}
    assert made.keys() == upgraded | {result.version for result in results}
    assert sum(older.end_offsets().values()) == 12
    assert list(verify_log(store).findings) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dead_row", "unknown feature 'dead_row': did you mean 'dead-rows'"),
        ("colour", "unknown feature 'colour': known features are"),
        ("quill", "the feature 'quill' is specified but not implemented"),
        ("schema", r"was created without 'schema'.*create another log with it and copy"),
    ],
)
def test_what_cannot_be_added_is_refused(older, monkeypatch, name, message):
    """With the reason, and nothing is committed, not even what could be added."""
    later = Feature("quill", "4", False, "", is_built=False)
    first = Feature("schema", "4", True, "", at_creation=True)
    for feature in (later, first):
        monkeypatch.setitem(registry.FEATURES, feature.name, feature)
    assert (state_of(older, "quill"), state_of(older, "schema")) == ("specified", "new logs")
    with pytest.raises(InvalidInputError, match=message):
        older.upgrade([DEAD_ROWS, name])
    assert older.version == 0


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
    for change in (lambda: log.append(ONE), lambda: log.upgrade([DEAD_ROWS])):
        with pytest.raises(UnsupportedFormatError, match=r"\['ink'\], which this clog can read"):
            change()


def test_an_open_handle_of_an_older_release_stops(older, open_log, monkeypatch):
    """FORMAT.md §0: an unknown feature of readers ends reads and writes, by a check as by a lost
    race, and nothing is committed.
    """
    reader, writer = open_log(), open_log()
    feature = Feature("quill", "4", True, "")
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
        read_commit(older.handle.store, 2)
