"""Named cuts: versions of several logs that belong together (S74; FORMAT.md §20, COMMIT.md §12)."""

import pickle
from dataclasses import replace
from functools import partial
from itertools import count

import pytest

from clog.cleaner.cleaner import Cleaner
from clog.cleaner.duties.sweep import raise_oldest
from clog.storage import (
    AlreadyExistsError,
    CommitConflictError,
    InvalidInputError,
    Log,
    LogReplacedError,
    ManualClock,
    NotFoundError,
    StoreUnavailableError,
    VersionExpiredError,
    cuts,
    drop_snapshot,
    snapshot,
)
from clog.storage.cuts import (
    Shown,
    _consistent_logs,
    changed_since,
    consistent,
    cuts_of,
    drop_cut,
    name_cut,
)
from clog.storage.env import SeededIds
from clog_testing.clocked import ClockedStore
from clog_testing.counting import CountingStore
from clog_testing.crash import Folder, discard, memory_store
from clog_testing.delaying import DelayingStore
from clog_testing.faults import CrashedError, Fault, FaultKind, Faults, FaultyStore
from clog_testing.interrupts import Tracer, interrupted, tracing
from clog_testing.invariants import check_log
from clog_testing.older import as_before

DAY_MS = 86_400_000
NAMES = ("home", "left", "right")


class Disk:
    """Logs in the folders of one store, and handles on them."""

    def __init__(self, store):
        self.store = store
        self.clock = ManualClock(now_ms=1_000_000_000_000)
        self.clocked = ClockedStore(store, self.clock)
        self.seed = 100

    def create(self, name, partitions=1, **config):
        at = Folder(self.clocked, name)
        return self._log(Log.create(at, partitions, config, clock=self.clock))

    def open(self, name, store=None):
        self.seed += 1
        return self._log(
            Log.open(
                Folder(store or self.clocked, name), clock=self.clock, ids=SeededIds(self.seed)
            )
        )

    def reach(self, url):
        return Folder(self.clocked, url.rpartition("/")[2])

    def _log(self, log):
        log.handle.reach = self.reach
        return log

    def cut(self, name="c", keep_ms=None, **more):
        return name_cut(self.open("home").handle, name, keep_ms, **more)

    def values(self, cut):
        """What each log's table shows at a cut."""
        return [shown(self.open(name), cut) for name in NAMES if self.url(name) in cut.logs]

    def url(self, name):
        return f"{self.store.url}/{name}"


def shown(log, cut=None):
    return {row["key"]: row["value"] for row in log.table(at=cut).to_arrow().to_pylist()}


@pytest.fixture
def disk():
    store = memory_store()
    yield Disk(store)
    discard(store)


@pytest.fixture
def logs(disk):
    return [disk.create(name) for name in NAMES]


def put(logs, value, job="job", *, key="k"):
    with logs[0].transaction(job) as t:
        for log in logs:
            t.append([{"key": key, "value": value}], log=log)
    return t


def all_are(value):
    return [{b"k": value.encode()}] * 3


def test_a_cut_shows_all_logs_of_the_home(disk, logs):
    """S74: the home knows its members, however long ago each was written; a version of each."""
    put(logs, "a")
    cut = disk.cut("month-end")
    assert cut.logs == {log.url: log.version - 1 - (log is logs[0]) for log in logs}
    put(logs, "b")
    assert disk.values(cut) == all_are("a")
    assert [shown(log) for log in logs] == all_are("b")
    assert cuts_of(disk.open("home").handle) == [cut]
    assert disk.open("home").describe()["members"] == sorted(log.url for log in logs[1:])
    for name in NAMES:
        check_log(Folder(disk.clocked, name), every_version=False)


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.nightly), 3])
def test_a_transaction_at_any_moment_of_a_cut(disk, logs, every):
    """N2, N3: whenever another commits while the logs are looked at, all show it, or none does."""
    put(logs, "0")
    looking, made = FaultyStore(disk.clocked), ["0"]
    for moment in count(1, every):
        home = disk.open("home", looking)
        home.handle.reach = lambda url: Folder(looking, url.rpartition("/")[2])

        def run(value=str(moment)):
            made.append(value)
            put(logs, value)

        looking.plan = Faults(Fault(FaultKind.MEANWHILE, "get*", nth=moment, run=run))
        cut = name_cut(home.handle, "c", None)
        assert disk.values(cut) in [all_are(value) for value in made[-2:]], f"moment {moment}"
        drop_cut(home.handle, "c")
        if made[-1] != str(moment):
            break
    assert len(made) > 10


