"""Many commits, several handles: snapshots, old versions, races."""

import threading

import pytest

from clog.storage import CommitConflictError, CommitStateUnknownError
from clog.storage.errors import CorruptionError, StoreUnavailableError
from clog.storage.format import documents
from clog.storage.format.commits import Edit, read_commit
from clog.storage.store.contract import StoreRefusedError, WrappingStore
from clog_testing.crash import copy_of, inside
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log
from clog_testing.model import rows_in

COMMIT = "*/commits/*"


def put(log, value, partition=0):
    return log.append([{"key": "k", "value": str(value)}], partition=partition)


@pytest.mark.nightly
def test_old_versions_read_as_they_were(make_log, open_log, store):
    """Every version, through snapshots and pages, shows the state at its time."""
    log = make_log(partitions=2, config={"segment.chunks": 3})
    then = {}
    for i in range(120):
        put(log, i, partition=i % 2)
        if i % 10 == 9:
            log.delete_records({i // 10 % 2: i // 4})
        then[log.handle.tip.version] = rows_in(log.read())
    cold = open_log()
    assert rows_in(cold.read()) == rows_in(log.read())
    for version, rows in then.items():
        manifest = cold.handle.manifest_at(version)
        ends, starts = manifest.head.partitions.end, manifest.head.partitions.start
        assert [(p, o) for p, o, _ in rows] == [
            (p, o) for p in range(2) for o in range(starts[p], ends[p])
        ]
        assert {v: cold.table(at=v).version for v in (0, 57)} == {0: 0, 57: 57}
    assert log.handle.tip.head.snapshot.version > 0
    check_log(store, every_version=False)


@pytest.mark.nightly
def test_snapshots_share_pages(make_log, open_log, store):
    """Sealed segments move to pages, whose number stays small; a cold reader finds them."""
    log = make_log(config={"segment.chunks": 1})
    for i in range(700):
        put(log, i)
    pages = log.handle.tip.head.snapshot and list(inside(store).list(documents.PAGES))
    assert 1 <= len(pages) <= 8
    assert [row[2].value for row in rows_in(open_log().read())] == [
        str(i).encode() for i in range(700)
    ]
    assert len(open_log().segments(0)) == 700
    check_log(store, every_version=False)


@pytest.mark.parametrize("behind", [1, 5, 8, 9, 40])
def test_a_handle_catches_up(make_log, open_log, behind):
    """However far behind: it walks a little, then searches; its manifest equals a cold one's."""
    log, late = make_log(config={"segment.chunks": 4}), open_log()
    put(late, -1)
    late.segments(0)
    for i in range(behind):
        put(log, i)
    assert late.version == behind + 1
    assert late.segments(0) == open_log().segments(0)
    assert rows_in(late.read()) == rows_in(log.read())


def test_appends_never_conflict(make_log, open_log, store):
    """Two handles that append in turn lose races and get other offsets; nothing is lost."""
    first = make_log(partitions=2)
    second = open_log()
    for i in range(20):
        put((first, second)[i % 2], i, partition=i % 2)
    assert first.end_offsets() == {0: 10, 1: 10}
    assert [row[2].value for row in rows_in(first.read(partition=1))] == [
        str(i).encode() for i in range(1, 20, 2)
    ]
    check_log(store)


def test_other_changes_race_with_appends(make_log, open_log, store):
    """alter, roll and deleteRecords are decided again from the commit that came first."""
    log, other = make_log(), open_log()
    put(log, 0)
    assert other.delete_records({0: 1}) == {0: 1}
    put(log, 1)
    assert other.roll() == [0]
    put(log, 2)
    other.alter({"segment.chunks": 1})
    put(log, 3)
    assert [s.base_offset for s in log.segments(0)] == [0, 2, 3]
    assert log.start_offsets() == {0: 1}
    check_log(store)


@pytest.mark.parametrize("losses", [1, 3, 12])
def test_lost_races_are_run_again(make_log, open_log, store, losses):
    """Another commit at the worst moment, several times: ours follows all of them."""
    log = make_log()
    rules = Fault(
        FaultKind.MEANWHILE, "create", COMMIT, times=losses, run=lambda: put(log, "theirs")
    )
    other = open_log(FaultyStore(store, Faults(rules)))
    assert put(other, "ours").offsets == {0: (losses, losses + 1)}
    assert [row[2].value for row in rows_in(log.read())] == [b"theirs"] * losses + [b"ours"]


@pytest.mark.nightly
def test_who_always_loses_gives_up(make_log, open_log, store):
    """After a bounded number of lost races the error says so; nothing is committed."""
    log = make_log()
    rules = Fault(FaultKind.MEANWHILE, "create", COMMIT, times=10_000, run=lambda: put(log, "x"))
    other = open_log(FaultyStore(store, Faults(rules)))
    with pytest.raises(CommitConflictError, match=r"append on .* lost 200 commit races"):
        put(other, "ours")
    assert b"ours" not in [row[2].value for row in rows_in(log.read())]


@pytest.mark.parametrize("kind", [FaultKind.FAIL_AFTER, FaultKind.REPEAT, FaultKind.REFUSE_AFTER])
def test_a_lost_reply_is_recognised(make_log, open_log, store, kind):
    """A create that succeeded without saying so is read back: no second commit, no conflict; even
    if the client was denied its own repeat.
    """
    log = make_log()
    other = open_log(FaultyStore(store, Faults(Fault(kind, "create", COMMIT))))
    assert put(other, 1).version == 1
    assert log.version == 1


def test_a_create_that_failed_is_made_again(make_log, open_log, store):
    """The same version, the same bytes, until it is known whose it is."""
    log = make_log()
    faulty = FaultyStore(store, Faults(Fault(FaultKind.FAIL_BEFORE, "create", COMMIT, times=3)))
    assert put(open_log(faulty), 1).version == 1
    created = [c.path for c in faulty.calls if c.operation == "create"]
    assert [path.partition("/commits/")[2] for path in created] == [f"{1:020d}.json"] * 4
    assert log.version == 1


def test_what_cannot_be_found_out_is_said(make_log, open_log, store):
    """A create without a reply, and no read either: the state is unknown, never a silent retry."""
    make_log()
    faults = Faults(
        Fault(FaultKind.FAIL_AFTER, "create", COMMIT, times=9),
        Fault(FaultKind.FAIL_BEFORE, "get", "*/commits/*1.json", times=99),
    )
    other = open_log(FaultyStore(store, Faults()))
    other.handle.standing.root.plan = faults
    with pytest.raises(CommitStateUnknownError, match=r"the outcome of commit 1 of .* is unknown"):
        put(other, 1)
    assert open_log().end_offsets() == {0: 1}


def test_an_unreadable_winner_is_no_conflict(make_log, open_log, store):
    """The file at our version cannot be read: it is unknown whether it is ours."""
    make_log()
    inside(store).put("commits/00000000000000000001.json", b"torn")
    other = FaultyStore(store)
    with pytest.raises(CorruptionError, match="not a clog document"):
        open_log(other)
    log = open_log_at_zero(open_log, store)
    with pytest.raises(CommitStateUnknownError, match="not a clog document"):
        put(log, 1)


def open_log_at_zero(open_log, store):
    """A handle that opened before version 1 was there."""
    path = "commits/00000000000000000001.json"
    torn = inside(store).get(path)
    inside(store).delete(path)
    log = open_log()
    inside(store).put(path, torn)
    return log


def test_a_block_that_cannot_be_read_leaves_the_state_unknown(make_log, open_log, store):
    """K5: the commit exists; a caller that got an error about damage instead would repeat it."""

    class Torn(WrappingStore):
        torn = False

        def get(self, path, start=None, end=None):
            if self.torn and f"/{documents.BLOCKS}" in path:
                return b"torn"
            return super().get(path, start, end)

    make_log()
    torn = Torn(store)
    log = open_log(torn)
    torn.torn = True
    with pytest.raises(CommitStateUnknownError, match=r"is unknown: .* not a clog document"):
        put(log, 1)
    assert open_log().end_offsets() == {0: 1}


def test_a_damaged_snapshot_stops_nobody_who_appends(make_log, open_log, store, monkeypatch):
    """K3: failure is harmless, even of the snapshot from which the next one would continue."""
    monkeypatch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 100)
    log = make_log()
    while log.handle.tip.head.snapshot is None:
        put(log, 1)
    path = documents.snapshot_path(log.handle.tip.head.snapshot.version)
    data = inside(store).get(path)
    inside(store).put(path, data[:-1])
    late = open_log()
    for i in range(60):
        put(late, i)
    with pytest.raises(CorruptionError, match=path):
        open_log().segments(0)
    inside(store).put(path, data)
    check_log(store, every_version=False)
    assert open_log().end_offsets() == {0: log.version}


class TwoStepStore(WrappingStore):
    """A server that checks first and then writes: two simultaneous creates both succeed."""

    create_is_proven = False

    def __init__(self, inner, meanwhile):
        super().__init__(inner)
        self.meanwhile = meanwhile

    def get(self, path, start=None, end=None):
        if f"/{documents.BLOCKS}" in path and self.meanwhile:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().get(path, start, end)


def test_a_commit_that_was_overwritten_is_made_again(make_log, open_log, store):
    """K5: if the exclusive create is only probed, our create is read back: the other's commit is
    there, so ours follows it.
    """
    log = make_log()
    twin = copy_of(store)
    put(open_log(twin), "theirs")
    path = documents.commit_path(1)

    def overwrite():
        for found in inside(twin).list("data/"):
            inside(store).put(found.path, inside(twin).get(found.path))
        inside(store).put(path, inside(twin).get(path))

    weak = open_log(TwoStepStore(store, None))
    weak.handle.refresh()
    weak.handle.standing.root.meanwhile = overwrite
    assert put(weak, "ours").version == 2
    assert [row[2].value for row in rows_in(log.read())] == [b"theirs", b"ours"]
    check_log(store)


def test_denied_writes_fail_at_once(make_log, open_log, store):
    """Permission denied, with certainty: nothing was written, is unknown, or is tried again."""
    log = make_log()
    faulty = FaultyStore(store, Faults(Fault(FaultKind.REFUSE, "create", COMMIT, times=99)))
    with pytest.raises(StoreRefusedError):
        put(open_log(faulty), 1)
    assert sum(c.operation == "create" for c in faulty.calls) == 1
    assert log.version == 0


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("*/latest", FaultKind.FAIL_BEFORE),
        ("*/snapshots/*", FaultKind.FAIL_BEFORE),
        ("*/snapshots/*", FaultKind.CONFLICT),
        ("*/pages/*", FaultKind.FAIL_BEFORE),
    ],
)
def test_hints_and_snapshots_may_fail(make_log, open_log, store, path, kind):
    """K3 and K6 are not part of the commit: it continues without them."""
    make_log(config={"segment.chunks": 1})
    failing = Fault(kind, path=path, operation="[pc]*", times=9999)
    other = open_log(FaultyStore(store, Faults(failing)))
    for i in range(80):
        assert put(other, i).version == i + 1
    assert open_log().version == 80
    check_log(store, every_version=False)


