"""`clog copy`: what is kept, and what is not."""

import inspect
import struct

import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.cli import copy
from clog.jobs import convert
from clog.storage import Log, ManualClock, administration, store

DAY_MS = 86_400_000
KEPT = ("partition", "timestamp", "key", "value", "headers")


def rows(log, columns=KEPT):
    return [{name: row[name] for name in columns} for b in log.read() for row in b.to_pylist()]


@pytest.fixture
def log(url):
    """Two partitions, old timestamps, gaps that cleaning left, its own configs."""
    config = {"min.cleanable.dirty.ratio": "0.2", "message.timestamp.before.max.ms": 10 * DAY_MS}
    log = Log.create(url, partitions=2, config=config)
    now = log.handle.clock.now_ms()
    for i in range(6):
        headers = [("h", str(i))] if i % 2 else None
        row = {"key": f"k{i % 3}", "value": str(i), "timestamp": now - 9 * DAY_MS}
        log.append([row | {"headers": headers}] * 2, partition=i % 2)
    log.append([{"key": "k0", "value": None}], partition=0)
    log.roll(0)
    Cleaner(log).run_once(force=True)
    return log


def test_records_order_and_configs_are_kept(cli, url, log, tmp_path, monkeypatch):
    """Also over several commits; offsets are dense in the copy, its id is another, and it
    is sound.
    """
    monkeypatch.setattr(copy, "BATCH_BYTES", 1)
    target = str(tmp_path / "copy")
    said = cli("copy", url, target).stdout
    made = Log.open(target)
    assert said == f"copied {len(rows(log))} records of {url} to {target}\n"
    assert rows(made) == rows(log)
    assert made.config == log.config
    assert made.handle.tip.head.config == log.handle.tip.head.config
    assert [r["offset"] for r in rows(made, ("partition", "offset")) if not r["partition"]] == [
        *range(made.end_offsets()[0])
    ]
    assert made.version > 2
    assert made.handle.standing.log_id != log.handle.standing.log_id
    cli("verify", target)


@pytest.mark.parametrize("config", [{"message.timestamp.type": "LogAppendTime"}, {}])
def test_any_record_that_a_log_holds_is_taken(cli, tmp_path, config):
    """Records without a key, of a log that compacts by now; times as they were set."""
    url, target = str(tmp_path / "a"), str(tmp_path / "b")
    log = Log.create(url, partitions=1, config={"cleanup.policy": "delete"} | config)
    log.append([{"key": None, "value": "v"}, {"key": "k", "value": "w" * 100}])
    log.alter({"cleanup.policy": "compact", "max.message.bytes": 50})
    cli("copy", url, target)
    made = Log.open(target)
    assert rows(made) == rows(log)
    assert made.config == log.config


def test_a_copy_may_have_other_partitions(cli, url, log, tmp_path):
    """Then keys decide where a record goes; each key's order is kept."""
    target = str(tmp_path / "wide")
    given = ("--partitions", 5, "-c", "partitioner=murmur2")
    assert cli.json("copy", url, target, *given)["records"] == len(rows(log))
    made = Log.open(target)
    assert (made.partitions, made.config["partitioner"]) == (5, "murmur2")
    at = {row["key"]: row["partition"] for row in rows(made)}
    assert all(row["partition"] == at[row["key"]] for row in rows(made))


def test_a_target_that_is_there_is_left_alone(cli, url, log, tmp_path):
    """No log is changed by a copy."""
    other = Log.create(str(tmp_path / "other"), partitions=1)
    assert "a log already exists" in cli("copy", url, tmp_path / "other", code=1).stderr
    assert other.version == 0


