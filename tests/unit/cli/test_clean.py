"""`clog clean`, also with ``--sweep``."""

import math
from pathlib import Path

import deltalake
import duckdb
import pytest

from clog.cleaner import Cleaner
from clog.storage import Log, ManualClock, SystemClock
from clog.storage.objects import writer

DAY_MS = 86_400_000


@pytest.fixture
def clock():
    """Two days ago: the store's clock is the machine's, and the sweep compares them."""
    return ManualClock(SystemClock().now_ms() - 2 * DAY_MS)


@pytest.fixture
def log(url, clock):
    """Three of eight sealed records are superseded; the ratio can never exceed 1, so S14 is off."""
    log = Log.create(url, partitions=1, config={"min.cleanable.dirty.ratio": "1"}, clock=clock)
    for value in "1234":
        log.append([{"key": "a", "value": value}, {"key": f"b{value}", "value": value}])
    log.roll()
    return log


def test_clean_does_what_is_due(cli, url, log):
    """Nothing to do here; the message says how to clean all the same (S14, S17)."""
    assert "--force cleans whatever can be cleaned" in cli("clean", url).stdout
    assert cli.json("clean", url)["passes"] == []
    assert log.version == 5


def test_clean_force_cleans(cli, url, log):
    """The pass and what it removed; afterwards the table is the same, and the log is
    sound (S17).
    """
    before = sorted(cli.lines("consume", url, "--table"))
    (done,) = cli.json("clean", url, "--force")["passes"]
    assert (done["first_dirty_offset"], done["next_dirty_offset"]) == (0, 8)
    assert done["stats"]["records_removed"] == 3
    assert sorted(cli.lines("consume", url, "--table")) == before
    assert len(cli.lines("consume", url)) == 5
    cli("verify", url)


def test_clean_tells_each_pass(cli, url, log):
    """Partition, offsets, records, bytes."""
    said = cli("clean", url, "--force", "-c", "log.cleaner.threads=2").stdout
    assert said.startswith("partition 0 is clean to offset 8 (from 0): removed 3 records, ")


def test_a_dry_clean_writes_nothing(cli, url, log):
    """What the same command would do without --dry-run: --force counts (S17); no probe either."""
    folders = [Path(url), *(p for p in Path(url).rglob("*") if p.is_dir())]
    stored = {p: p.stat().st_mtime_ns for p in folders}
    assert "nothing is due" in cli("clean", url, "--dry-run").stdout
    assert "clean partition 0 (forced" in cli("clean", url, "--force", "--dry-run").stdout
    (planned,) = cli.json("clean", url, "--force", "--dry-run")["logs"]
    assert (planned["url"], planned["passes"][0]["map_records"]) == (url, 8)
    assert {p: p.stat().st_mtime_ns for p in folders} == stored


def test_a_dry_run_tells_merges(cli, url, clock):
    """For small segments, when no pass merges them."""
    config = {"cleanup.policy": "delete", "retention.ms": "-1"}
    log = Log.create(url, partitions=1, config=config, clock=clock)
    for value in "12345678":
        log.append([{"key": "a", "value": value}])
        log.roll()
    said = cli("clean", url, "--dry-run").stdout
    assert "merge 8 segments, 112 B, of partition 0 in [0, 8): nothing is read or written" in said
    assert len(cli.json("clean", url, "--dry-run")["logs"][0]["merged"]) == 1


def test_a_buffer_too_small_is_refused(cli, url, log):
    """A thread's share must hold at least one key (S18)."""
    small = "log.cleaner.dedupe.buffer.size=1"
    assert "error: " in cli("clean", url, "-c", small, code=1).stderr


def test_sweep_deletes_what_was_replaced_long_ago(cli, url, log, folder):
    """Not before file.delete.delay.ms has passed (S27); a dry run deletes nothing."""
    Cleaner(log).run_once(force=True)
    stored = set(Path(folder, "data").iterdir())
    log.alter({"file.delete.delay.ms": 3 * DAY_MS})
    assert cli.json("clean", url, "--sweep")["replaced"]["objects"] == []
    log.alter({"file.delete.delay.ms": DAY_MS})
    planned = cli.json("clean", url, "--sweep", "--dry-run")
    assert set(Path(folder, "data").iterdir()) == stored
    assert len(planned["replaced"]["objects"]) == 4
    assert "would delete 4 replaced objects" in cli("clean", url, "--sweep", "--dry-run").stdout
    assert "deleted 4 replaced objects" in cli("clean", url, "--sweep").stdout
    assert len(list(Path(folder, "data").iterdir())) == 1
    assert len(cli.lines("consume", url)) == 5


def test_a_dry_sweep_writes_nothing(cli, url, log):
    """Not even a probe of the clocks: it works where writing is not permitted."""
    Cleaner(log).run_once(force=True)
    folders = [Path(url), *(p for p in Path(url).rglob("*") if p.is_dir())]
    stored = {p: p.stat().st_mtime_ns for p in folders}
    cli("clean", url, "--sweep", "--dry-run")
    assert {p: p.stat().st_mtime_ns for p in folders} == stored


def test_clean_may_be_told_to_read_and_write_slowly(cli, url, log, monkeypatch):
    """S29: the limit is for all threads together, in MiB per second."""
    limits = []
    made = Cleaner.__init__

    def limited(self, *args, io_bytes_per_second=None, **named):
        limits.append(io_bytes_per_second)
        made(self, *args, io_bytes_per_second=io_bytes_per_second, **named)

    monkeypatch.setattr(Cleaner, "__init__", limited)
    cli("clean", url, "--force", "--io-limit", 3)
    assert limits == [3 << 20]
    cli("clean", url, "--io-limit", 0, code=2)


@pytest.mark.parametrize("partitions", [1, 3])
def test_rewrite_rewrites_what_earlier_releases_wrote(cli, tmp_path, monkeypatch, partitions):
    """A clean log, whose objects have bounds that leave out NaN: then DuckDB finds it in the
    objects of a view. Rows that passes hid stay hidden, and an open transaction's stay its own.
    """
    rows = [{"id": i, "d": math.nan if i % 3 else float(i)} for i in range(30)]
    log = Log.create(url := str(tmp_path / "floats"), partitions, key="id", like=rows)
    with monkeypatch.context() as released:
        released.setattr(writer, "nan_in", lambda _: set())
        for some in (rows, rows[:20], rows[5:]):
            log.append(some)
        log.roll()
        Cleaner(log).run_once(force=True)
    with log.transaction("load") as open_one:
        open_one.append([{"id": 99, "d": 1.0}])
        cli("clean", url, "--rewrite", "--dry-run", code=2)
        assert cli.json("clean", url, "--force", "--rewrite")["rewritten"] == 30
        assert len(log.table()) == 30
    log.publish("delta")
    files = deltalake.DeltaTable(url).file_uris()
    found = duckdb.read_parquet(files).filter("d = 'nan'::double")
    assert found.count("*").fetchall() == [(20,)]
    assert len(log.table()) == 31
    cli("verify", url)