def test_objects_that_cannot_be_written_commit_nothing(make_log, open_log, store):
    log = make_log()
    failing = Fault(FaultKind.FAIL_BEFORE, "put", "*/data/*", times=99)
    with pytest.raises(StoreUnavailableError):
        put(open_log(FaultyStore(store, Faults(failing))), 1)
    assert log.version == 0


def test_large_edits_are_documents_of_their_own(make_log, open_log, store, monkeypatch):
    """Above 1 MiB of JSON the edit is written first, and the commit refers to it."""
    monkeypatch.setattr("clog.storage.format.commits.INLINE_EDIT_BYTES_MAX", 1 << 10)
    log = make_log()
    long_name = "w" * 1024
    first = log.append([{"key": "a", "value": "1"}], producer=(long_name, 0))
    monkeypatch.setattr("clog.storage.format.commits.INLINE_EDIT_BYTES_MAX", 1 << 20)
    assert "edit_at" in read_commit(inside(store), 1).record.stored
    (edit,) = inside(store).list(documents.EDITS)
    assert edit.size_bytes > 1 << 10
    put(log, 2)
    cold = open_log()
    assert (
        cold.append([{"key": "a", "value": "1"}], producer=(long_name, 0)).offsets == first.offsets
    )
    assert rows_in(cold.read()) == rows_in(log.read())
    check_log(store)


