"""Objects that many partitions share, coalesced before the passes of a round (decision 0047)."""

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties import layout
from clog.cleaner.log_round import LogRound, plan_round
from clog.cli.clean import plan_lines
from clog.storage import CorruptionError, Log, ManualClock
from clog.storage.env import SeededIds
from clog_testing.counting import CountingStore
from clog_testing.crash import discard, inside, memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

PARTITIONS, BATCHES = 8, 34
DAY_MS = 86_400_000


class DataCounts(CountingStore):
    """Also counts the objects that are made."""

    made = 0

    def put(self, path, data):
        self.made += "/data/" in path
        super().put(path, data)


@pytest.fixture
def wide():
    """Makes logs of micro-batches, each an object with rows of every partition; sealed at the end,
    or after each. All of them are alike.
    """
    stores = []

    def make(*, roll_each=False, keys=7, **config):
        clock, store = ManualClock(1_000_000_000), memory_store()
        stores.append(store)
        named = {name.replace("_", "."): value for name, value in config.items()}
        log = Log.create(store, PARTITIONS, named, clock=clock, ids=SeededIds(1))
        for i in range(BATCHES):
            fill(log, i, keys)
            clock.advance(100)
            if roll_each:
                log.roll()
        log.roll()
        return Log.open(DataCounts(store), clock=clock, ids=SeededIds(2))

    yield make
    for store in stores:
        discard(store)


def fill(log, i, keys):
    rows = [
        {"key": f"k{(3 * i + j) % keys}", "value": f"{i}-{j}" if (i + j) % 5 else None}
        for p in range(log.partitions)
        for j in range(2)
    ]
    log.append(rows, partition=[p for p in range(log.partitions) for _ in range(2)])


def counter(log):
    store = log.handle.store
    while not isinstance(store, DataCounts):
        store = store.inner
    return store


def counting(log):
    """The counter of a log's requests, reset once its manifest is loaded."""
    log.handle.manifest()
    store = counter(log)
    store.reset()
    store.made = 0
    return store


def gets(store):
    return store.counts["get"] + store.counts["get_ranges"]


def records(log):
    return {p: [row for b in log.read(p) for row in b.to_pylist()] for p in range(log.partitions)}


def untimed(log):
    """The records without their timestamps: the loser of a race sleeps."""
    return [
        (p, r["offset"], r["key"], r["value"]) for p, rows in records(log).items() for r in rows
    ]


def state(log):
    """Everything that a round should leave the same, whatever it read."""
    log.handle.refresh()
    manifest = log.handle.manifest()
    segments = [[(s.base, s.next, s.created_ms) for s in of] for of in manifest.segments]
    return records(log), manifest.first_dirty, segments


def horizons(log):
    return {
        (p, s.base_offset): s.delete_horizon_ms
        for p in range(log.partitions)
        for s in log.segments(p)
        if s.delete_horizon_ms is not None
    }


def alone(log, **given):
    """A cleaner whose passes each read for themselves."""
    cleaner = Cleaner(log, **given)
    for log_round in cleaner._log_rounds:
        log_round.before_passes = lambda: None
    return cleaner


def operations(log):
    return [c.operation for c in log.history()]


@pytest.mark.parametrize("keys", [7, 10_000])
def test_a_late_cleaner_reads_each_shared_object_once(wide, keys):
    """Not twice for each partition and object; a partition costs a few requests besides. The dry
    run says so, and what is cleaned is the same.
    """
    log, other = wide(keys=keys), wide(keys=keys)
    planned = plan_round(log.handle, now_ms=log.handle.clock.now_ms())
    assert sum(r.chunks for r in planned.coalesced_first) == PARTITIONS * BATCHES
    assert planned.coalesced == []
    lines = plan_lines(planned)
    assert lines[0].startswith(f"first coalesce {PARTITIONS * BATCHES} chunks, ")
    assert len(lines) == 1 + PARTITIONS
    store = counting(log)
    assert len(Cleaner(log).run_once()) == PARTITIONS
    assert gets(store) <= BATCHES + 7 * PARTITIONS
    done = operations(log)
    assert done.index("coalesce") < done.index("clean")
    before = counting(other)
    alone(other).run_once()
    assert gets(before) >= PARTITIONS * BATCHES
    assert state(log) == state(other)