def test_a_home_without_members_is_cut_alone(disk):
    log = disk.create("home")
    log.append([{"key": "k", "value": "a"}])
    cut = disk.cut()
    assert cut.logs == {log.url: 1}


def test_a_cut_without_a_name_writes_nothing(disk, logs):
    """S74: it must be read soon; then its versions expire like any others."""
    put(logs, "a")
    versions = [log.version for log in logs]
    cut = name_cut(disk.open("home").handle, None)
    assert [log.version for log in logs] == versions
    assert (cut.name, list(cut.logs.values())) == (None, versions)
    put(logs, "b")
    assert disk.values(cut) == all_are("a")
    with pytest.raises(InvalidInputError, match="is only for a named cut"):
        name_cut(disk.open("home").handle, None, 5)
    dirty(disk, logs, 3)
    with pytest.raises(VersionExpiredError, match="a cut without a name of"):
        disk.values(cut)


def test_a_name_is_taken_once(disk, logs):
    put(logs, "a")
    cut = disk.cut("month-end")
    with pytest.raises(AlreadyExistsError, match="already has a cut 'month-end'"):
        disk.cut("month-end")
    drop_cut(disk.open("home").handle, "month-end")
    assert not any(log.handle.refresh().head.kept for log in logs)
    assert disk.cut("month-end") != cut
    with pytest.raises(NotFoundError, match="has no cut 'other'; it has month-end"):
        drop_cut(disk.open("home").handle, "other")


def test_a_cut_is_read_by_its_name(tmp_path):
    """In each of its logs, also with its home's URL, which says which one if there are two."""
    orders, stock = (
        Log.create(str(tmp_path / name), key="id", like=[{"id": 1, "n": 1}])
        for name in ("orders", "stock")
    )
    with orders.transaction("shop") as t:
        t.append([{"id": 1, "n": 1}])
        t.append([{"id": 1, "n": 1}], log=stock)
    snapshot(orders.url, name="month-end")
    for log in (orders, stock):
        log.append([{"id": 1, "n": 2}])
        for name in ("month-end", f"{orders.url}#month-end"):
            assert log.table(at=name).to_pylist() == [{"id": 1, "n": 1}]
            changed = log.changes(since=name).to_pylist()
            assert [row["n"] for row in changed] == [1, 2]
            assert not log.changes(since=name, until=name).to_pylist()
    with pytest.raises(NotFoundError, match="has no cut 'other'; it has month-end"):
        orders.table(at="other")
    with stock.transaction("shop") as t:
        t.append([{"id": 2, "n": 5}])
        t.append([{"id": 2, "n": 5}], log=orders)
    for name in ("year", "month-end"):
        snapshot(stock.url, name=name)
    assert stock.table(at="month-end").to_pylist() != [{"id": 1, "n": 1}]  # its own comes first
    drop_snapshot(stock.url, "month-end")
    assert len(orders.table(at="year").to_pylist()) == 2


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "x" * 129, "ä", 5])
def test_names_are_plain(name):
    from clog.storage import snapshot

    with pytest.raises(InvalidInputError, match="is not a valid cut name"):
        snapshot("memory://nowhere", name)


@pytest.mark.parametrize("keep_ms", [0, -1, True, 1 << 60])
def test_the_time_has_a_bound(keep_ms):
    from clog.storage import snapshot

    with pytest.raises(InvalidInputError, match="keep_ms"):
        snapshot("memory://nowhere", "c", keep_ms=keep_ms)


def test_a_log_that_is_not_in_it(disk, logs):
    put(logs, "a")
    cut = disk.cut()
    other = disk.create("other")
    with pytest.raises(InvalidInputError, match=r"other is not in the cut 'c' of .*home"):
        other.table(at=cut)
    with pytest.raises(InvalidInputError, match="both select a version"):
        logs[0].table(at=cut, at_time_ms=5)


def dirty(disk, logs, rounds=6):
    """Days of overwriting, cleaning, sweeping; old commits go with their blocks."""
    for i in range(rounds):
        put(logs, f"v{i}")
        for log in logs:
            log.roll()
        put(logs, f"w{i}")
        for name in NAMES:
            Cleaner(disk.open(name)).run_once(force=True)
        disk.clock.advance(5 * DAY_MS)