def test_an_interrupted_copy_says_what_to_do(cli, url, log, tmp_path, monkeypatch):
    """And no cleaner would touch it in the meantime."""

    def refuse(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(copy, "_append", refuse)
    told = cli("copy", url, tmp_path / "copy", code=130)
    assert "has 0 records of" in told.stderr
    assert "delete it, and copy again" in told.stderr
    assert Log.open(str(tmp_path / "copy")).config["cleanup.policy"] == ""


def test_a_typed_log_stays_typed(cli, tmp_path):
    """The copy has the schema from the start; keys and values are unchanged."""
    url, target = str(tmp_path / "a"), str(tmp_path / "b")
    value = pa.struct([("n", pa.int32()), ("tags", pa.list_(pa.string()))])
    log = Log.create(url, partitions=2, schema={"key": pa.int64(), "value": value})
    log.append([{"key": i % 3, "value": {"n": i, "tags": ["x"]}} for i in range(6)])
    log.append([{"key": 1, "value": None}])
    cli("copy", url, target)
    made = Log.open(target)
    assert made.schema == log.schema
    assert rows(made) == rows(log)


@pytest.mark.parametrize("typed", [False, True])
def test_late_records_that_are_dropped_stay_behind(cli, tmp_path, typed):
    """S57: no deleted key reappears in a copy, where removed tombstones are no longer known."""

    def row(key, value, lsn):
        return {"key": key, "value": value, "headers": [("lsn", struct.pack(">q", lsn))]}

    clock, url, target = ManualClock(now_ms=1_700_000_000_000), *(str(tmp_path / n) for n in "ab")
    order = {"compaction.strategy": "header", "compaction.strategy.header": "lsn"}
    order |= {"compaction.late": "drop", "compaction.late.scope": "log"}
    config = {"min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1000"} | order
    log = Log.create(url, partitions=1, config=config, clock=clock)
    log.append([row("ann", None, 8), row("bob", '"1"', 2), row("cy", '"1"', 9)])
    for _ in range(3):
        log.roll()
        Cleaner(log).run_once(force=True)
        clock.advance(5000)
    log.append([row("ann", '"late"', 5), row("bob", '"2"', 3)])
    assert log.table().get_many(["ann", "bob"]) == {b"bob": b'"2"'}
    if typed:
        schema = {"key": pa.string(), "value": pa.string()}
        made = Log.create(target, 1, order, schema=schema)
        assert convert(log, made).records == 3
        assert made.table().get_many(["ann", "bob"]) == {"bob": "2"}
    else:
        cli("copy", url, target)
        assert Log.open(target).table().get_many(["ann", "bob"]) == {b"bob": b'"2"'}
        assert len(rows(Log.open(target))) == 3


def test_source_and_target_have_options_of_their_own(cli, url, log, tmp_path, monkeypatch):
    """``--target-option`` is for the target only; without it both use those of the source."""
    given = []

    def told(call):
        def calling(*args, **named):
            bound = inspect.signature(call).bind(*args, **named).arguments
            given.append((str(bound["url"]), bound["storage_options"]))
            return call(*args, **named)

        return calling

    monkeypatch.setattr(Log, "open", told(Log.open))
    monkeypatch.setattr(store, "store_at", told(store.store_at))
    own = ["--storage-option", "auto_mkdir=true"]
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    cli("copy", url, one, *own, "--target-option", "auto_mkdir=false")
    mine, other = {"auto_mkdir": True}, {"auto_mkdir": False}
    assert given == [(url, mine), (one, other), (one, other)]
    given.clear()
    cli("copy", url, two, *own)
    assert given == [(url, mine), (two, mine), (two, mine)]


def test_a_copy_has_the_names_of_its_source(cli, url, tmp_path, monkeypatch):
    """S61: also those that differ in case alone, in a log that an earlier release made."""
    target = str(tmp_path / "copy")
    row = {"id": "a", "v": 1, "V": 2}
    with monkeypatch.context() as patch:
        patch.setattr(administration, "names_problem", lambda *_, **__: None)
        log = Log.create(url, key="id", like=[row])
    log.append([row])
    cli("copy", url, target)
    assert Log.open(target).table().to_pylist() == [row]


def test_the_copy_is_made_for_what_it_reads(cli, url, tmp_path, monkeypatch):
    """S62: whatever the source becomes while the target is created; nothing is rounded."""
    schema = {"key": pa.string(), "value": pa.struct([("x", pa.float32())])}
    log = Log.create(url, partitions=1, schema=schema)
    log.append([{"key": "a", "value": {"x": 0.5}}])
    count = copy.record_count

    def counted(source):
        log.evolve(widen={"value.x": pa.float64()})
        log.append([{"key": "b", "value": {"x": 16777217.0}}])
        return count(source)

    monkeypatch.setattr(copy, "record_count", counted)
    target = str(tmp_path / "copy")
    cli("copy", url, target)
    assert rows(Log.open(target), ["value"]) == [{"value": {"x": 0.5}}]