@pytest.mark.parametrize(
    ("config", "given"),
    [
        ({}, {}),
        ({"message_timestamp_type": "LogAppendTime"}, {"threads": 3}),
        pytest.param(
            {"segment_bytes": 300}, {"dedupe_buffer_bytes": 5 * 24}, marks=pytest.mark.nightly
        ),
    ],
)
def test_what_is_cleaned_does_not_depend_on_it(wide, config, given):
    """Records, offsets, timestamps, horizons and first dirty offsets, round by round until the
    tombstones are gone; with several threads, with several maps, and with merging segments.
    """
    first, other = (wide(delete_retention_ms=5000, **config) for _ in range(2))
    for _ in range(4):
        done, alike = (
            sorted(make(log, **given).run_once(force=True), key=lambda r: r.partition)
            for make, log in ((Cleaner, first), (alone, other))
        )
        assert [(r.partition, r.next_dirty_offset, r.complete) for r in done] == [
            (r.partition, r.next_dirty_offset, r.complete) for r in alike
        ]
        for stats in (r.stats for r in done):
            assert stats.records_read == stats.records_written + stats.records_removed
        assert records(first) == records(other)
        assert first.handle.manifest().first_dirty == other.handle.manifest().first_dirty
        if given.get("threads", 1) == 1:  # Else commits come in another order, at other times.
            assert horizons(first) == horizons(other)
        for log in (first, other):
            log.handle.clock.advance(6000)
    assert not any(row["value"] is None for rows in records(first).values() for row in rows)
    check_log(counter(first).inner)


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.nightly), 3])
def test_others_at_work_meanwhile(wide, threads):
    """S30: another cleaner, whose rounds come in between; what it did is left out, nothing is lost,
    and later rounds find the log clean.
    """
    first, other = wide(), wide()
    Cleaner(other).run_once(force=True)
    store, clock = counter(first).inner, first.handle.clock

    def faster():
        Cleaner(Log.open(store, clock=clock, ids=SeededIds(9)), threads=threads).run_once(
            force=True
        )

    for at in ("get*", "*/data/*", 5), ("put", "*/data/*", 3), ("create", "*/commits/*", 2):
        operation, path, nth = at
        fault = Fault(FaultKind.MEANWHILE, operation, path, nth=nth, run=faster)
        slow = Log.open(FaultyStore(store, Faults(fault)), clock=clock, ids=SeededIds(3))
        fill(first, 50, 7)
        fill(other, 50, 7)
        first.roll()
        other.roll()
        Cleaner(slow, threads=threads).run_once(force=True)
        clock.advance(3_600_000)
        other.handle.clock.advance(3_600_000)
        Cleaner(slow).run_once(force=True)
        Cleaner(other).run_once(force=True)
        assert untimed(first) == untimed(other)
        check_log(store, every_version=False)


def test_records_deleted_meanwhile(wide):
    """S37: what is below the log start is removed, and nothing else."""
    log = wide(keys=10_000)
    store, clock = counter(log).inner, log.handle.clock
    delete = lambda: Log.open(store, clock=clock).delete_records({3: 25})  # noqa: E731
    fault = Fault(FaultKind.MEANWHILE, "create", "*/commits/*", nth=2, run=delete)
    Cleaner(Log.open(FaultyStore(store, Faults(fault)), clock=clock)).run_once(force=True)
    log.handle.refresh()
    assert min(row["offset"] for row in records(log)[3]) >= 25
    assert len(records(log)[4]) > len(records(log)[3])
    check_log(store)