def test_a_cut_outlives_cleaning(disk, logs):
    """S69, S74: after 30 days of cleaning and sweeping it reads the same; then it is dropped, and
    nothing more is kept.
    """
    put(logs, "a")
    cut = disk.cut()
    dirty(disk, logs)
    assert disk.values(cut) == all_are("a")
    kept = logs[1].describe()["kept"]
    assert [(k["cut"], k["version"], k["until_ms"]) for k in kept] == [
        ("c", cut.logs[logs[1].url], None)
    ]
    assert kept[0]["objects"] > 0
    assert kept[0]["size_bytes"] > 0
    drop_cut(disk.open("home").handle, "c")
    dirty(disk, logs, 1)
    with pytest.raises(VersionExpiredError, match=r"the cut 'c' of .* was dropped or has expired"):
        disk.values(cut)
    assert logs[1].describe()["kept"] == []
    for name in NAMES:
        check_log(Folder(disk.clocked, name), every_version=False)


def test_a_cut_whose_time_is_up(disk, logs):
    """S74: it is kept for the requested time, then each log's cleaner releases it."""
    put(logs, "a")
    cut = disk.cut(keep_ms=10 * DAY_MS)
    assert cut.until_ms == cut.time_ms + 10 * DAY_MS
    dirty(disk, logs, 1)
    disk.clock.advance(cut.until_ms - 1 - disk.clock.now_ms())
    for name in NAMES:
        Cleaner(disk.open(name)).run_once(force=True)
    assert disk.values(cut) == all_are("a"), "to the last millisecond"
    disk.clock.advance(1)
    for name in NAMES:
        Cleaner(disk.open(name)).run_once(force=True)
    assert not any(log.handle.refresh().head.kept for log in logs), "and no longer"
    dirty(disk, logs, 3)
    assert cuts_of(disk.open("home").handle) == []
    assert not any(log.handle.refresh().head.kept for log in logs)
    assert not logs[0].handle.refresh().head.cuts
    with pytest.raises(VersionExpiredError, match="has expired"):
        disk.values(cut)


def test_a_cut_whose_time_is_up_makes_way(disk, logs):
    """S74: it has no claim to its name or to a place, whether its cleaner ran or not."""
    put(logs, "a")
    disk.cut("daily", keep_ms=DAY_MS)
    disk.cut("weekly", keep_ms=2 * DAY_MS)
    disk.clock.advance(DAY_MS)
    put(logs, "b")
    new = disk.cut("daily", keep_ms=DAY_MS)
    home = disk.open("home").handle
    assert [cut.name for cut in cuts_of(home)] == ["weekly", "daily"]
    assert disk.values(new) == all_are("b")
    assert {keep.time_ms for keep in home.tip.head.kept.values() if keep.name == "daily"} == {
        new.time_ms
    }
    with pytest.raises(AlreadyExistsError, match="already has a cut 'daily'"):
        disk.cut("daily")
    disk.clock.advance(3 * DAY_MS)
    disk.cut("other")
    assert set(disk.open("home").handle.tip.head.cuts) == {"other"}
    dirty(disk, logs, 2)
    assert not logs[1].handle.refresh().head.kept.keys() - home.refresh().head.kept.keys()
    for name in NAMES:
        check_log(Folder(disk.clocked, name), every_version=False)


def test_cuts_whose_time_is_up_are_not_counted(disk, monkeypatch):
    """FORMAT.md §20: the number of places is limited; the next naming removes expired ones."""
    monkeypatch.setattr(cuts, "CUTS_MAX", 2)
    disk.create("home")
    disk.cut("one", keep_ms=DAY_MS)
    disk.cut("two")
    with pytest.raises(InvalidInputError, match="already has 2 cuts, the maximum"):
        disk.cut("three")
    disk.clock.advance(DAY_MS)
    disk.cut("three")
    head = disk.open("home").handle.tip.head
    assert (set(head.cuts), {k.name for k in head.kept.values()}) == (({"two", "three"},) * 2)


def test_who_is_left_out_is_a_member(disk, logs):
    """The error for a misspelt URL lists the known logs; nothing is named."""
    put(logs, "a")
    secret = [disk.url("left"), "s3://key:word@x/right"]
    for odd in (["nonsense"], [disk.url("home")], secret, "x"):
        for name in ("c", None):
            with pytest.raises(InvalidInputError, match=r"is not a member .*; its members") as told:
                disk.cut(name, without=odd)
            assert all(log.id in str(told.value) and log.url in str(told.value) for log in logs[1:])
            assert "word" not in str(told.value)
    assert cuts_of(disk.open("home").handle) == []
    assert sorted(disk.cut(None, without=disk.url("left")).logs) == [
        *(disk.url("home"), disk.url("right"))
    ]