@pytest.mark.nightly
def test_a_thousand_partitions(make_log, open_log, store):
    """An append over all of them is one object and one commit."""
    log = make_log(partitions=1000)
    for round_ in range(5):
        result = log.append(
            [{"key": str(i), "value": str(round_)} for i in range(1000)],
            partition=list(range(1000)),
        )
        assert result.version == len(list(inside(store).list(documents.DATA))) == round_ + 1
        assert result.offsets == dict.fromkeys(range(1000), (round_, round_ + 1))
    assert open_log().end_offsets() == dict.fromkeys(range(1000), 5)
    rows = rows_in(open_log().read())
    assert [(p, o) for p, o, _ in rows] == [(p, o) for p in range(1000) for o in range(5)]
    check_log(store)


def test_another_thread_reads_what_is_known_during_a_commit(make_log):
    """What a settled tip has needs neither a request nor the lock that a commit holds: it shows the
    version before, and who committed reads the new one.
    """
    log = make_log()
    put(log, 1)
    known, seen = log.handle.manifest(), []

    def prepare(tip, _time_ms):
        other = threading.Thread(target=lambda: seen.append(log.handle.manifest()), daemon=True)
        other.start()
        other.join(60)
        assert log.handle.manifest().version == tip.version
        return Edit()

    made = log.handle.commit(prepare, operation="nothing")
    assert seen == [known]
    assert log.handle.manifest().version == made.version == known.version + 1