def test_damage_is_told_by_the_pass_that_needs_it(wide):
    """S28: the partitions that need the object are uncleanable, and say why."""
    log = wide()
    path = log.handle.manifest().segments[0][0].chunks[4].object.path
    inside(counter(log)).put(path, b"\0" * 100)
    with pytest.raises(CorruptionError, match="is damaged"):
        Cleaner(log).run_once()
    log.handle.refresh()
    uncleanable = log.handle.manifest().uncleanable
    assert sorted(uncleanable) == list(range(PARTITIONS))
    assert all("is damaged" in why.reason for why in uncleanable.values())


def test_few_large_chunks_are_not_coalesced_first(wide, monkeypatch):
    """It would write more than it saves the passes."""
    monkeypatch.setattr(layout, "REQUEST_BYTES", 10)
    log = wide()
    assert plan_round(log.handle, now_ms=log.handle.clock.now_ms()).coalesced_first == []
    Cleaner(log).run_once()
    assert "coalesce" not in operations(log)


def test_a_round_that_ends_between_coalescing_and_cleaning(wide):
    """What was coalesced stays, and the next round continues from there."""
    log, other = wide(), wide()
    cleaner = Cleaner(log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogRound, "clean", lambda *_, **__: cleaner.stop())
        assert cleaner.run_once() == []
    assert operations(log).count("coalesce") == 1
    store = counting(log)
    assert len(Cleaner(log).run_once()) == PARTITIONS
    assert gets(store) <= 7 * PARTITIONS
    alone(other).run_once()
    assert state(log) == state(other)


@pytest.mark.parametrize("policy", ["compact", "delete", "compact,delete"])
def test_segments_of_one_chunk_are_taken_apart_by_nobody(wide, policy):
    """Only as many objects are made as are left: not one for each chunk, replaced by later ones."""
    log = wide(roll_each=True, cleanup_policy=policy)
    store = counting(log)
    for _ in range(3):
        Cleaner(log).run_once()
        log.handle.clock.advance(3_700_000)
    log.handle.refresh()
    assert store.made <= len({c.object.path for _, c in log.handle.manifest().chunks()})
    assert store.made <= PARTITIONS


@pytest.mark.parametrize("data", [None, b"\0" * 100])
def test_one_that_is_damaged_is_told_by_its_passes(wide, data):
    """S28: or gone, as if each pass read for itself."""
    log = wide(roll_each=True)
    path = log.handle.manifest().segments[0][4].chunks[0].object.path
    store = inside(counter(log))
    store.delete(path) if data is None else store.put(path, data)
    Cleaner(log).run_once()
    log.handle.refresh()
    uncleanable = log.handle.manifest().uncleanable
    assert sorted(uncleanable) == list(range(PARTITIONS))
    told = "is damaged" if data else "is missing"
    assert all(told in why.reason for why in uncleanable.values())


def test_they_wait_for_their_pass_as_they_are(wide):
    """While none is due an object stays that holds nothing but such chunks."""
    log = wide(roll_each=True, min_compaction_lag_ms=DAY_MS)
    before, store = records(log), counting(log)
    Cleaner(log).run_once()
    log.handle.clock.advance(7_200_000)
    Cleaner(log).run_once()
    assert store.made == 0
    log.handle.clock.advance(DAY_MS)
    Cleaner(log).run_once()
    log.handle.refresh()
    assert store.made == len({c.object.path for _, c in log.handle.manifest().chunks()})
    assert before != records(log)


def test_an_object_with_bytes_of_nobody_is_taken_apart(wide):
    """S46: once a partition has released its rows in it, they stay no longer than
    coalescing waits.
    """
    log = wide(roll_each=True, cleanup_policy="compact", min_compaction_lag_ms=DAY_MS)
    shared = {c.object.path for _, c in log.handle.manifest().chunks()}
    log.delete_records({5: -1})
    log.handle.clock.advance(3_700_000)
    Cleaner(log).run_once()
    log.handle.refresh()
    assert not shared & {c.object.path for _, c in log.handle.manifest().chunks()}
