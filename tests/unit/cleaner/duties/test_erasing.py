"""Erasures, carried out (S59, S60, FORMAT.md §17): what is removed, when, and what delays it."""

import json
import time
from contextlib import suppress

import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.erasing import carry_out
from clog.cleaner.duties.layout import Run, relayout
from clog.cleaner.duties.sweep import sweep_orphans, sweep_released
from clog.storage import CorruptionError, InvalidInputError, Log, ManualClock
from clog.storage.commit.appends import Writer
from clog.storage.cuts import drop_cut, name_cut
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format.erasures import keyed_hashes
from clog.storage.store.contract import WrappingStore
from clog_testing.clocked import ClockedStore
from clog_testing.crash import discard, memory_store
from clog_testing.delaying import DelayingStore
from clog_testing.invariants import check_log

DAY_MS, HOUR_MS = 86_400_000, 3_600_000
PLAIN = {"compression.type": "none", "segment.bytes": 1 << 20}
ROUND_MS = 8 * HOUR_MS
BOUND_MS = 2 * DAY_MS + 3 * ROUND_MS
"""`delete.retention.ms`, then the longer of `file.delete.delay.ms` and a day, and three rounds."""


@pytest.fixture
def store(clocked_store):
    return clocked_store


@pytest.fixture
def log(make_log):
    """A log of one partition with twelve records, each of another key."""
    made = make_log(1, **PLAIN)
    made.append(rows(0))
    return made


def holding(store, *words):
    """The paths of the files that contain one of these words."""
    data = {found.path: store.get(found.path) for found in store.list("")}
    return {path for path, held in data.items() if any(word in held for word in words)}


def rows(of, count=12):
    return [
        {"key": f"k{j:02}", "value": f"value-{of}-of-k{j:02}", "headers": [("h", f"by-{j:02}")]}
        for j in range(count)
    ]


def records(log):
    read = (log.read(partition=p) for p in range(log.partitions))
    return [row for batches in read for batch in batches for row in batch.to_pylist()]


def rounds_until_done(log, clock, *, every_ms=ROUND_MS, most_ms=BOUND_MS, cleaner=None):
    """Runs rounds until no erasure is pending; returns how long that took."""
    began_ms, cleaner = clock.now_ms(), cleaner or Cleaner(log)
    while True:
        cleaner.run_once()
        if all(one.state == "done" for one in log.erasures()):
            return clock.now_ms() - began_ms
        assert clock.now_ms() - began_ms < most_ms, log.erasures()
        clock.advance(every_ms)


class NotingStore(WrappingStore):
    """A store that notes which receipts are read, and what is listed."""

    def __init__(self, inner):
        super().__init__(inner)
        self.receipts, self.listed = [], []

    def get(self, path, start=None, end=None):
        if f"/{documents.RECEIPTS}" in path:
            self.receipts.append(path)
        return self.inner.get(path, start, end)

    def list(self, prefix):
        self.listed.append(prefix)
        return self.inner.list(prefix)


def test_an_aborted_append_with_the_key_in_another_partition_goes(make_log, store, clock):
    """Aborted rows stand in active segments, in an object that partitions share: the one whose rows
    have other keys is sealed, too, before they go with the object.
    """
    log = make_log(2, **PLAIN)
    log.append(rows(0))
    t = log.transaction("job", visible=True)
    t.append([{"key": "vanishing", "value": "1"}, {"key": "k01", "value": "2"}], partition=[0, 1])
    t.abort()
    before = records(log)
    log.erase(["vanishing"], notify=False)
    rounds_until_done(log, clock)
    assert holding(store, b"vanishing") == set()
    assert records(log) == before


ERASED = (b"k03", b"-of-k03", b"by-03", b"k07", b"-of-k07", b"by-07")