def test_what_was_deleted_is_gone_from_a_cut(disk, logs):
    """H-S2: a cut hides it too, and reports in which logs."""
    put(logs, "a")
    cut = disk.cut()
    assert changed_since(disk.open("home").handle, cut) == []
    logs[2].delete_records({0: -1})
    assert disk.values(cut) == [{b"k": b"a"}, {b"k": b"a"}, {}]
    assert changed_since(disk.open("home").handle, cut) == [logs[2].url]


def test_a_log_restored_from_an_older_copy_is_told(disk, logs):
    put(logs, "a")
    cut = disk.cut()
    odd = replace(cut, ids={url: (log_id, "0" * 32) for url, (log_id, _) in cut.ids.items()})
    with pytest.raises(LogReplacedError, match="restored from an older copy"):
        logs[0].table(at=odd)


def test_many_logs_stand_in_a_document(disk):
    """FORMAT §20: the home's head stays small; the sweep leaves the document."""
    home = disk.create("home")
    others = [disk.create(f"log{i:02}") for i in range(12)]
    put([home, *others], "a")
    cut = disk.cut()
    assert len(cut.logs) == 13
    (entry,) = disk.open("home").handle.tip.head.cuts.values()
    assert not isinstance(entry.logs, tuple)
    for _ in range(3):
        disk.clock.advance(3 * DAY_MS)
        home.append([{"key": "x", "value": "y"}])
        Cleaner(disk.open("home")).run_once(force=True)
    assert cuts_of(disk.open("home").handle) == [cut]
    drop_cut(disk.open("home").handle, "c")
    for _ in range(3):
        disk.clock.advance(3 * DAY_MS)
        home.append([{"key": "x", "value": "y"}])
        Cleaner(disk.open("home")).run_once(force=True)
    assert entry.logs.path not in {f.path.rpartition(f"{home.id}/")[2] for f in disk.store.list("")}


def test_a_member_that_is_gone(disk, logs):
    """It is reported with the remedy; left out, it is no longer a member."""
    put(logs, "a")
    for found in list(disk.store.list("right/")):
        disk.store.delete(found.path)
    with pytest.raises(NotFoundError, match=rf"without=\['{logs[2].id}'\]"):
        disk.cut()
    gone = disk.url("right")
    cut = disk.cut(without=[gone])
    assert sorted(cut.logs) == [disk.url("home"), disk.url("left")]
    assert sorted(disk.cut("d").logs) == [disk.url("home"), disk.url("left")]


def left(disk, logs, *, job="job"):
    """A transaction that its home has decided, without the right log knowing it."""
    away = FaultyStore(disk.clocked)
    home, one, other = (disk.open(name, away if name == "right" else None) for name in NAMES)
    t = home.transaction(job, timeout_ms=DAY_MS)
    for log in (home, one, other):
        t.append([{"key": "k", "value": "b"}], log=log)
    away.plan = Faults(
        Fault(FaultKind.FAIL_BEFORE, "create", "*right/*/commits/*", nth=2, times=99)
    )
    t.commit()
    assert [shown(log)[b"k"] for log in logs] == [b"b", b"b", b"a"]
    return t


def test_a_waiting_end_is_finished(disk, logs):
    """S74: a dead coordinator no longer informs the other logs; taking a cut does."""
    put(logs, "a")
    left(disk, logs)
    assert disk.values(disk.cut()) == all_are("b")


def test_ends_that_cross_have_no_cut_between():
    """S74: of two transactions, one ended first in one log, the other in another."""

    def ended(**logs):
        return {log: Shown(version, version) for log, version in logs.items()}

    crossing, none = [ended(a=5, b=8), ended(a=7, b=6)], {"a": 0, "b": 0}
    assert consistent({"a": 9, "b": 9}, crossing, none) == {"a": 9, "b": 9}
    assert consistent({"a": 9, "b": 7}, crossing, none) == {"a": 4, "b": 5}
    assert consistent({"a": 9, "b": 7}, crossing, {"a": 5, "b": 0}) is None


@pytest.mark.parametrize("held", ["home", "left"])
def test_what_the_release_before_shows_in_part(disk, held):
    """S74: where a log without `whole-transactions` shows one partition of a transaction, and a
    visible one that is open hides the other, the cut is from before it; then it has all of it.
    """
    logs = []

    def put_both(value):
        with logs[0].transaction("job") as t:
            for log in logs:
                to = {} if log is logs[0] else {"log": log}
                for p in (0, 1):
                    t.append([{"key": f"k{p}", "value": value}], partition=p, **to)

    with as_before():
        logs += [disk.create(name, partitions=2) for name in ("home", "left")]
        put_both("a")
        visible = disk.open(held).transaction("visible", visible=True)
        visible.append([{"key": "v", "value": "1"}], partition=1)
        put_both("b")
    assert shown(disk.open(held)) == {b"k0": b"b", b"k1": b"a"}
    assert disk.values(disk.cut()) == [{b"k0": b"a", b"k1": b"a"}] * 2
    visible.commit()
    found = disk.values(disk.cut("d"))
    assert [(table[b"k0"], table[b"k1"]) for table in found] == [(b"b", b"b")] * 2


def test_transactions_of_another_home(disk, logs):
    """S74: whatever ids wrote them, and wherever they were decided."""
    put(logs, "a")
    foreign = disk.create("foreign")
    away = FaultyStore(disk.clocked)
    one, other = disk.open("left"), disk.open("right", away)
    t = foreign.transaction("job", timeout_ms=DAY_MS)
    for log in (one, other):
        t.append([{"key": "k", "value": "f"}], log=log)
    away.plan = Faults(
        Fault(FaultKind.FAIL_BEFORE, "create", "*right/*/commits/*", nth=2, times=99)
    )
    t.commit()
    assert [shown(log)[b"k"] for log in logs] == [b"a", b"f", b"a"]
    assert disk.values(disk.cut()) == [{b"k": b"a"}, {b"k": b"f"}, {b"k": b"f"}]


@pytest.mark.parametrize("seeded", [False, True])
def test_a_visible_one_that_is_open_in_the_home_hides_others_from_all_logs(disk, logs, seeded):
    """S74: whether the logs had a transaction before or not, all show what came after its first
    record, or none does.
    """
    before = [{b"k": b"a"} if seeded else {}] * 3
    if seeded:
        put(logs, "a")
    visible = disk.open("home").transaction("visible", visible=True)
    visible.append([{"key": "v", "value": "1"}])
    put(logs, "b")
    assert shown(logs[1]) == {b"k": b"b"}
    assert disk.values(disk.cut()) == before
    visible.commit()
    assert disk.values(disk.cut("d")) == [{b"k": b"b", b"v": b"1"}, *[{b"k": b"b"}] * 2]


def test_what_is_held_back_by_one_that_began_later(disk, logs):
    """S74, S51: its commit is older than all that is undecided, and still all logs hide it."""
    put(logs, "a")
    one, other = (disk.open("home").transaction(name, visible=True) for name in ("one", "other"))
    one.append([{"key": "v", "value": "1"}])
    put(logs, "b")
    other.append([{"key": "w", "value": "1"}])
    one.append([{"key": "v", "value": "2"}])
    one.commit()
    for log in logs[1:]:
        log.append([{"key": "plain", "value": "1"}])
    assert disk.values(disk.cut()) == all_are("a")
    other.commit()
    assert [table[b"k"] for table in disk.values(disk.cut("d"))] == [b"b"] * 3


@pytest.mark.parametrize("strategy", ["offset", "header"])
def test_transactions_of_two_ids_may_cross(disk, strategy):
    """docs/transactions.md: they come in two orders in two logs, also with one home; a header that
    decides makes the tables agree.
    """
    given = {"compaction.strategy": strategy}
    given |= {"compaction.strategy.header": "n"} if strategy == "header" else {}
    home, left, right = logs = [disk.create(name, **given) for name in NAMES]

    def put_numbered(n, *logs):
        with logs[0].transaction(f"job-{n}") as t:
            for log in logs[1:]:
                row = {"key": "k", "value": str(n), "headers": [("n", n.to_bytes(8))]}
                t.append([row], log=log)

    put_numbered(0, *logs)
    away = FaultyStore(disk.clocked)
    again = [disk.open(name) for name in NAMES]
    meanwhile = partial(put_numbered, 2, *again)
    away.plan = Faults(Fault(FaultKind.MEANWHILE, "create", "*/commits/*", nth=1, run=meanwhile))
    put_numbered(1, home, left, disk.open("right", away))
    values = {log.table().get("k") for log in (left, right)}
    assert values == ({b"1", b"2"} if strategy == "offset" else {b"2"})
    assert len({*map(str, disk.values(disk.cut())[1:])}) == len(values)