@pytest.mark.parametrize(
    ("history", "notify"),
    [("appended", True), ("marked", False), ("trimmed", True), ("coalesced", False)],
)
def test_every_byte_of_the_keys_goes_and_nothing_else(make_log, store, clock, notify, history):
    """S59: keys, values and headers, wherever they are, within the stated days, in a log that is
    quiet; other keys keep all their records, and their offsets.
    """
    log = make_log(2, **PLAIN)
    for i in range(6):
        log.append(rows(i))
    if history == "marked":
        log.roll()
        log.append([{"key": "k03", "value": "value-9-of-k03"}])
        Cleaner(log).run_once(force=True)
    if history == "trimmed":
        log.roll()
        log.delete_records({0: 9, 1: 9})
    if history == "coalesced":
        Cleaner(log).run_once()
    before = [row for row in records(log) if row["key"] not in (b"k03", b"k07")]
    assert holding(store, *ERASED)
    request = log.erase(["k03", b"k07"], notify=notify)
    took_ms = rounds_until_done(log, clock, most_ms=BOUND_MS if notify else BOUND_MS - DAY_MS)
    assert took_ms >= (2 if notify else 1) * DAY_MS
    assert holding(store, *ERASED) == set()
    assert not holding(store, bytes.fromhex(request.secret), request.secret.encode())
    kept = {(row["partition"], row["offset"]): row for row in before}
    left = {(row["partition"], row["offset"]): row for row in records(log)}
    assert left == {at: row for at, row in kept.items() if at in left}
    assert {row["key"] for row in left.values()} == {row["key"] for row in before}
    (done,) = log.erasures()
    assert (done.id, done.keys, done.reason) == (request.id, 2, "")
    check_log(store, every_version=False)


def test_a_receipt_names_what_has_the_offsets_now(make_log, store, clock):
    """S60: the object that was written anew, and not its neighbours, which end and begin there."""
    log = make_log(1, **PLAIN)
    for keys in (("a", "b"), ("k03", "c"), ("d", "e")):
        log.append([{"key": key, "value": "1"} for key in keys])

    def objects():
        log.handle.refresh()
        return [chunk.object.path for _, chunk in log.handle.manifest().chunks()]

    before = objects()
    log.erase(["k03"], notify=False)
    rounds_until_done(log, clock)
    (done,) = log.erasures()
    now = objects()
    assert len(before) == len(now) == 3
    assert [(path, made) for path, made, *_ in done.receipt["objects"]] == [(before[1], [now[1]])]


def test_what_died_by_no_pass_stays(make_log, store, clock):
    """S59: an erasure never removes a record of another key: while no pass runs, all are there."""
    log = make_log(2, **PLAIN, cleanup_policy="delete", retention_ms=-1)
    for i in range(4):
        log.append(rows(i))
    others = [row for row in records(log) if row["key"] != b"k03"]
    log.erase(["k03"], notify=False)
    rounds_until_done(log, clock)
    assert records(log) == others


def test_later_appends_are_not_covered(log, store, clock):
    """S59: the receipt names the version, and later records stay."""
    log.erase(["k03"], notify=False)
    log.append([{"key": "k03", "value": "a second life"}])
    rounds_until_done(log, clock)
    assert log.table().get("k03") == b"a second life"
    receipt = log.erasures()[0].receipt
    assert (receipt["version"], receipt["ends"]) == (2, {"0": 12})
    assert holding(store, b"-of-k03") == set()


def test_no_older_value_shows_on_the_way(make_log, store, clock):
    """S59: all rows are killed by one commit, in all partitions."""
    log = make_log(2, **PLAIN)
    for i in range(3):
        log.append([{"key": "k", "value": str(i)}], partition=i % 2)
    log.erase(["k"], notify=False)
    before = log.version
    carry_out(Work(log.handle, clock.now_ms()))
    for version in range(before, log.version + 1):
        shown = [row["value"] for row in log.table(at=version).to_pylist()]
        assert shown in ([b"2", b"1"], []), version


def test_a_request_is_one_commit_and_shows_what_it_waits_for(log):
    """S59: from the request on `erasures` and `describe` show the reason."""
    request = log.erase(["k03"])
    assert request.version == 2
    assert "secret" not in repr(request)
    (one,) = log.erasures()
    assert (one.state, one.version, one.receipt) == ("pending", 2, None)
    assert one.reason == "the cleaner's next round marks its records dead"
    assert log.describe()["erasures"] == {request.id: one.reason}
    assert [row for row in records(log) if row["key"] == b"k03"][-1]["value"] is None
    Cleaner(log).run_once()
    assert log.erasures()[0].reason.startswith("its tombstones stay until 1970-01-13")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ([], "at least one key"),
        ("alice", "a list of keys"),
        ([7], "must be bytes or str"),
    ],
)
def test_a_refused_request_leaves_nothing(make_log, store, keys, said):
    """S68: no commit, no file."""
    log = make_log(1, **PLAIN)
    before = {found.path for found in store.list("")}
    with pytest.raises(InvalidInputError, match=said):
        log.erase(keys)
    assert {found.path for found in store.list("")} == before
    assert log.erasures() == []