def test_what_cannot_be_finished_is_told(disk, logs):
    """S74: an older cut is taken, as long as older versions can be read; then the error gives the
    transaction.
    """
    put(logs, "a")
    left(disk, logs)
    home = disk.open("home").handle
    away = FaultyStore(disk.clocked)
    away.plan = Faults(Fault(FaultKind.FAIL_BEFORE, "create", "*right/*/commits/*", times=10**6))
    home.reach = lambda url: Folder(away, url.rpartition("/")[2])
    found = _consistent_logs(home, ())
    cut = {handle.store.url: version for handle, version in found.values()}
    assert [log.table(at=cut[log.url]).get("k") for log in logs] == [b"a"] * 3
    for log in logs[:2]:
        raise_oldest(log.handle, log.version)
    with pytest.raises(
        CommitConflictError, match=r"transaction 0 of id 'job' has not ended in .*right.*cannot"
    ):
        name_cut(home, "c", None)
    assert not disk.open("home").handle.tip.head.kept


def test_a_failure_leaves_no_keep(disk, logs):
    """S68: kept versions are released if the naming fails."""
    put(logs, "a")
    away = FaultyStore(disk.clocked)
    home = disk.open("home").handle
    home.reach = lambda url: Folder(away, url.rpartition("/")[2])
    away.plan = Faults(Fault(FaultKind.FAIL_BEFORE, "create", "*right/*/commits/*", times=99))
    with pytest.raises(StoreUnavailableError, match="the cut 'c' was not created"):
        name_cut(home, "c", None)
    heads = [disk.open(name).handle.tip.head for name in NAMES]
    assert not any(head.cuts or head.kept for head in heads)


def test_keeps_that_a_crash_left_go(disk, logs):
    """C28: a log's cleaner checks with the home, which does not know them once its own
    keep is old.
    """
    put(logs, "a")
    dead = FaultyStore(disk.clocked)
    home = disk.open("home", dead)
    dead.plan = Faults(Fault(FaultKind.CRASH_BEFORE, "create", "*home/*/commits/*", nth=2))
    with pytest.raises(CrashedError):
        name_cut(home.handle, "c", None)
    assert all(disk.open(name).handle.tip.head.kept for name in NAMES)
    Cleaner(disk.open("left")).run_once(force=True)
    assert disk.open("left").handle.tip.head.kept, "it may be named yet"
    disk.clock.advance(2 * DAY_MS)
    for name in NAMES:
        Cleaner(disk.open(name)).run_once(force=True)
    assert not any(disk.open(name).handle.tip.head.kept for name in NAMES)


def test_who_slept_names_nothing_that_was_let_go(disk, logs):
    """N5: the home's keep is gone by then, so the cut is refused, and started again."""
    put(logs, "a")
    asleep = FaultyStore(disk.clocked)
    home = disk.open("home", asleep)

    def days_go_by():
        disk.clock.advance(2 * DAY_MS)
        for name in NAMES:
            Cleaner(disk.open(name)).run_once(force=True)

    # The second commit in the home is the naming.
    asleep.plan = Faults(
        Fault(FaultKind.MEANWHILE, "create", "*home/*/commits/*", nth=2, run=days_go_by)
    )
    cut = name_cut(home.handle, "c", None)
    (entry,) = disk.open("home").handle.tip.head.cuts.values()
    assert all(entry.cut_id in disk.open(name).handle.tip.head.kept for name in NAMES)
    assert disk.values(cut) == all_are("a")


@pytest.mark.parametrize("times", [1, cuts.TRIES_MAX])
def test_versions_that_go_while_they_are_looked_at(disk, logs, monkeypatch, times):
    """N1 to N3 start again; a cut for which this happens each time is reported."""
    left = [times]
    real = cuts._consistent_logs

    def looked(*given):
        if left[0]:
            left[0] -= 1
            raise VersionExpiredError("gone")
        return real(*given)

    monkeypatch.setattr(cuts, "_named_by_writer", lambda *_: None)
    monkeypatch.setattr(cuts, "_consistent_logs", looked)
    if times == cuts.TRIES_MAX:
        with pytest.raises(CommitConflictError, match=f"advanced {times} times"):
            disk.cut()
    else:
        assert disk.cut().name == "c"