@pytest.mark.parametrize("publish", [(), ("delta",)], ids=["a cut", "a published one"])
def test_a_cut_holds_an_erasure_up(log, store, clock, publish):
    """S59, S69: pending, with the holder, until it is released; not the view, where no other
    publication releases what the cut shows.
    """
    pytest.importorskip("pyroaring")
    name_cut(log.handle, "month-end", None, publish=publish)
    log.erase(["k03"], notify=False)
    cleaner = Cleaner(log)
    for _ in range(4):
        cleaner.run_once()
        clock.advance(DAY_MS)
    (one,) = log.erasures()
    assert one.state == "pending"
    assert "the cut 'month-end' of" in one.reason
    drop_cut(log.handle, "month-end")
    rounds_until_done(log, clock)
    assert holding(store, b"-of-k03") == set()


@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_a_published_view_is_named(log, store, clock, name):
    """S59: it shows an earlier version until it is published again, and file.delete.delay.ms after
    that.
    """
    pytest.importorskip("pyroaring")
    pytest.importorskip("fastavro")
    log.publish(name)
    log.erase(["k03"], notify=False)
    for _ in range(3):  # A round of a cleaner would publish, too.
        carry_out(Work(log.handle, clock.now_ms()))
        sweep_released(Work(log.handle, clock.now_ms()))
        clock.advance(DAY_MS)
    (one,) = log.erasures()
    assert one.state == "pending"
    assert f"the {name} view still shows an earlier version" in one.reason
    assert f"clog publish --withdraw --format {name}" in one.reason
    assert log.describe()["erasures"] == {one.id: one.reason}
    rounds_until_done(log, clock, every_ms=DAY_MS, most_ms=5 * DAY_MS)
    assert holding(store, b"-of-k03") == set()


def test_a_reader_that_holds_is_named(make_log, store, clock):
    """S59, S64: a hold lasts for a bounded time."""
    log = make_log(1, **PLAIN, reader_hold_max_ms=6 * DAY_MS, max_compaction_lag_ms=7 * DAY_MS)
    log.append(rows(0))
    log.reader("billing", hold_ms=6 * DAY_MS).commit({0: 1})
    log.erase(["k03"], notify=False)
    cleaner = Cleaner(log)
    for _ in range(3):
        cleaner.run_once()
        clock.advance(DAY_MS)
    assert "the reader 'billing' holds version" in log.erasures()[0].reason
    rounds_until_done(log, clock, every_ms=DAY_MS, most_ms=8 * DAY_MS)


def test_a_reader_that_holds_tombstones_is_named(make_log, store, clock):
    """S59, S64: if they stay for longer than `delete.retention.ms`."""
    log = make_log(1, **PLAIN, reader_hold_max_ms=6 * DAY_MS, max_compaction_lag_ms=7 * DAY_MS)
    log.append(rows(0))
    log.reader("quick", hold_ms=HOUR_MS).commit({0: 1})
    log.reader("billing", hold_ms=6 * DAY_MS).commit({0: 1})
    log.erase(["k03"])
    Cleaner(log).run_once()
    assert "the reader 'billing' holds its tombstones until" in log.erasures()[0].reason


def test_readers_are_asked_for_once_and_only_if_they_decide(make_log, store, clock):
    """COMMIT.md §8: erasures that wait for their tombstones cost a round nothing; then all of them
    look at the readers' positions together.
    """
    log = make_log(1, **PLAIN, reader_hold_max_ms=6 * DAY_MS, max_compaction_lag_ms=7 * DAY_MS)
    log.append(rows(0))
    for key in ("k03", "k05", "k07"):
        log.erase([key])
    Cleaner(log).run_once()
    log.reader("billing", hold_ms=6 * DAY_MS).commit({0: 1})
    noting = NotingStore(store)
    handle = Log.open(noting, clock=clock).handle
    for passed_ms, asked in ((HOUR_MS, 0), (DAY_MS, 1)):
        clock.advance(passed_ms)
        noting.listed.clear()
        carry_out(Work(handle, clock.now_ms()))
        assert len([path for path in noting.listed if "/readers/" in path]) == asked