def test_a_table_of_a_cut_is_pickled_as_that(tmp_path):
    """Another process uses the cut, and its log must be the same, not just the number."""
    home, other = (Log.create(str(tmp_path / name), 1) for name in ("home", "other"))
    with home.transaction("t") as t:
        for log in (home, other):
            t.append([{"key": "a", "value": "1"}], log=log)
    cut = snapshot(home.url, name="c")
    data = pickle.dumps(other.table(at=cut))
    other.append([{"key": "a", "value": "2"}])
    assert pickle.loads(data).get("a") == b"1"
    assert pickle.loads(data)._origin.args == (None, cut)


def test_force_frees_a_log_of_a_home_that_is_gone(disk, logs):
    """S69: kept versions can be released."""
    put(logs, "a")
    disk.cut("c")
    for found in list(disk.store.list("home/")):
        disk.store.delete(found.path)
    disk.clock.advance(9 * DAY_MS)
    Cleaner(disk.open("left")).run_once(force=True)
    assert disk.open("left").handle.tip.head.kept, "it stays undecided"
    with pytest.raises(NotFoundError, match="has no cut 'c'"):
        drop_cut(disk.open("left").handle, "c")
    drop_cut(disk.open("left").handle, "c", force=True)
    assert not disk.open("left").handle.tip.head.kept
    with pytest.raises(NotFoundError, match="keeps nothing for a cut"):
        drop_cut(disk.open("left").handle, "c", force=True)


def test_costs(disk, logs):
    """COMMIT §12: a few requests for each log, however much was written before."""
    for i in range(5):
        put(logs, f"v{i}")
    counting = CountingStore(disk.clocked)
    home = disk.open("home", counting)
    home.handle.reach = lambda url: Folder(counting, url.rpartition("/")[2])
    counting.reset()
    name_cut(home.handle, "c", None)
    counts = counting.counts
    assert (counts["list"], counts["delete"]) == (0, 0)
    assert counts["create"] == len(logs) + 1
    assert counts["get"] <= 14 * len(logs)


@pytest.mark.parametrize("count", [1, 12])
def test_as_long_as_over_two(disk, count):
    """COMMIT §12: all logs are read, and kept, at the same time."""
    logs = [disk.create("home"), *(disk.create(f"log{i:02}") for i in range(count))]
    put(logs, "a")
    far = DelayingStore(disk.clocked, 100)
    home = disk.open("home", far).handle
    home.reach = lambda url: Folder(far, url.rpartition("/")[2])
    before_ms = far.now_ms
    name_cut(home, "c")
    assert far.now_ms - before_ms <= 2_200
    before_ms = far.now_ms
    drop_cut(home, "c")
    assert far.now_ms - before_ms <= 1_800


@pytest.mark.parametrize(
    "samples", [24, pytest.param(400, marks=pytest.mark.nightly)], ids=["some", "many"]
)
def test_an_interrupt_anywhere(disk, logs, samples):
    """S65: the whole cut exists or none, the handle continues, and leftovers are removed."""
    put(logs, "a")
    outcomes = set()
    tracer = Tracer()
    with tracing(tracer):
        disk.cut("probe")
    step = len(tracer.places) // samples
    for i in range(samples):
        home = disk.open("home").handle
        assert interrupted(lambda home=home, i=i: name_cut(home, f"c{i}"), i * step)
        there = [cut for cut in cuts_of(home) if cut.name == f"c{i}"]
        entry = home.tip.head.cuts.get(f"c{i}")
        kept = [disk.open(name).handle.tip.head.kept for name in NAMES]
        outcomes.add(
            (bool(there), sum(1 for mine in kept if any(k.name == f"c{i}" for k in mine.values())))
        )
        if there:
            assert all(entry.cut_id in mine for mine in kept)
            assert disk.values(there[0]) == all_are("a")
            drop_cut(home, f"c{i}")
    name_cut(home, "last")
    assert {n for named, n in outcomes if named} <= {3}, outcomes
    assert (False, 0) in outcomes
    disk.clock.advance(2 * DAY_MS)
    for name in NAMES:
        Cleaner(disk.open(name)).run_once(force=True)
    assert {len(disk.open(name).handle.tip.head.kept) for name in NAMES} == {2}