def test_an_undecided_transaction_is_named(log, store, clock):
    """H-E15: undecided rows are killed once they are decided, either way."""
    open_one = log.transaction("job", visible=True)
    open_one.append([{"key": "k03", "value": "undecided-of-k03"}])
    log.erase(["k03"], notify=False)
    Cleaner(log).run_once()
    assert "transaction 'job' is still open" in log.erasures()[0].reason
    open_one.abort()
    rounds_until_done(log, clock)
    assert holding(store, b"-of-k03") == set()


def test_a_sleeper_brings_nothing_back(make_log, store, clock):
    """H-E2, H-E14: a rewrite that was planned before the kill is refused after it."""
    log = make_log(1, **PLAIN)
    for i in range(4):
        log.append(rows(i))
    log.roll()
    other = Log.open(store, clock=clock)
    planned = Work(other.handle, clock.now_ms(), planned=other.handle.manifest())
    runs = [Run(0, other.handle.manifest().segments[0][0].chunks)]
    log.erase(["k03"], notify=False)
    carry_out(Work(log.handle, clock.now_ms()))
    assert relayout(planned, runs, operation="coalesce") == []
    assert holding(store, b"-of-k03")
    rounds_until_done(log, clock)
    assert holding(store, b"-of-k03") == set()


def test_a_sleeping_append_is_refused_once_the_receipt_is_there(log, store, clock):
    """H-E2, H-E15: objects from before the request are below the orphan floor by then."""
    sleeper = Log.open(store, clock=clock)
    writer = sleeper.object_writer()
    writer.add(
        pa.table({"key": [b"k03"], "value": [b"late-of-k03"]})
        .append_column(
            "headers",
            pa.nulls(1, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        )
        .append_column("timestamp", pa.array([clock.now_us()], pa.timestamp("us", "UTC"))),
        pa.array([0], pa.int32()).to_numpy(),
    )
    objects = writer.finish()
    log.erase(["k03"], notify=False)
    rounds_until_done(log, clock)
    assert holding(store, b"-of-k03") == set()
    with pytest.raises(Exception, match="took too long"):
        sleeper.append_objects(objects)


def test_what_a_killed_publisher_leaves_holds_nothing_up(tmp_path, clock):
    """S59: the empty file by which it tested the folder of a view."""
    log = Log.create(str(tmp_path / "log"), 1, PLAIN, clock=clock)
    log.append(rows(0))
    log.publish("delta")
    root = log.handle.standing.root
    log.erase(["k03"], notify=False)
    cleaner = Cleaner(log)
    for _ in range(6):
        root.put(f"_delta_log/.probe.{log.id}.tmp", b"")
        cleaner.run_once()
        log.publish("delta")
        clock.advance(DAY_MS)
    assert [one.state for one in log.erasures()] == ["done"]


@pytest.mark.parametrize(
    "path",
    [
        *("{folder}/data/notes.txt", "_delta_log/notes.txt", "_delta_log/{version}.crc"),
        *(".probe-k03", "metadata/notes.txt"),
    ],
)
def test_a_file_that_nobody_knows_holds_it_up(log, clock, path):
    """S60: what may contain anything is named, not skipped, in the folders of views as well."""
    log.publish("delta")
    root = log.handle.standing.root
    folder = documents.folder_of(log.handle.standing.log_id)
    path = path.format(folder=folder, version="1" * 20)
    root.put(path, b"k03 was here")
    log.erase(["k03"], notify=False)
    cleaner = Cleaner(log)
    for _ in range(4):
        cleaner.run_once()
        log.publish("delta")
        clock.advance(DAY_MS)
    assert path in log.erasures()[0].reason
    root.delete(path)
    rounds_until_done(log, clock)


def test_a_file_that_holds_an_erasure_up_is_looked_for_each_ten_minutes(log, store, clock):
    """COMMIT.md E7: other rounds list nothing."""
    log.erase(["k03"], notify=False)
    store.put("README", b"not the log's")
    noting = NotingStore(store)
    cleaner = Cleaner(Log.open(noting, clock=clock))
    cleaner.run_once()
    clock.advance(DAY_MS + 1)
    cleaner.run_once()
    assert "README does not belong to the log" in log.erasures()[0].reason
    store.delete("README")
    noting.listed.clear()
    clock.advance(60_000)
    cleaner.run_once()
    assert not noting.listed
    clock.advance(540_000)
    cleaner.run_once()
    assert [one.state for one in log.erasures()] == ["done"]


def test_a_lost_request_is_told_and_holds_nothing_else_up(log, store):
    """S28: the round reports what is missing, and cleans all the same."""
    request = log.erase(["k03"])
    log.handle.store.delete(documents.erasure_path(request.id))
    log.append(rows(1))
    log.roll()
    with pytest.raises(CorruptionError, match="which an erasure needs, is gone; restore it"):
        Cleaner(log).run_once(force=True)
    assert log.describe()["partition_details"][0]["records"] == 12


def clean_for_days(log, clock):
    """Rounds on three days, which may report damage."""
    for _ in range(3):
        with suppress(CorruptionError):
            Cleaner(log).run_once()
        clock.advance(DAY_MS + 1)


@pytest.mark.parametrize("path", [documents.erasure_path, documents.begun_receipt_path])
@pytest.mark.parametrize("rounds", [0, 1], ids=["before it is killed", "before it is swept"])
def test_a_lost_document_holds_up_its_own_erasure_alone(log, store, clock, path, rounds):
    """S59: the others get their receipts, and each round reports what is missing."""
    asked = [log.erase([key], notify=False) for key in ("k03", "k05", "k07")]
    for _ in range(rounds):
        Cleaner(log).run_once()
    lost = min(asked, key=lambda one: one.id)
    log.handle.store.delete(path(lost.id))
    clean_for_days(log, clock)
    with pytest.raises(CorruptionError, match=rf"{lost.id}.* is gone; restore it"):
        Cleaner(log).run_once()
    states = {one.id: one.state for one in log.erasures()}
    assert states == {one.id: "pending" if one is lost else "done" for one in asked}


def test_documents_of_an_erasure_that_do_not_fit(log, store, clock):
    """S59: they hold up that erasure alone, and are named."""
    one, two = log.erase(["k03"], notify=False), log.erase(["k05", "k07"], notify=False)
    begun = [documents.begun_receipt_path(asked.id) for asked in (one, two)]
    log.handle.store.put(begun[0], log.handle.store.get(begun[1]))
    clean_for_days(log, clock)
    with pytest.raises(CorruptionError, match=rf"{one.id}.* has 2 keys, and the request .* 1;"):
        Cleaner(log).run_once()
    assert {one.id: one.state for one in log.erasures()} == {one.id: "pending", two.id: "done"}


class SweptStore(WrappingStore):
    """A store that another cleaner sweeps right after each request of an erasure."""

    sweep = staticmethod(lambda: None)

    def put(self, path, data):
        self.inner.put(path, data)
        name = path.rpartition("/")[2]
        if documents.erasure_of(f"{documents.ERASURES}{name}") is not None:
            self.sweep()


def test_a_clock_ahead_of_the_store_sweeps_no_request_that_is_being_made(clock):
    """E1: between a request and its commit, its age is told by the store's times alone."""
    clock = ManualClock(int(time.time() * 1000) + 30 * DAY_MS)
    memory = memory_store()
    store = SweptStore(memory)
    log = Log.create(store, 1, PLAIN, clock=clock, ids=SeededIds(1))
    log.append(rows(0))
    clock.advance(2 * DAY_MS)
    other = Log.open(memory, clock=clock)
    store.sweep = lambda: sweep_orphans(Work(other.handle, clock.now_ms()))
    request = log.erase(["k03"], notify=False)
    assert other.handle.refresh().head.orphan_floor == 1
    folder = documents.folder_of(log.handle.standing.log_id)
    assert memory.get(f"{folder}/{documents.erasure_path(request.id)}")
    discard(memory)


def test_what_holds_a_key_is_written_once(make_log, store, clock):
    """S59: bytes written are at most 1.2 times those of the objects that held a key; others are not
    written, and many keys, in several requests, are one rewrite.
    """
    log = make_log(1, **PLAIN)
    for part in range(8):
        names = [f"{part}-{i:04}" for i in range(3000)]
        log.append([{"key": name, "value": name * 8} for name in names])
    log.roll()
    sizes = {c.object.path: c.object.size_bytes for _, c in log.handle.manifest().chunks()}
    log.erase([f"2-{i:04}" for i in range(0, 3000, 3)], notify=False)
    log.erase([f"5-{i:04}" for i in range(1000)], notify=False)
    log.erase(["2-0001"], notify=False)
    before = {found.path for found in store.list("")}
    carry_out(Work(log.handle, clock.now_ms()))
    one, two, three = log.handle.manifest().erasures.values()
    assert (len(one.paths), len(two.paths), len(one.paths | two.paths | three.paths)) == (1, 1, 2)
    fresh = [
        found for found in store.list("") if found.path not in before and "data/" in found.path
    ]
    objects = [found.size_bytes for found in fresh if found.path.endswith(".parquet")]
    held = sum(sizes[path] for path in one.paths | two.paths)
    assert 0 < sum(objects) <= 1.2 * held
    assert len(records(log)) == 8 * 3000 - 2001


def test_followers_learn_it(log, clock, tmp_path):
    """S41, S59: by the tombstone; without one, readers that had read the records get an error."""
    for notify in (True, False):
        version, end = log.version, log.end_offsets()[0]
        log.erase(["k03" if notify else "k05"], notify=notify)
        carry_out(Work(log.handle, clock.now_ms()))
        steps = log.handle.manifest().tombstones_removed
        told = [p for p, since, offset in steps if since > version and offset >= end]
        assert told == ([] if notify else [0])
    assert [row["key"] for row in records(log)][-1] == b"k03"


def test_a_typed_log(store, clock):
    """S61: keys as its schema has them; statistics and dictionaries of the rest are new."""
    schema = {"key": pa.string(), "value": pa.struct([("city", pa.string())])}
    log = Log.create(store, 1, PLAIN, clock=clock, schema=schema)
    log.append([{"key": f"zz{i:02}", "value": {"city": f"town{i:02}"}} for i in range(40)])
    log.erase(["zz39", "zz00"])
    rounds_until_done(log, clock)
    assert holding(store, b"zz39", b"town39", b"zz00", b"town00") == set()
    assert len(records(log)) == 38


@pytest.mark.parametrize("strategy", ["timestamp", "header"])
def test_an_ordered_log(make_log, store, clock, strategy):
    """H-E17: the tombstone's order is that of what it kills, and adds no pair."""
    named = {"compaction_strategy": strategy}
    if strategy == "header":
        named["compaction_strategy_header"] = "version"
    log = make_log(1, **PLAIN, **named)

    def put(key, order, value):
        headers = [("version", order.to_bytes(8, "big"))]
        log.append([{"key": key, "value": value, "headers": headers}])

    put("a", 9, b"value-of-a")
    put("b", 3, b"value-of-b")
    put("a", 4, b"late-of-a")
    log.erase(["a", "nobody"])
    last = records(log)[-1] if strategy == "header" else None
    if last is not None:
        assert (last["key"], last["headers"][0]["value"]) == (b"a", (9).to_bytes(8, "big"))
    assert log.table().get("a") is None
    rounds_until_done(log, clock)
    assert holding(store, b"-of-a") == set()
    assert log.table().get("b") == b"value-of-b"
    assert log.handle.manifest().orders_removed == ()


def test_a_log_that_takes_offsets(store, clock):
    """FORMAT.md §16: no tombstone takes an offset that the source assigns."""
    log = Log.create(store, 1, PLAIN, clock=clock, features=["given-offsets"])
    log.append([{"key": "a", "value": "v-of-a"}], offsets=[7], producer=("m", 1))
    with pytest.raises(InvalidInputError, match="notify=False"):
        log.erase(["a"])
    log.erase(["a"], notify=False)
    rounds_until_done(log, clock)
    assert holding(store, b"-of-a") == set()
    assert log.end_offsets() == {0: 8}


def test_receipts_are_a_chain(log, store, clock):
    """S60: numbers without gaps, each with the hash of its predecessor."""
    for key in ("k01", "k02"):
        log.erase([key], notify=False)
        rounds_until_done(log, clock)
    first, second = (one.receipt for one in log.erasures())
    assert (first["number"], second["number"]) == (0, 1)
    assert first["previous"] is None
    assert len(second["previous"]) == 64
    assert json.loads(json.dumps(second)) == second
    assert second["not_searched"]
    assert second["searched"]
    assert "ids" not in second
    assert not [found for found in store.list("") if "/erasures/" in found.path]


def test_what_an_erasure_costs_does_not_grow_with_their_number(log, store, clock):
    """COMMIT.md E7: of the receipts of earlier erasures, only the newest are read."""
    for n in range(6):
        log.erase([f"k{n:02}"], notify=False)
        rounds_until_done(log, clock)
    log.erase(["k09"], notify=False)
    noting = NotingStore(store)
    rounds_until_done(log, clock, cleaner=Cleaner(Log.open(noting, clock=clock)))
    assert [one.receipt["number"] for one in log.erasures()] == [*range(7)]
    assert [path[-7:] for path in noting.receipts] == ["05.json", "04.json"]


def test_erasures_that_end_together_share_what_that_costs(log, store, clock):
    """COMMIT.md E7: everything is listed once for all of them, and none reads the receipts of the
    others.
    """
    listed = {}
    for keys in (["k00"], [f"k{n:02}" for n in range(1, 9)]):
        for key in keys:
            log.erase([key], notify=False)
        noting = NotingStore(store)
        rounds_until_done(log, clock, cleaner=Cleaner(Log.open(noting, clock=clock)))
        listed[len(keys)] = len(noting.listed)
    assert listed[8] == listed[1]
    assert [path[-7:] for path in noting.receipts] == ["00.json"]
    receipts = [one.receipt for one in log.erasures()]
    assert sorted(receipt["number"] for receipt in receipts) == [*range(9)]
    far = DelayingStore(store)
    assert len(Log.open(far, clock=clock).erasures()) == 9
    assert far.most_at_once > 3, "receipts are read at the same time"


class PausingStore(WrappingStore):
    """A store at whose n-th call another cleaner does a whole round."""

    def __init__(self, inner, turn, at):
        super().__init__(inner)
        self.turn, self.left = turn, at

    def _called(self):
        self.left -= 1
        if not self.left:
            self.turn()

    def get(self, path, start=None, end=None):
        self._called()
        return self.inner.get(path, start, end)

    def list(self, prefix):
        self._called()
        return self.inner.list(prefix)

    def put(self, path, data):
        self._called()
        self.inner.put(path, data)

    def create(self, path, data):
        self._called()
        self.inner.create(path, data)

    def delete(self, path):
        self._called()
        self.inner.delete(path)


def test_a_cleaner_that_another_one_overtakes_reports_no_damage():
    """S59: at each of its calls while erasures end, another cleaner may end them; then no document
    of theirs is missing, and there is one receipt for each.
    """
    at = 0
    while True:
        at += 1
        clock = ManualClock(DAY_MS)
        store = ClockedStore(memory_store(), clock)
        log = Log.create(store, 1, PLAIN, clock=clock, ids=SeededIds(1))
        log.append(rows(0))
        for key in ("k03", "k07"):
            log.erase([key], notify=False)
        Cleaner(log).run_once()
        clock.advance(DAY_MS + 1)
        pausing = PausingStore(store, Cleaner(log).run_once, at)
        Cleaner(Log.open(pausing, clock=clock, ids=SeededIds(2))).run_once()
        assert [one.state for one in log.erasures()] == ["done", "done"], at
        assert len([*store.list(log.handle.store.folder + "/receipts/")]) == 2, at
        discard(store.inner)
        if pausing.left > 0:
            break
    assert at > 40


def test_names_that_are_keys_are_in_the_receipt(make_log, store, clock):
    """H-E10: producers, transactions, readers, cuts, queries, sources and their marks, and values
    of configs, by the hashes of the keys; they delay nothing.
    """
    log = make_log(1, **PLAIN, **{"delete.retention.ms": DAY_MS})
    log.append(rows(0), producer=("k01", 1))
    log.transaction("k02").abort()
    log.reader("k03").commit({0: 1})
    name_cut(log.handle, "k05", DAY_MS)
    log.append_objects([], Writer("w", "stream", 1, "k06"))
    job = log.transaction("job")
    job.positions("queue:k07", {0: (1, "k08")})
    job.commit()
    named = ["k01", "k02", "k03", "k05", "k06", "queue:k07", "k08", str(DAY_MS)]
    secret = log.erase([*named, "k04"], notify=False).secret
    rounds_until_done(log, clock)
    (done,) = log.erasures()
    assert done.state == "done"
    assert {*done.receipt["ids"]} == {*keyed_hashes(secret, [name.encode() for name in named])}


def test_hashes_of_what_is_appended_are_kept_no_more(make_log, store, clock):
    """H-E8: a repeated sequence gets its result as usual, without the records being compared."""
    log = make_log(1, **PLAIN)
    log.append(rows(0), producer=("p", 1))
    log.erase(["k01"])
    log.append(rows(1), producer=("p", 2))
    (entry,) = log.handle.tip.head.writers
    assert (entry.sequence, entry.content) == (2, None)
    assert log.append(rows(1), producer=("p", 2)).duplicate
